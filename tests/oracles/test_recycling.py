"""The product against the aggregates of checkpoints in plain NumPy, on its own draws."""

import numpy as np
import pytest
from scipy.stats import t as student

from tests.oracles import adadps, product, recycling

BY_USER = {"rounds": 7, "cohort": 4.0, "noise_multiplier": 0.5, "l2_clip_norm": 0.4,
           "local.learning_rate": 0.3, "local.batch_size": 3}  # fmt: skip
KINDS = {
    "ema": ({"aggregate": "ema", "ema_decay": 0.7}, lambda ts: recycling.ema(ts, 0.7)),
    "ema, warm-up": ({"aggregate": "ema", "ema_decay": 0.7, "ema_warmup": True},
                     lambda ts: recycling.ema(ts, 0.7, warmup=True)),
    "upa": ({"aggregate": "upa", "aggregate.k": 3}, lambda ts: recycling.upa(ts, 3)),
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
        at, product.users_gradient, [cohort], [noise], A=1.0, where="none", C=0.4, eta=0.3, m=2.0,
        server=lambda mean, memory: (mean, memory),
    )  # fmt: skip
    return moved - at


@pytest.mark.parametrize("noise", ["tree", "banded", "blt"])
def test_dp_ftrl(noise):
    start, played = product.play(product.by_user(
        rounds=6, noise=noise, noise_multiplier=0.5, l2_clip_norm=0.4, sampling="separated",
        cohort=2.0, min_separation=2, server="ftrl", exact_sum=False,
        **{"server.learning_rate": 0.7, "local.learning_rate": 0.3, "local.batch_size": 3},
    ))  # fmt: skip
    cohorts, rows = product.cohorts_of(played), product.noise_of(played)
    found = recycling.ftrl(
        product.flat(start), lambda at, t: summed(at, cohorts[t], 0.0 * at),
        np.cumsum(rows, axis=0) / 2.0, rate=0.7, momentum=0.9,
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
