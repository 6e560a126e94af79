"""Uncertainty from checkpoints: the vectors of the notes, and the laws behind the formulas."""

import math

import numpy as np
import pytest

from fedpriv.checkpoints.uncertainty import (
    contraction,
    lag_autocorrelation,
    mean_factor,
    spaced_rounds,
    steady_square_sum,
    uncertainty,
    variance_ratio,
    waiting,
)
from tests.harness.refusals import refuses

VALUES = (0.62, 0.58, 0.65, 0.60, 0.55)
#: Two-sided, of every test below that draws: one in a million seeds would fail.
QUANTILE = 4.891638


def chains(a: float, spacing: int, k: int, number: int, seed: int) -> np.ndarray:
    """AR(1) in its stationary law with variance 1, every `spacing`-th value: `(k, number)`."""
    rng, factor = np.random.default_rng(seed), a**spacing
    out = np.empty((k, number))
    out[0] = rng.normal(size=number)
    for i in range(1, k):
        out[i] = factor * out[i - 1] + math.sqrt(1 - factor**2) * rng.normal(size=number)
    return out


class TestVectors:
    def test_five_values(self) -> None:
        found = uncertainty(VALUES)
        assert float(found.mean) == pytest.approx(0.6, abs=1e-12)
        assert float(found.variance) == pytest.approx(0.00145, abs=1e-12)
        assert float(found.stddev) == pytest.approx(0.038079, abs=5e-7)
        assert found._quantile == pytest.approx(2.776445, abs=5e-7)
        assert float(found.half_width) == pytest.approx(0.047281, abs=5e-7)
        assert 2 * float(found.half_width) == pytest.approx(0.094562, abs=1e-6)
        assert float(found.draw_half_width) == pytest.approx(0.105724, abs=5e-7)
        low, high = found.variance_interval
        assert (float(low), float(high)) == pytest.approx((0.000520, 0.011973), abs=5e-7)

    def test_the_square_sum_of_a_moving_average_that_forgot_its_start(self) -> None:
        weights = 0.1 * 0.9 ** np.arange(400)
        assert steady_square_sum(0.9) == pytest.approx(float(weights @ weights))
        assert steady_square_sum(0.0) == 1.0  # the newest alone: one draw


class TestLaws:
    def test_the_variance_of_the_mean_of_correlated_draws(self) -> None:
        """40,000 chains of 10 at a = .7: relative standard error √(2/40,000) = .0071."""
        number, k, a = 40_000, 10, 0.7
        found = float(chains(a, 1, k, number, seed=2).mean(axis=0).var())
        expected = mean_factor(a, k)
        assert abs(found / expected - 1) < QUANTILE * math.sqrt(2 / number)
        assert mean_factor(0.0, k) == pytest.approx(1 / k)

    @pytest.mark.parametrize("a", [0.0, 0.5, 0.8])
    def test_the_autocorrelation_of_many_statistics_is_found(self, a: float) -> None:
        """Pooled over 20,000 chains of 20; the bias that is left is of order 1/k²."""
        assert lag_autocorrelation(chains(a, 1, 20, 20_000, seed=3)) == pytest.approx(a, abs=0.06)

    @pytest.mark.parametrize("a", [0.5, 0.8])
    def test_the_correction_undoes_most_of_it(self, a: float) -> None:
        found = uncertainty(chains(a, 1, 20, 20_000, seed=4))
        plain, corrected = float(found.variance.mean()), float(found.corrected_variance.mean())
        assert abs(corrected - 1) < 0.4 * abs(plain - 1) and corrected > plain

    def test_intervals_of_mean_and_variance_cover_as_they_say(self) -> None:
        """20,000 chains of 5 independent draws: coverage .95 with standard error .0015."""
        number = 20_000
        found = uncertainty(chains(0.0, 1, 5, number, seed=5))
        low, high = found.variance_interval
        for inside in (np.abs(found.mean) <= found.half_width, (low <= 1) & (high >= 1)):
            assert abs(inside.mean() - 0.95) < QUANTILE * math.sqrt(0.95 * 0.05 / number)


class TestFewAndOdd:
    def test_too_few_for_an_autocorrelation(self) -> None:
        found = uncertainty([1.0, 2.0, 4.0])
        assert math.isnan(found.autocorrelation)
        assert float(found.corrected_variance) == float(found.variance)
        assert float(found.corrected_half_width) == pytest.approx(float(found.half_width))

    @pytest.mark.parametrize("values", [[], [1.0], 3.0, [1.0, float("nan")]], ids=str)
    def test_what_has_no_variance_is_refused(self, values) -> None:
        with pytest.raises(ValueError):
            uncertainty(values)


class TestRounds:
    def test_the_newest_that_are_kept(self) -> None:
        kept = (10, 20, 30, 31, 32, 33, 34, 35)
        assert spaced_rounds(kept, 3, spacing=1) == (33, 34, 35)
        assert spaced_rounds(kept, 3, spacing=10) == (10, 20, 30)
        assert spaced_rounds(kept, 3, spacing=2) == (31, 33, 35)
        assert spaced_rounds(kept, 7, spacing=1) == ()
        assert spaced_rounds(range(21), 2, spacing=10, burn_in=9) == (10, 20)
        assert spaced_rounds(range(21), 2, spacing=10, burn_in=10) == ()


class TestWaiting:
    @pytest.mark.parametrize(("rate", "expected"), [(0.5, 0.95), (1.9, 0.9)])
    def test_the_steeper_side_decides_the_contraction(self, rate, expected) -> None:
        assert contraction(rate, 0.1, 1.0) == pytest.approx(expected)

    @pytest.mark.parametrize("k", [2, 5, 20])
    @pytest.mark.parametrize("rho", [0.0, 0.5, 0.95, 0.999])
    def test_it_is_the_shortest_that_keeps_what_it_says(self, rho: float, k: int) -> None:
        found = waiting(rho, k, shortfall=0.05, distance=10.0, bias=0.1)

        def short(a: float) -> float:
            return 1 - variance_ratio(a, k) / (k * mean_factor(a, k))

        assert short(rho**found.spacing) <= 0.05 and found.bias <= 0.1 * (1 + 1e-9)
        assert variance_ratio(rho**found.spacing, k) >= 0.95  # S itself is short by less
        if found.spacing > 1:
            assert short(rho ** (found.spacing - 1)) > 0.05
        assert 10.0 * rho ** (found.burn_in - 1) > 0.1 if found.burn_in and rho else True
        assert found.rounds == found.burn_in + k * found.spacing

    @pytest.mark.parametrize(
        ("call", "names"),
        [
            (lambda: contraction(2.5, 0.1, 1.0), ("learning-rate 2.5", 2)),
            (lambda: contraction(0.5, 2.0, 1.0), (1, "strong-convexity 2")),
            (lambda: contraction(0.5, 0.0, 1.0), ("strong-convexity",)),
            (lambda: waiting(1.0, 5), ("contraction",)),
            (lambda: waiting(0.5, 5, shortfall=0.0), ("shortfall",)),
            (lambda: waiting(0.5, 1), (1, 2)),
        ],
    )
    def test_what_does_not_mix_is_refused(self, call, names) -> None:
        with refuses(ValueError, *names):
            call()
