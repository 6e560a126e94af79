"""Laws of noise: its scale, its shape, and that no two draws have anything in common.

All keys are fixed, so nothing here flakes. Each statistical test says its sample size and the
false-alarm rate for a fresh key, and the test of the scale must also reject a scale that is wrong
by one per cent either way.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedpriv import tree
from fedpriv.mechanisms import Clip, Normalise
from fedpriv.mechanisms.gaussian import gaussian
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tree import RowSparse
from tests.harness.refusals import refuses
from tests.laws.bounds.bounded import released
from tests.privacy.costing import cohort_plan

N = 1_000_000
ALPHA = 1e-6
LIMIT = stats.norm.isf(ALPHA / 2)
SPLITS = {
    "one": {"w": (N,)},
    "matrix": {"w": (1000, 999), "b": (1000,)},
    "many": {f"t{i:04d}": (10, 10) for i in range(10_000)},
    "uneven": {"a": (1,), "b": (N - 101,), "c": (10, 10), "empty": (0, 4)},
}
MODES = ("simulation", "secure")


def template(shapes):
    return {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}


def key(mode="simulation", number=0):
    return Key.from_bytes(Key.simulation(number).to_bytes(), mode).fold("noise")


def flat(noise):
    return np.concatenate([t.reshape(-1).astype(np.float64) for t in noise.values()])


def has_variance(sample, stddev):
    """Two-sided chi-squared test of the variance around 0 at α = 1e-6."""
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], sample.size) * stddev**2
    return low < float(sample @ sample) < high


class TestScale:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("split", SPLITS)
    def test_variance(self, mode, split):
        """n = 1e6, α = 1e-6: 1 % more or less noise is rejected whatever the split."""
        stddev = 0.37
        sample = flat(gaussian(key(mode), template(SPLITS[split]), stddev))
        assert sample.size == N
        assert has_variance(sample, stddev)
        assert not has_variance(sample, stddev * 1.01)
        assert not has_variance(sample, stddev * 0.99)
        assert not has_variance(sample * 1.01, stddev)
        assert not has_variance(sample * 0.99, stddev)
        assert abs(sample.mean()) < LIMIT * stddev / math.sqrt(N)

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", MODES)
    def test_shape(self, mode):
        """n = 2e5, Kolmogorov-Smirnov at α = 1e-6; scale 5 % off and a uniform are rejected."""
        n = 200_000
        sample = flat(gaussian(key(mode, 1), template({"a": (n - 99,), "b": (9, 11)}), 3.0))
        right = stats.norm(0, 3.0)
        assert stats.kstest(sample, right.cdf).pvalue > ALPHA
        for wrong in (sample * 1.05, sample * 0.95, sample + 0.1):
            assert stats.kstest(wrong, right.cdf).pvalue < ALPHA
        uniform = (right.cdf(sample) - 0.5) * 6 * math.sqrt(3)  # of the same variance
        assert stats.kstest(uniform, right.cdf).pvalue < ALPHA

    def test_every_tensor_has_the_same_stddev_however_large_it_is(self):
        """Ten tensors of 100 to 1e6, chi-squared each: one false alarm in 1e5 fresh keys."""
        sizes = np.geomspace(100, N, 10).astype(int)
        noise = gaussian(key(), template({f"t{size}": (size,) for size in sizes}), 0.5)
        for tensor in noise.values():
            assert has_variance(tensor.astype(np.float64), 0.5)

    @pytest.mark.parametrize("bound", [Clip, Normalise])
    @pytest.mark.parametrize("cohort", [1, 20.0, 400])
    def test_what_a_round_releases(self, bound, cohort):
        """n = 1e6, α = 1e-6: stddev is multiplier x bound on the sum, over the cohort, once."""
        c, sigma = 0.7, 1.3
        plan = cohort_plan(
            num_users=400, expected_cohort_size=cohort, num_rounds=1, noise="gaussian",
            bound="clip" if bound is Clip else "normalise", noise_multiplier=sigma, delta=1e-3,
            l2_bound=bound(l2_clip_norm=c).l2_bound,
        )  # fmt: skip
        params = {n: np.zeros(s, np.float32) for n, s in SPLITS["matrix"].items()}
        nothing = PartialSum(total=tree.zeros(params), num_users=0, l2_bound=c)
        sample = flat(released(plan, nothing, key(), params=params).params)
        assert has_variance(sample, c * sigma / cohort)
        assert not has_variance(sample, c * sigma / cohort * 1.01)
        assert not has_variance(sample, c * sigma / cohort * 0.99)

    def test_none_is_exactly_none(self):
        noise = gaussian(key(), template(SPLITS["matrix"]), 0.0)
        assert all(not t.any() and t.dtype == np.float32 for t in noise.values())

    @pytest.mark.parametrize("stddev", [-1.0, -1e-4, math.nan, math.inf, 1e-31, 1e-30, 1e30])
    def test_a_stddev_that_cannot_be_kept_is_refused(self, stddev):
        with refuses(ValueError, stddev):
            gaussian(key(), template({"w": (3,)}), stddev)


def are_unrelated(draws):
    """Whether no two of draws of 20,000 correlate by 7 / sqrt(n) or more."""
    correlation = np.corrcoef(np.stack(draws))
    np.fill_diagonal(correlation, 0.0)
    return np.abs(correlation).max() < 7 / math.sqrt(20_000)


class TestIndependence:
    def test_rounds_and_attempts(self):
        """60 draws of 20 000, all 1770 pairs: |r| above 7 / sqrt(n) once in 2e8 sets."""
        keys = [key().fold(r).fold(a) for r in range(1, 21) for a in range(1, 4)]
        draws = np.stack([flat(gaussian(k, template({"w": (20_000,)}), 1.0)) for k in keys])
        assert len(np.unique(draws[:, :100])) > 5990
        assert are_unrelated(draws)

    def test_tensors_and_names(self):
        """All pairs of twelve equal-shaped tensors of 20 000: |r| above 7 / sqrt(n)."""
        names = ["a", "b", "ab", "kernel", "bias", "layer.0", "layer.1", "0", "1", "01", "A", ""]
        noise = gaussian(key(), template({name: (20_000,) for name in names}), 1.0)
        assert are_unrelated([noise[name] for name in names])

    def test_coordinates(self):
        """n = 1e6, lags 1, 2, 1000 of values and squares: |r| above 4.9 / sqrt(n) at 1e-6."""
        values = flat(gaussian(key(), template(SPLITS["matrix"]), 1.0))
        for sample in (values, values**2 - 1):
            for lag in (1, 2, 1000):
                r = float(sample[:-lag] @ sample[lag:]) / float(sample @ sample)
                assert abs(r) < LIMIT / math.sqrt(N - lag)

    def test_other_streams_of_the_same_root(self):
        root = Key.simulation(0)
        noise = flat(gaussian(root.fold("noise").fold(1).fold(1), template({"w": (20_000,)}), 1.0))
        keys = [root.fold(word).fold(1).fold(1) for word in ("cohort", "users", "init")]
        assert are_unrelated([noise, *(key.normal((20_000,), np.float64) for key in keys)])


class TestPurity:
    @pytest.mark.parametrize("mode", MODES)
    def test_the_key_decides_and_nothing_else(self, mode):
        shapes = template(SPLITS["uneven"])
        first = gaussian(key(mode), shapes, 2.0)
        np.random.seed(0)
        torch.manual_seed(0)
        second = gaussian(key(mode), shapes, 2.0)
        np.random.seed(1)
        third = gaussian(key(mode), dict(reversed(shapes.items())), 2.0)
        for name in shapes:
            np.testing.assert_array_equal(first[name], second[name])
            np.testing.assert_array_equal(first[name], third[name])
            assert first[name].dtype == np.float32
            assert first[name].shape == shapes[name].shape
            assert not np.shares_memory(first[name], second[name])

    def test_the_global_generators_are_left_alone(self):
        np.random.seed(3)
        torch.manual_seed(3)
        numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
        gaussian(key(), template(SPLITS["matrix"]), 1.0)
        assert (np.random.get_state()[1] == numpy_state).all()
        assert torch.equal(torch.get_rng_state(), torch_state)

    def test_it_scales_with_stddev_exactly(self):
        one, four = (gaussian(key(), template({"w": (1000,)}), s)["w"] for s in (1.0, 4.0))
        np.testing.assert_array_equal(four, one * np.float32(4))

    def test_a_row_sparse_template_gets_noise_everywhere(self):
        sparse = RowSparse(rows=np.array([1]), values=np.ones((1, 4), np.float32), num_rows=50)
        noise = gaussian(key(), {"w": sparse}, 1.0)["w"]
        assert noise.shape == (50, 4) and np.abs(noise).min() > 0
