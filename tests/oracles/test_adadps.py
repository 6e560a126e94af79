"""The product against AdaDPS and its baselines in plain NumPy, on the product's own draws."""

from functools import partial

import numpy as np
import pytest

from tests.oracles import adadps, product
from tests.oracles.federated import local_update

LOCAL = {"local.learning_rate": 0.3, "local.batch_size": 3, "local.epochs": 2}
BY_USER = {"rounds": 4, "cohort": 4.0, "noise_multiplier": 0.5, "l2_clip_norm": 0.7, **LOCAL}
BY_EXAMPLE = {"steps": 6, "batch_size": 8.0, "noise_multiplier": 0.5, "l2_clip_norm": 0.7}
A = np.concatenate([np.tile(product.SCALE, product.CLASSES), np.ones(product.CLASSES)])
PRIVATE, PUBLIC = product.gradient_of(product.TRAIN), product.gradient_of(product.PUBLIC)


def played_by_user(**options):
    start, played = product.play(product.by_user(**BY_USER, **options))
    return product.flat(start), played


def federated(start, played, **changes):
    given = {"A": A, "where": "none", "C": 0.7, "eta": 0.3, "m": 4.0,
             "server": partial(adadps.ema_momentum, beta=0.0)}  # fmt: skip
    return adadps.federated(
        start, product.users_gradient, product.cohorts_of(played), product.noise_of(played),
        **{**given, **changes},
    )  # fmt: skip


@pytest.mark.parametrize("where", ["none", "local", "update", "both", "scale-then-privatise"])
@pytest.mark.parametrize("server", ["sgd", "ema-momentum"])
def test_federated(where, server):
    side = {} if where == "none" else {"side_information": "own"}
    start, played = played_by_user(precondition=where, server=server, **side)
    beta = 0.0 if server == "sgd" else 0.9
    own = partial(adadps.ema_momentum, beta=beta)
    product.check(played, federated(start, played, where=where, server=own))


@pytest.mark.parametrize("where", ["none", "local"])
def test_on_the_grid(where):
    """The default sum is of whole multiples of C/2^24: each user and the noise are rounded once.

    So each round's mean is off by half a unit of so many on each of 15 coordinates; its clipping
    leaves room for as much again, and w is float32 as everywhere.
    """
    side = {} if where == "none" else {"side_information": "own"}
    start, played = played_by_user(precondition=where, **{"exact-sum": None}, **side)
    unit, off = 0.7 * 2.0**-24, 0.0
    for one, w in zip(played, federated(start, played, where=where), strict=True):
        off += (2 * len(one.present) + 1) * np.sqrt(15) * unit / 2 / 4.0
        float32 = 2.0**-23 * np.linalg.norm(w)
        assert np.linalg.norm(product.flat(one.params) - w) <= 2 * off + 4 * float32


def test_dp_fedadam():
    start, played = played_by_user(
        server="adam", **{"server.learning_rate": 0.1, "server.adaptivity": 1e-3}
    )
    rate = partial(adadps.server_adam, alpha=0.1, eps=1e-3)
    product.check(played, federated(start, played, server=rate))


def test_dp_normfedavg():
    start, played = played_by_user(bound="normalise", **{"bound.regulariser": 0.05},
                                   server="ema-momentum")  # fmt: skip
    product.check(played, federated(start, played, normalise=0.05, server=adadps.ema_momentum))


def played_by_example(**options):
    start, played = product.play(product.by_example(**BY_EXAMPLE, **options))
    looks = [one.public for one in played]
    return product.flat(start), played, [-z for z in product.noise_of(played)], looks


GIVEN = {"C": 0.7, "alpha": 0.2, "b": 8.0}


def test_dp_sgd():
    start, played, noise, _ = played_by_example(**{"optimizer.learning_rate": 0.2})
    found = adadps.dp_sgd(start, PRIVATE, product.groups_of(played), noise, **GIVEN)
    product.check(played, found)


