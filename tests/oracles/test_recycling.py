"""The product against the aggregates of checkpoints in plain NumPy, on its own draws."""

import numpy as np
import pytest
from scipy.stats import t as student

from tests.oracles import adadps, product, recycling

BY_USER = {"rounds": 7, "cohort": 4.0, "noise_multiplier": 0.5, "l2_clip_norm": 0.7,
           "local.learning_rate": 0.3, "local.batch_size": 3}  # fmt: skip
KINDS = {
    "ema": ({"aggregate": "ema", "ema_decay": 0.7}, lambda ts: recycling.ema(ts, 0.7)),
    "ema, warm-up": ({"aggregate": "ema", "ema_decay": 0.7, "ema_warmup": True},
                     lambda ts: recycling.ema(ts, 0.7, warmup=True)),
    "upa": ({"aggregate": "upa", "aggregate.k": 3}, lambda ts: recycling.upa(ts, 3)),
    "weighted": ({"aggregate": "weighted"},
                 lambda ts: recycling.weighted(ts, product.Weighted.weights)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_of_released_models(kind):
    options, f_agg = KINDS[kind]
    start, played = product.play(product.by_user(**BY_USER, **options))
    thetas = [product.flat(start), *(product.flat(one.params) for one in played)]
    product.check_results(played, f_agg(thetas)[1:])


def summed(at, cohort, noise):
    """Updates of a cohort, clipped and summed over 2, with noise: a step of FedAvg."""
    [moved] = adadps.federated(
        at, product.users_gradient, [cohort], [noise], A=1.0, where="none", C=0.7, eta=0.3, m=2.0,
        server=lambda mean, memory: (mean, memory),
    )  # fmt: skip
    return moved - at


@pytest.mark.parametrize("restart", [None, 3])
@pytest.mark.parametrize("noise", ["tree", "banded", "blt"])
def test_dp_ftrl(noise, restart):
    start, played = product.play(product.by_user(
        rounds=7, noise=noise, noise_multiplier=0.5, l2_clip_norm=0.7, sampling="separated",
        cohort=2.0, min_separation=2, server="ftrl", exact_sum=False,
        **{"server.learning_rate": 0.7, "local.learning_rate": 0.3, "local.batch_size": 3,
           "server.restart": restart},
    ))  # fmt: skip
    cohorts, rows = product.cohorts_of(played), product.noise_of(played)
    found = recycling.ftrl(
        product.flat(start), lambda at, t: summed(at, cohorts[t], 0.0 * at),
        np.cumsum(rows, axis=0) / 2.0, rate=0.7, momentum=0.9, restart=restart,
    )  # fmt: skip
    product.check(played, found)


@pytest.mark.parametrize("start_round", [0, 3])
@pytest.mark.parametrize("reading", ["replace", "gradient-only"])
@pytest.mark.parametrize("kind", KINDS)
def test_training_over_aggregates(kind, reading, start_round):
    options, f_agg = KINDS[kind]
    start, played = product.play(product.by_user(
        **BY_USER, **options, **{"aggregate.training": reading, "aggregate.start": start_round}
    ))  # fmt: skip
    cohorts, noise = product.cohorts_of(played), product.noise_of(played)

    def step(at, t):
        return 0.5 * summed(at, cohorts[t], noise[t])

    found = recycling.train_over(
        product.flat(start), step, 7, f_agg, start=start_round, replace=reading == "replace"
    )
    product.check(played, found)
    product.check_results(played, f_agg([product.flat(start), *found])[1:])


def test_outputs():
    rng = np.random.default_rng(0)
    models = rng.dirichlet(np.ones(4), size=(5, 200))
    np.testing.assert_array_equal(product.answers("opa", models), recycling.opa(models))
    np.testing.assert_array_equal(product.answers("omv", models), recycling.omv(models))
    tie = np.array([[[0.4, 0.35, 0.25]], [[0.3, 0.45, 0.25]], [[0.45, 0.05, 0.5]]])
    assert product.answers("omv", tie) == recycling.omv(tie) == 0


def test_uncertainty():
    values = [0.62, 0.58, 0.65, 0.60, 0.55]
    mean, half = recycling.interval(values, student.ppf(0.975, 4))
    ours = product.uncertainty_of(values)
    assert ours == pytest.approx((mean, half, recycling.variance_of_combination(values, [0.2] * 5)))
    assert (mean, half) == pytest.approx((0.6, 0.047281), abs=1e-6)


@pytest.mark.parametrize("noise", ["tree", "banded", "blt"])
def test_noise_of_a_whole_run(noise):
    """First rows of 8 runs are z itself: 120 of them, σC to a quarter, a false alarm in 10^4."""
    experiment = product.by_user(
        rounds=6, noise=noise, noise_multiplier=0.5, l2_clip_norm=0.7, sampling="separated",
        cohort=2.0, min_separation=2, server="ftrl", exact_sum=False,
    )  # fmt: skip
    first = [product.noise_of(product.play(experiment, seed)[1])[0] for seed in range(8)]
    assert np.std(first) == pytest.approx(0.5 * 0.7, rel=0.25)
    if noise == "tree":  # a user in three of six rows; the whole run is one Gaussian mechanism
        moved = recycling.sensitivity(recycling.tree_matrix(6), 2, 3)
        assert product.priced_sigma(experiment) == pytest.approx(0.5 / moved, rel=1e-9)


BANDS = {"coefficients": (1.0, 0.5, 0.25, 0.125)}
BUFFERS = {"outputs": (0.5, 0.25), "decays": (0.75, 0.5)}


@pytest.mark.parametrize("rows", [5, 8, 11])
@pytest.mark.parametrize(("apart", "most"), [(1, 2), (2, 3), (4, 2), (4, 3)])
@pytest.mark.parametrize("kind", ["tree", "banded", "blt"])
def test_sensitivity_by_all_patterns(kind, apart, most, rows):
    C, numbers = {
        "tree": (recycling.tree_matrix(rows), {}),
        "banded": (recycling.banded_matrix(rows, *BANDS.values()), BANDS),
        "blt": (recycling.blt_matrix(rows, *BUFFERS.values()), BUFFERS),
    }[kind]
    expected = recycling.sensitivity(C, apart, most)
    ours = product.correlated_sensitivity(kind, rows, apart, most, **numbers)
    if kind == "banded" and apart >= 4:  # the product counts bands that the end would cut off
        assert expected <= ours * (1 + 1e-12)
        expected = recycling.sensitivity(
            recycling.banded_matrix(rows + 3, *BANDS.values())[:, :rows], apart, most
        )
    assert ours == pytest.approx(expected, rel=1e-9)


TREES = {"restart": 3, "completion": False}, {"restart": 5, "completion": True}


@pytest.mark.parametrize("rows", [8, 11, 12, 13])
@pytest.mark.parametrize(
    ("apart", "most"), [(1, 2), (2, 3), (4, 2), (4, 3), (5, 3), (1, 13), (2, 6), (3, 4)]
)
@pytest.mark.parametrize("trees", [*TREES, {"restart": 4, "completion": False}], ids=str)
def test_sensitivity_of_trees_that_are_restarted(trees, apart, most, rows):
    """An upper bound, at most 13 % above: how a user's rows fit into trees is not looked at."""
    exact = recycling.sensitivity(recycling.tree_matrix(rows, *trees.values()), apart, most)
    ours = product.correlated_sensitivity("tree", rows, apart, most, **trees)
    assert exact * (1 - 1e-12) <= ours <= 1.14 * exact


def test_sensitivity_of_the_tree():
    """Squares that are known, and the one case in which the product's bound is not reached."""
    for most, apart, rows, square in [(1, 1, 8, 4), (2, 4, 8, 10), (2, 3, 8, 12), (2, 1, 8, 14),
                                      (3, 3, 10, 20), (3, 2, 10, 20)]:  # fmt: skip
        found = recycling.sensitivity(recycling.tree_matrix(rows), apart, most)
        assert found**2 == pytest.approx(square)
        ours = product.correlated_sensitivity("tree", rows, apart, most)
        assert ours**2 == pytest.approx(square)
    exact = recycling.sensitivity(recycling.tree_matrix(13), 3, 4)
    assert exact**2 == pytest.approx(23)
    assert exact <= product.correlated_sensitivity("tree", 13, 3, 4) <= 1.043 * exact


@pytest.mark.parametrize("rows", [5, 11, 19])
@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_rows_of_the_inverse(kind, rows):
    numbers = BANDS if kind == "banded" else BUFFERS
    matrix = recycling.banded_matrix if kind == "banded" else recycling.blt_matrix
    drawn, made = product.correlated_rows(kind, rows, **numbers)
    found = np.linalg.solve(matrix(rows, *numbers.values()), drawn[:rows])
    np.testing.assert_allclose(made, found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trees", [{}, *TREES], ids=str)
@pytest.mark.parametrize("estimate", ["vanilla", "efficient"])
def test_rows_of_the_tree(estimate, trees):
    drawn, made = product.correlated_rows("tree", 13, estimate=estimate, **trees)
    size, completed = trees.get("restart", 13), trees.get("completion", False)

    def answered_at(node):
        """The row whose draw a node is; one above rows of nothing comes before the next tree."""
        tree, height, place = node
        last = (place + 1) << height
        return tree * size + min(last, size + 1), last <= size, height

    nodes = sorted(recycling.tree_nodes(13, *trees.values()), key=answered_at)
    known = dict(zip(nodes, drawn, strict=True))
    left, prefixes = 0.0, []
    for t in range(13):
        tree, row = divmod(t, size)
        own = {(h, place): z for (of, h, place), z in known.items() if of == tree}
        prefixes.append(left + recycling.tree_prefix(own, row + 1, estimate == "efficient"))
        if row + 1 == size and completed:
            root = (size - 1).bit_length()
            left += recycling.tree_node(own, root, 0, estimate == "efficient", rows=size)[0]
        elif row + 1 == size:
            left = prefixes[-1]
    np.testing.assert_allclose(np.cumsum(made, axis=0), prefixes, rtol=1e-5, atol=2e-6)
    variances = [recycling.tree_node(np.ones((6, 64)), h, 0, True)[1] for h in range(6)]
    assert variances == pytest.approx([1 / (2 - 0.5**h) for h in range(6)], abs=1e-6)


@pytest.mark.parametrize(("kind", "smooth"), [("blocks", False), ("smooth", True)])
@pytest.mark.parametrize("period", [4, 7])
def test_shift(kind, smooth, period):
    expected = [recycling.shift_share(t, period, smooth) for t in range(2 * period)]
    assert product.shares(kind, period, 2 * period) == pytest.approx(expected, abs=1e-12)


def test_independent_runs():
    """Five runs, none of which has less of the budget: their last losses, and a t-interval."""
    experiments = [product.by_user(**{**BY_USER, "rounds": 2}) for _ in range(5)]
    assert len({product.epsilon_of(one) for one in experiments}) == 1
    values = [
        product.loss(*product.PUBLIC, product.flat(product.play(one, seed)[1][-1].params))
        for seed, one in enumerate(experiments)
    ]
    assert len(set(values)) == 5
    mean, half = recycling.interval(values, student.ppf(0.975, 4))
    assert product.uncertainty_of(values)[:2] == pytest.approx((mean, half), rel=1e-9)


@pytest.mark.parametrize(("a", "expected"), [(0.9, 0.186), (0.9**10, 0.814), (0.9**50, 0.998)])
def test_correlated_checkpoints(a, expected):
    assert recycling.variance_ratio(a, 5) == pytest.approx(expected, abs=2e-3)
    assert product.variance_ratio(a, 5) == pytest.approx(recycling.variance_ratio(a, 5), rel=1e-9)
