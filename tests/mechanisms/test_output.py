"""Noise on a result: its law is the reference's, and a replayed release is the identical one."""

import math

import numpy as np
import pytest
from scipy import stats

from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.perturbation import OutputGaussian, Sphere, gamma
from fedpriv.privacy.accounting import calibrate
from fedpriv.rng import Key
from fedpriv.sums import PartialSum

KEY = Key.simulation(3)


def noise(privatizer, size, sensitivity, key):
    template = {"weight": np.zeros(size - 1, np.float32), "bias": np.zeros(1, np.float32)}
    (drawn,) = privatizer.draws(template=template, sensitivity=sensitivity, key=key)
    return np.concatenate([drawn["weight"], drawn["bias"]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "sensitivity", "epsilon_", "each"),
    [(50, 0.02, 0.1, 2.04), (50, 0.02, 1.0, 0.0204), (10, 0.4, 1.0, 1.76)],
)
def test_lengths_and_coordinates(size, sensitivity, epsilon_, each):
    """3,000 draws: lengths are Gamma by KS at 1e-6; variance and directions."""
    noisy = Sphere(epsilon=epsilon_)
    found = np.stack([noise(noisy, size, sensitivity, KEY.fold(n)) for n in range(3000)])
    assert found.var() == pytest.approx(each, rel=0.05)
    norms = np.linalg.norm(found, axis=1)
    assert stats.kstest(norms, stats.gamma(size, scale=sensitivity / epsilon_).cdf).pvalue > 1e-6
    directions = found / norms[:, None]
    assert np.abs(directions.mean(axis=0)).max() < 5 / math.sqrt(3000 * size) * 1.2


def test_a_gamma_of_many_is_drawn_in_blocks():
    assert gamma(KEY, (1 << 20) + 3) == pytest.approx(1 << 20, rel=5e-3)


@pytest.mark.parametrize(
    ("sensitivity", "epsilon_", "delta", "analytic"),
    [(0.02, 0.5, 1e-6, 0.161152), (0.4, 0.8, 1e-6, 2.079233)],
)
def test_the_gaussian_is_calibrated_exactly(sensitivity, epsilon_, delta, analytic):
    """The analytic Gaussian of Balle and Wang 2018, never less; the classic one is 30 % more."""
    sigma = calibrate(
        lambda found: Event(kind="gaussian", noise_multiplier=found),
        1,
        target_epsilon=epsilon_,
        delta=delta,
        relation="add-remove",
    )
    assert analytic * (1 - 1e-6) <= sigma * sensitivity <= analytic * 1.002
    classic = math.sqrt(2 * math.log(1.25 / delta)) / epsilon_ * sensitivity
    assert classic > 1.2 * analytic


@pytest.mark.parametrize("privatizer", [Sphere(epsilon=1.0), OutputGaussian(noise_multiplier=1.0)])
@pytest.mark.parametrize("key", [KEY, Key.from_bytes(bytes(32), "secure")])
def test_the_same_key_gives_the_identical_release(privatizer, key):
    assert privatizer.after_crash == "replay"
    first, second = (noise(privatizer, 8, 0.1, key) for _ in range(2))
    assert np.array_equal(first, second)
    total = PartialSum(total={"w": np.arange(4.0)}, num_users=9)
    released = privatizer.release(total, {"w": np.ones(4)}, 1 / 9)
    assert released["w"].dtype == np.float32 and released["w"].tolist() == [1, 2, 3, 4]