def test_micro_batches():
    start, played, noise, _ = played_by_example(micro_batch=4, **{"optimizer.learning_rate": 0.2})
    groups = product.groups_of(played)
    # A batch of 8 in expectation falls into two; whoever is drawn is in one of them.
    assert max(map(len, groups)) == 2 and max(len(group) for one in groups for group in one) > 1
    assert all(len(set(np.concatenate(one))) == sum(map(len, one)) for one in groups if one)
    product.check(played, adadps.dp_sgd(start, PRIVATE, groups, noise, **{**GIVEN, "b": 2.0}))
    # Appendix B: one example moves its micro-batch by up to 2 C, and noise is for that.
    assert np.std(np.concatenate(noise)) == pytest.approx(0.5 * 2 * 0.7, rel=0.3)


@pytest.mark.parametrize("rule", ["adam", "rmsprop", "adagrad"])
def test_dp_adaptive(rule):
    start, played, noise, _ = played_by_example(
        optimizer=rule, **{"optimizer.learning_rate": 0.2, "optimizer.adaptivity": 0.01}
    )
    found = adadps.dp_adaptive(
        start, PRIVATE, product.groups_of(played), noise, rule=rule, eps=0.01, **GIVEN
    )
    product.check(played, found)


@pytest.mark.parametrize("refresh", ["step", "epoch"])
@pytest.mark.parametrize("rule", ["rmsprop", "adam", "adagrad"])
def test_adadps(rule, refresh):
    start, played, noise, looks = played_by_example(
        preconditioner=f"public-{rule}", public_batch=4, refresh=refresh,
        **{"optimizer.learning_rate": 0.2, "preconditioner.regulariser": 1e-3},
    )  # fmt: skip
    # One public batch a step; or all of them once an epoch, of 40 examples in batches of 8.
    per_step = {"step": [1] * 6, "epoch": [3, 0, 0, 0, 0, 3]}[refresh]
    assert [len(one) for one in looks] == per_step
    found = adadps.adadps(
        start, PRIVATE, PUBLIC, product.groups_of(played), looks, noise, rule=rule, eps=1e-3,
        **GIVEN,
    )  # fmt: skip
    product.check(played, found)


def test_ideal():
    start, played, noise, looks = played_by_example(
        preconditioner="ideal",
        **{"optimizer.learning_rate": 0.2, "preconditioner.regulariser": 1e-3},
    )
    found = adadps.adadps(
        start, PRIVATE, PRIVATE, product.groups_of(played), looks, noise, rule="rmsprop", eps=1e-3,
        **GIVEN,
    )  # fmt: skip
    product.check(played, found)


@pytest.mark.parametrize("momentum", [{}, {"optimizer": "ema-momentum"}], ids=["r", "adam"])
def test_dp_public(momentum):
    start, played, noise, looks = played_by_example(
        preconditioner="r-pub", public_batch=4, **momentum,
        **{"optimizer.learning_rate": 0.2, "preconditioner.regulariser": 1e-3},
    )  # fmt: skip
    found = adadps.dp_public(
        start, PRIVATE, PUBLIC, product.groups_of(played), looks, noise, eps=1e-3,
        momentum=0.9 if momentum else 0.0, **GIVEN,
    )  # fmt: skip
    product.check(played, found)


def test_pda_dpmd():
    start, played, noise, looks = played_by_example(
        preconditioner="mirror-descent", public_batch=4, **{"optimizer.learning_rate": 0.2}
    )
    found = adadps.pda_dpmd(
        start, PRIVATE, PUBLIC, product.groups_of(played), looks, noise, **GIVEN
    )
    product.check(played, found)


# -- A known beforehand, and nothing private ------------------------------------------------------


def test_known_beforehand():
    start, played, noise, _ = played_by_example(**{
        "optimizer.learning_rate": 0.2, "preconditioner": "side-information",
        "preconditioner.side_information": "given",
    })  # fmt: skip
    found = adadps.dp_sgd(start, PRIVATE, product.groups_of(played), noise, A=A, **GIVEN)
    product.check(played, found)


