"""Losses within [0, C], on a grid; what is not finite is refused whole."""

import numpy as np
import pytest

from fedpriv.mechanisms import Capped
from fedpriv.sums import RunningSum
from tests.harness import toys_of_training
from tests.harness.refusals import refuses

BOUND = Capped(cap=3.0, num_coordinates=21)


def bounded(*losses):
    sent = {"losses": np.array(losses, np.float32)}
    return toys_of_training.bounded(BOUND, sent)["losses"]


def test_each_coordinate_is_capped_alone():
    found = bounded(*np.linspace(-2, 8, 21))
    assert found.min() == 0.0 and 2.999999 < found.max() <= 3.0
    inside = np.linspace(-2, 8, 21)
    between = (inside > 0) & (inside < 3)
    assert np.allclose(found[between], inside[between], atol=BOUND.granularity)
    steps = found / BOUND.granularity
    assert np.array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused_whole(odd):
    with pytest.raises(ValueError):
        bounded(*[1.0] * 20, odd)


def test_the_longest_vector_fits_the_grid_of_running_sums():
    for number in (1, 2, 21, 64, 1000):
        bound = Capped(cap=0.7, num_coordinates=number)
        running = RunningSum({"losses": np.zeros(number, np.float32)}, bound.granularity)
        longest = toys_of_training.bounded(bound, {"losses": np.full(number, 1e30, np.float32)})
        for _ in range(200):  # beyond what an int32 holds
            running.add(longest, 1.0)
        total = running.result()["losses"] * bound.granularity
        assert np.all(total <= 200 * 0.7) and np.all(total > 199.99 * 0.7)
        assert np.linalg.norm(total / 200) <= bound.l2_bound


@pytest.mark.parametrize("changes", [{"cap": 0.0}, {"cap": float("nan")}, {"num_coordinates": 0}])
def test_bad_numbers(changes):
    with refuses(ValueError, *changes):
        Capped(**{"cap": 1.0, "num_coordinates": 2, **changes})
