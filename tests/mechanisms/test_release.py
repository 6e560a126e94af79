"""What a Gaussian releases: the sum and the noise that was drawn, once each, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.mechanisms.gaussian import Gaussian, Unprotected, gaussian
from fedpriv.mechanisms.rounded_gaussian import LARGEST_SCALE, grid_noise
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tree import RowSparse
from tests.harness.refusals import refuses

KEY = Key.from_bytes(Key.simulation(9).to_bytes(), "secure")
STEP, SHARE = 2.0**-20, 0.125
TEMPLATE = {"b": np.zeros(3, np.float32), "w": np.zeros((4, 2), np.float32)}
WHOLE = {
    "b": np.array([2**30, -7, 0], np.int64),
    "w": RowSparse(rows=np.array([1, 3]), values=np.array([[5, -6], [7, 2**29]]), num_rows=4),
}
DENSE = {
    "b": WHOLE["b"],
    "w": np.array([[0, 0], [5, -6], [0, 0], [7, 2**29]], np.int64),
}
NOISE = Gaussian(noise_multiplier=1.5)
ON_GRID = PartialSum(total=WHOLE, num_users=5, granularity=STEP)


def is_mean(released, expected):
    """Compare with float32 of exact numbers; both are single roundings, so to the bit."""
    assert set(released) == set(expected)
    for name, numbers in expected.items():
        assert released[name].dtype == np.float32
        np.testing.assert_array_equal(released[name], numbers.astype(np.float32))


def test_on_a_grid():
    (drawn,) = NOISE.draws(template=TEMPLATE, sensitivity=2.0, granularity=STEP, key=KEY)
    same = grid_noise(KEY, TEMPLATE, stddev=3.0, granularity=STEP)
    for name, numbers in same.items():
        np.testing.assert_array_equal(drawn[name], numbers)
    expected = {name: (DENSE[name] + drawn[name]) * (STEP * SHARE) for name in DENSE}
    is_mean(NOISE.release(ON_GRID, drawn, SHARE), expected)
    # Whole numbers of either width, and columns of a larger array.
    narrow = {name: (tensor % 2**20).astype(np.int32) for name, tensor in DENSE.items()}
    narrow["w"] = np.asfortranarray(narrow["w"])
    expected = {name: (narrow[name] + drawn[name]) * (STEP * SHARE) for name in DENSE}
    is_mean(NOISE.release(replace(ON_GRID, total=narrow), drawn, SHARE), expected)


def test_sums_of_floats_get_the_noise_as_it_is():
    total = {name: tensor * 0.3 for name, tensor in DENSE.items()}
    for privatizer, stddev in ((NOISE, 3.0), (Unprotected(stddev=0.7), 0.7), (Unprotected(), 0.0)):
        (drawn,) = privatizer.draws(template=TEMPLATE, sensitivity=2.0, key=KEY)
        same = gaussian(KEY, TEMPLATE, stddev)
        assert all(same[name].any() == (stddev > 0) for name in same)
        expected = {name: (total[name] + same[name].astype(np.float64)) * SHARE for name in total}
        is_mean(privatizer.release(PartialSum(total=total, num_users=5), drawn, SHARE), expected)


def test_noise_on_a_grid_is_refused_by_a_sum_of_floats():
    drawn = grid_noise(KEY, TEMPLATE, stddev=3.0, granularity=STEP)
    with pytest.raises(ValueError):
        NOISE.release(PartialSum(total=DENSE, num_users=5), drawn, SHARE)


def test_more_users_than_float64_adds_up_are_refused():
    """2^28 users of 2^24 steps each and noise of 2^45 are within 2^53, one user more is not."""
    drawn = {name: np.zeros(array.shape, np.int64) for name, array in DENSE.items()}
    most = 2**28
    assert most * 2**24 + 32 * LARGEST_SCALE < 2**53
    NOISE.release(replace(ON_GRID, num_users=most), drawn, SHARE)
    with refuses(ValueError, most, most + 1):
        NOISE.release(replace(ON_GRID, num_users=most + 1), drawn, SHARE)