def played_without_privacy(**options):
    start, played = product.play(product.by_example(
        steps=6, batch_size=8.0, noise="none", bound="none",
        **{"optimizer.learning_rate": 0.2, **options},
    ))  # fmt: skip
    start, looks = product.flat(start), [one.public for one in played]
    given = {"C": np.inf, "alpha": 0.2, "b": 8.0}
    return start, played, [np.zeros_like(start)] * 6, looks, given


@pytest.mark.parametrize("method", ["SGD", "AdaS"])
def test_without_privacy(method):
    """AdaS without public data is SGD along g / A."""
    known = {"preconditioner": "side-information", "preconditioner.side_information": "given"}
    start, played, noise, _, given = played_without_privacy(**(known if method == "AdaS" else {}))
    own = A if method == "AdaS" else 1.0
    found = adadps.dp_sgd(start, PRIVATE, product.groups_of(played), noise, A=own, **given)
    product.check(played, found)


def test_adam_without_privacy():
    start, played, noise, _, given = played_without_privacy(
        optimizer="adam", **{"optimizer.adaptivity": 0.01}
    )
    found = adadps.dp_adaptive(
        start, PRIVATE, product.groups_of(played), noise, rule="adam", eps=0.01, **given
    )
    product.check(played, found)


def test_adas_with_public_data():
    start, played, noise, looks, given = played_without_privacy(
        preconditioner="public-rmsprop", public_batch=4, **{"preconditioner.regulariser": 1e-3}
    )
    found = adadps.adadps(
        start, PRIVATE, PUBLIC, product.groups_of(played), looks, noise, rule="rmsprop", eps=1e-3,
        **given,
    )  # fmt: skip
    product.check(played, found)


def test_warm_start():
    """Three passes over the public examples, whose 12 are less than a batch, before round 1."""
    start, _, _, looks = played_by_example(warm_start_epochs=3, warm_start_rate=0.3)
    assert [len(batch) for batch in looks[0]] == [12] * 3
    found = adadps.warm_start(np.zeros_like(start), PUBLIC, looks[0], alpha=0.3)
    np.testing.assert_allclose(start, found, rtol=1e-5, atol=1e-7)


# -- A of past releases ---------------------------------------------------------------------------


def updates_of(played):
    cohorts = product.cohorts_of(played)

    def updates(w, t):
        return [local_update(w, product.users_gradient, batches, eta=0.3)
                for batches in cohorts[t]]  # fmt: skip

    return updates


PAST = {
    "beta": "release_preconditioner.decay", "eps": "release_preconditioner.regulariser",
    "clip_ratio": "release_preconditioner.clip_ratio",
    "rate_ratio": "release_preconditioner.rate_ratio",
}  # fmt: skip
MOMENTS = {"beta": 0.6, "eps": 0.02}


def named(numbers):
    """Options of the product by the oracles' names of their numbers."""
    return {PAST[name]: value for name, value in numbers.items()}


@pytest.mark.parametrize("numbers", [{}, MOMENTS], ids=["default", "others"])
@pytest.mark.parametrize("server", ["sgd", "ema-momentum"])
def test_scale_then_privatise(server, numbers):
    start, played = played_by_user(
        server=server, release_preconditioner="past-releases", **named(numbers)
    )
    own = partial(adadps.ema_momentum, beta=0.0 if server == "sgd" else 0.9)
    found = adadps.scale_then_privatise(
        start, updates_of(played), product.noise_of(played), C=0.7, m=4.0, server=own, **numbers
    )
    product.check(played, found)


@pytest.mark.parametrize(
    "numbers", [{}, {**MOMENTS, "clip_ratio": 2.0, "rate_ratio": 0.3}], ids=["default", "others"]
)
def test_dp2(numbers):
    start, played = product.play(product.by_user(
        **{**BY_USER, "rounds": 9}, release_preconditioner="delayed", **named(numbers),
        **{"release_preconditioner.delay_plain": 2,
           "release_preconditioner.delay_preconditioned": 3},
    ))  # fmt: skip
    found = adadps.dp2(
        product.flat(start), updates_of(played), product.noise_of(played), C=0.7, m=4.0, plain=2,
        preconditioned=3, **numbers,
    )  # fmt: skip
    product.check(played, found, 4e-6)  # √v + 1e-3 magnifies the rounding of a small v


