"""The product against bolt-on in plain NumPy, on the product's own orders and noise."""

from functools import partial

import numpy as np
import pytest
from scipy.stats import chisquare, ks_2samp, kstest

from tests.oracles import adadps, bolt_on, product

PLAIN = {"output_noise": "gaussian", "noise_multiplier": 0.01}
SCHEDULES = {
    "constant": {"step": "constant", "step_rate": 0.3},
    "decreasing": {"step": "decreasing"},
    "square-root": {"step": "square-root", "step_exponent": 0.3},
    "strongly-convex": {"step": "strongly-convex", "regulariser": 0.05},
}


def etas_of(name, updates, m, smooth, given):
    """Step sizes by the paper; β of the data term is `smooth`."""
    gamma = given.get("regulariser", 0.0)
    return bolt_on.rates(
        name, updates, m=m, beta=smooth + gamma, gamma=gamma, eta=given.get("step_rate"),
        c=given.get("step_exponent", 0.5),
    )  # fmt: skip


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("batch", [1, 6, 40])
@pytest.mark.parametrize("name", SCHEDULES)
def test_examples(name, batch, average):
    given = SCHEDULES[name]
    start, [played] = product.play(
        product.by_example(method="bolt-on", passes=3, batch_size=batch, average=average,
                           radius=0.7, **given, **PLAIN)
    )  # fmt: skip
    etas = etas_of(name, 3 * (40 // batch), 40, 0.5, given)
    found = bolt_on.permutation_sgd(
        product.flat(start), product.of_shortened, played.orders, etas, b=batch, R=0.7,
        reg=given.get("regulariser", 0.0), average=average,
    )  # fmt: skip
    product.check([played], [found + product.flat(played.draws[-1])])


@pytest.mark.parametrize(
    ("steps", "share", "reg", "radius"),
    [(1, 1.0, 0.0, None), (3, 0.5, 0.0, None), (3, 1.0, 0.0, 0.7), (1, 0.5, 5.0, None)],
)
def test_users(steps, share, reg, radius):
    rate = 1e-3
    experiment = product.by_user(
        method="bolt-on", passes=2, users_per_update=2, local_steps=steps, server_rate=share,
        step_rate=rate, regulariser=reg, radius=radius, longest_start=4.0, **PLAIN,
    )  # fmt: skip
    start, [played] = product.play(experiment)
    grad, users = partial(product.of_user, product.gradient), sorted(product.USERS)
    found = bolt_on.permutation_sgd(
        product.flat(start), lambda w, i: grad(w, users[i]), played.orders, [rate] * 4, b=2,
        K=steps, server=share, reg=reg, R=radius or np.inf,
    )  # fmt: skip
    product.check([played], [found + product.flat(played.draws[-1])])
    if not reg:  # of one who is there or not, with room for the rounding of params
        r = max(np.linalg.norm(np.column_stack([x, np.ones(len(x))]), axis=1).max()
                for x, _ in product.USERS.values())  # fmt: skip
        L = np.sqrt(2) * r
        least = share / 2 * bolt_on.convex_sensitivity(L, [rate] * 4, passes=2, b=2, K=steps)
        assert least <= product.sensitivity_of(experiment) <= 1.01 * least


@pytest.mark.parametrize("more", [{}, {"K": 3}, {"average": True}], ids=str)
@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("name", ["constant", "decreasing", "square-root"])
def test_convex_sensitivity(name, batch, more):
    given = SCHEDULES[name]
    etas = etas_of(name, 5 * 100 // batch, 100, 0.25, given)
    expected = bolt_on.convex_sensitivity(1.0, etas, passes=5, b=batch, **more)
    ours = product.replaced_by_bolt_on(5, batch, 100, 0.25, **given, **more)
    assert ours == pytest.approx(expected, rel=1e-9)
    # Of a linear loss the bound is reached: the sign of the first example of each pass is turned.
    order = [np.arange(100)] * 5
    ends = [bolt_on.permutation_sgd(np.zeros(1), lambda w, i, s=sign: -s if i == 0 else -1.0, order,
                                    etas, b=batch, **more) for sign in (1.0, -1.0)]  # fmt: skip
    assert abs(ends[0] - ends[1]).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("batch", [1, 10, 50, 100])
def test_strongly_convex_sensitivity_gains_nothing_from_batches(batch):
    """Of w²/2 - zw with |z| ≤ 1 the bound is reached, of L = 1: a division by b would be wrong."""
    expected = bolt_on.strongly_convex_sensitivity(1.0, 1.0, 100)
    etas = bolt_on.rates("strongly-convex", 5 * 100 // batch, m=100, beta=1.0, gamma=1.0)
    order = [np.arange(100)] * 5
    ends = [bolt_on.permutation_sgd(np.zeros(1), lambda w, i, s=sign: w - (s if i == 3 else 1.0),
                                    order, etas, b=batch) for sign in (1.0, -1.0)]  # fmt: skip
    assert abs(ends[0] - ends[1]).item() == pytest.approx(expected, rel=1e-9)
    ours = product.replaced_by_bolt_on(5, batch, 100, 1.0, step="strongly-convex",
                                       regulariser=1.0)  # fmt: skip
    assert expected <= ours * (1 + 1e-12) and ours <= 1.2 * expected


def test_spherical_noise():
    """Lengths of 4,000 draws in 6 dimensions against Gamma(6, Δ/ε): a false alarm in 10^6."""
    drawn = product.sphere_draws(6, sensitivity=0.4, epsilon=2.0, number=4000)
    lengths = np.linalg.norm(drawn, axis=1)
    assert kstest(lengths, "gamma", args=(6, 0, 0.2)).pvalue > 1e-6
    rng = np.random.default_rng(0)
    ours = [bolt_on.spherical_noise(rng.normal(size=6), rng.gamma(6), 0.4, 2.0) for _ in drawn]
    assert ks_2samp(lengths, np.linalg.norm(ours, axis=1)).pvalue > 1e-6
    angles = (drawn / lengths[:, None])[:, 0] ** 2  # of a uniform direction Beta(1/2, 5/2)
    assert kstest(angles, "beta", args=(0.5, 2.5)).pvalue > 1e-6


def test_private_tuning():
    """20,000 choices against the probabilities: a false alarm in 10^6."""
    expected = bolt_on.tuning_probabilities([10, 12, 20], 1.0)
    np.testing.assert_allclose(expected, [0.727475, 0.267623, 0.004902], atol=1e-6)
    counts = np.bincount(product.tuned([10, 12, 20], 1.0, 20_000), minlength=3)
    assert chisquare(counts, 20_000 * expected).pvalue > 1e-6


def test_training_of_candidates():
    """Three parts of ten, one candidate each, and ten examples that judge."""
    rates = (0.5, 2.0, 8.0)
    start, [played] = product.play(product.tuning(rates, epsilon=8.0))
    x = np.column_stack([product.TRAIN[0].astype(float), np.ones(40)])
    short, y = x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), product.TRAIN[1] == 0
    counts = []

    def training(rate, orders):
        def train(w, part):
            def grad(v, i):
                row = part[i]
                return (1 / (1 + np.exp(-short[row] @ v)) - y[row]) * short[row]

            return bolt_on.permutation_sgd(w, grad, orders, [rate] * 20, b=1)

        return train

    def choose(mistakes):
        counts.append(mistakes)
        return played.chosen[-1]

    found = bolt_on.private_tuning(
        product.flat(start), list(map(training, rates, played.trainings)), played.groups,
        [product.flat(z) for z in played.draws], lambda v, j: int((x[j] @ v > 0) != y[j]), choose,
    )  # fmt: skip
    product.check([played], [found])
    assert sorted(np.concatenate(played.groups)) == list(range(40))
    assert counts == [[int(count) for count in played.judged]] and len(set(counts[0])) > 1


def test_random_projection():
    x = np.random.default_rng(0).normal(size=(5, 8))
    ours, matrix = product.projected(x, 3)
    np.testing.assert_allclose(ours, bolt_on.random_projection(x, matrix), rtol=1e-5)


ONE_RELEASE = {
    "example": {"method": "bolt-on", "step_rate": 1e-3, "batch_size": 6},
    "user": {"method": "bolt-on", "step_rate": 1e-3, "users_per_update": 2},
}
MAKE = {"example": product.by_example, "user": product.by_user}


@pytest.mark.parametrize(
    ("unit", "epsilon", "relation"),
    [("example", 0.5, "replace-one"), ("example", 3.0, "zero-out"), ("user", 1.0, "replace-one"),
     ("user", 1.0, "add-remove")],
)  # fmt: skip
def test_gaussian_release(unit, epsilon, relation):
    """σ over the distance that a replaced example moves the result: the least of its (ε, δ)."""
    experiment = MAKE[unit](
        output_noise="gaussian", target_epsilon=epsilon, relation=relation, **ONE_RELEASE[unit]
    )
    sigma = product.priced_sigma(experiment)
    assert bolt_on.gaussian_delta(sigma, epsilon) == pytest.approx(1e-3, rel=2e-3)
    assert bolt_on.gaussian_delta(0.161152 / 0.02, 0.5) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("unit", "relation", "moved"),
    [("example", "replace-one", 2), ("example", "zero-out", 1), ("user", "replace-one", 2),
     ("user", "zero-out", 1)],
)  # fmt: skip
def test_spherical_release(unit, relation, moved):
    """Lengths of 12 releases in 15 dimensions against Gamma(15, Δ₂/ε): a false alarm in 10^6."""
    experiment = MAKE[unit](target_epsilon=2.0, relation=relation, delta=None, **ONE_RELEASE[unit])
    drawn = [product.play(experiment, seed)[1][0].draws[-1] for seed in range(12)]
    lengths = [np.linalg.norm(product.flat(noise)) for noise in drawn]
    scale = moved * product.sensitivity_of(experiment) / 2.0
    assert kstest(lengths, "gamma", args=(15, 0, scale)).pvalue > 1e-6
    assert product.epsilon_of(experiment) == pytest.approx(2.0, rel=1e-9)


# -- comparators ----------------------------------------------------------------------------------


def clipped(w, i):
    return adadps.clip(product.of_example(product.gradient, w, int(i)), 0.7)


@pytest.mark.parametrize("passes", [1, 2])
def test_scs13(passes):
    """Six disjoint batches of six a pass; four examples sit each out."""
    start, played = product.play(product.comparator(
        "scs13", epsilon=30.0, batch_size=6, passes=passes, rate=0.6, regulariser=0.05
    ))  # fmt: skip
    order = [i for one in played for i in one.cohort]
    assert len(set(order[:36])) == 36 and len(order) == passes * 36
    noise = [-z / 6 for z in product.noise_of(played)]
    rates = {"eta": lambda t: 0.6 / np.sqrt(t), "b": 6, "reg": 0.05}
    found = [
        bolt_on.scs13(product.flat(start), clipped, order, noise[: t + 1], **rates)
        for t in range(len(played))
    ]
    product.check(played, found)


def test_noise_of_scs13():
    """Lengths of 120 draws in 15 dimensions against Gamma(15, kL/ε): a false alarm in 10^6."""
    _, played = product.play(product.comparator(
        "scs13", epsilon=4.0, batch_size=6, passes=20, rate=1e-3
    ))  # fmt: skip
    lengths = [np.linalg.norm(z) for z in product.noise_of(played)]
    assert kstest(lengths, "gamma", args=(15, 0, 20 * 0.7 / 4.0)).pvalue > 1e-6


@pytest.mark.parametrize("composition", ["pld", "strong"])
def test_bst14(composition):
    experiment = product.comparator(
        "bst14", epsilon=5.0, delta=1e-3, batch_size=8.0, passes=2.0, dimension=15, radius=0.8,
        composition=composition, regulariser=0.05,
    )  # fmt: skip
    start, played = product.play(experiment)
    noise = [-z for z in product.noise_of(played)]
    picks = [one.cohort for one in played]
    sigma = product.priced_sigma(experiment) * 0.7
    found = [
        bolt_on.bst14(product.flat(start), clipped, picks[: t + 1], noise[: t + 1], L=0.7, R=0.8,
                      sigma=sigma, b=8.0, reg=0.05)
        for t in range(len(played))
    ]  # fmt: skip
    product.check(played, found)
    inside = [np.linalg.norm(w) < 0.8 - 1e-6 for w in found]
    assert composition == "strong" or set(inside) == {True, False}  # some are projected
    assert product.epsilon_of(experiment) < 5.0 + 1e-6


@pytest.mark.parametrize(("epsilon", "steps", "q"), [(0.5, 100, 0.02), (2.0, 1000, 0.001)])
def test_noise_of_bst14(epsilon, steps, q):
    """The product's σ is that of a share which T steps compose to ε."""
    sigma = product.strong_composition_sigma(
        epsilon=epsilon, delta=1e-5, sampling_prob=q, steps=steps
    )
    shares = np.geomspace(1e-6, 1.0, 200_001)
    found = [bolt_on.strong_composition(share, steps, 1e-5 / steps) for share in shares]
    each = np.interp(epsilon, found, shares)
    assert sigma == pytest.approx(bolt_on.bst14_sigma(each, 1e-5 / steps, q), rel=1e-6)