# -- side information -----------------------------------------------------------------------------

COUNTS, CONTAINING = np.array([90, 40, 7, 1, 0]), np.array([20, 15, 5, 1, 0])


@pytest.mark.parametrize(
    ("rule", "given", "expected"),
    [
        ("rank", ((5,), {"top": 2, "gain": 20.0}), adadps.rank(5, top=2, gain=20.0)),
        ("frequency", ((COUNTS, 20), {"cap": 300.0, "power": 0.5}),
         adadps.frequency(COUNTS, 20, cap=300.0, power=0.5)),
        ("frequency", ((COUNTS, 20), {"cap": 50.0}), adadps.frequency(COUNTS, 20, cap=50.0)),
        ("tf_idf", ((COUNTS, CONTAINING, 25), {}), adadps.tf_idf(COUNTS, CONTAINING, 25, gain=1)),
        ("tf_idf_mass", ((COUNTS / 290, CONTAINING, 25), {}),
         adadps.tf_idf_mass(COUNTS / 290, CONTAINING, 25)),
    ],
)  # fmt: skip
def test_side_information(rule, given, expected):
    np.testing.assert_allclose(product.multiplier(rule, *given[0], **given[1]), expected, rtol=1e-6)


def test_magnitude_is_the_other_direction_of_tf_idf():
    """A proportional to TF-IDF features (Section 4), and inversely (6.1.2): their product."""
    features = np.outer(np.arange(1, 4), [4.0, 1.0, 0.02, 0.5])
    ours = product.multiplier("magnitude", np.abs(features).mean(axis=0), cap=100.0)
    np.testing.assert_allclose(ours, adadps.magnitude(features, cap=100.0), rtol=1e-6)
    assert ours.tolist() == pytest.approx([1, 4, 100, 8], rel=1e-6)


# -- Appendix B, and the toy of 4.1 ---------------------------------------------------------------


def test_one_example_moves_micro_batches_by_twice_the_bound():
    """Each of 40 examples leaves 6 micro-batches at 3 points: more than C at times, 2 C at most."""
    moved, everybody, C = [], list(range(40)), 0.3
    for seed in range(3):
        w = 3.0 * np.random.default_rng(seed).normal(size=15)
        draw = partial(product.grouped_sum, w, groups=6, C=C, seed=seed)
        whole = draw(everybody)
        moved += [np.linalg.norm(whole - draw([j for j in everybody if j != i])) / C
                  for i in everybody]  # fmt: skip
    assert 1.2 < max(moved) <= 2.0
    experiment = product.by_example(**BY_EXAMPLE, micro_batch=4)
    assert product.sensitivity_of(experiment) == 2 * 0.7


@pytest.mark.parametrize("method", ["SGD", "AdaS", "DP-SGD", "AdaDPS"])
def test_toy(method):
    """The data number for number, and five steps of each of the four methods."""
    data, iterates, batches, noise = product.toy(method, 5)
    rng = np.random.RandomState(666)
    x, y, scale = adadps.toy(
        np.stack([rng.random_sample(1000) for _ in range(500)], axis=1), rng.normal(0, 0.01, 1000)
    )
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_allclose(data.y, y, rtol=1e-12)
    assert (x.sum(), round(y.mean(), 6)) == (49372, 4.916045)

    def grad(w, rows):
        return x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)

    rate = {"SGD": 0.03, "AdaS": 0.003, "DP-SGD": 0.1, "AdaDPS": 0.2}[method]
    private, adaptive = method in ("DP-SGD", "AdaDPS"), method in ("AdaS", "AdaDPS")
    found = adadps.dp_sgd(
        iterates[0], grad, [[np.array([i]) for i in batch] for batch in batches],
        [-z for z in noise] if private else [0.0] * 5, C=0.5 if private else np.inf, alpha=rate,
        b=8, A=scale + 1e-3 if adaptive else 1.0,
    )  # fmt: skip
    np.testing.assert_allclose(iterates[1:], found[:-1], rtol=1e-5, atol=1e-6)
