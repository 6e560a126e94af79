"""Rows of sphere noise: nothing below float32's last bit tells one sum from another."""

import math
from itertools import islice

import numpy as np
import pytest

from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from simulations.linear_models.perturbation import SphereRows

N, WIDTH = 4000, 4
HERE, THERE = np.full(WIDTH, 0.3), np.array([0.8, 0.3, 0.3, 0.3])
TEMPLATE = {"w": np.zeros(WIDTH, np.float32)}


def released(total, epsilon, key):
    rows = SphereRows(epsilon=epsilon)
    found = []
    for drawn in islice(rows.draws(template=TEMPLATE, sensitivity=0.5, key=key), N):
        sums = PartialSum(total={"w": total.copy()}, num_users=1)
        found.append(rows.release(sums, drawn, 1.0)["w"])
    return np.array(found)


def may_come_from(values, total):
    """Of which values float32 noise on this very sum would make them."""
    near = (values.astype(np.float64) - total).astype(np.float32)
    found = np.zeros(values.shape, bool)
    for noise in (near, *(np.nextafter(near, np.float32(to)) for to in (np.inf, -np.inf))):
        found |= (total + noise.astype(np.float64)).astype(np.float32) == values
    return found.all(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 0.1])
def test_a_release_does_not_say_of_which_sum_it_is(epsilon):
    """4,000 releases of each of two sums that are Δ apart: those that float32 noise on a sum could
    not be are no rarer of that very sum, by e^ε and five standard errors (false alarms < 1e-6)."""
    values = [released(total, epsilon, Key.simulation(n)) for n, total in enumerate((HERE, THERE))]
    for total in (HERE, THERE):
        shares = [1.0 - float(may_come_from(found, total).mean()) for found in values]
        variances = [share * (1.0 - share) / N for share in shares]
        for one, other in ((0, 1), (1, 0)):
            error = math.sqrt(variances[one] + math.exp(2 * epsilon) * variances[other])
            assert shares[one] <= math.exp(epsilon) * shares[other] + 5 * error


def test_on_a_grid_it_is_rounded_to_it_and_the_answer_is_of_float32():
    rows, key, step = SphereRows(epsilon=1.0), Key.simulation(0), 2.0**-20
    drawn = next(rows.draws(template=TEMPLATE, sensitivity=0.5, key=key))
    whole = PartialSum(total={"w": np.full(WIDTH, 3, np.int64)}, num_users=1, granularity=step)
    found = rows.release(whole, drawn, 0.5)
    values = found["w"].astype(np.float64)
    assert found["w"].dtype == np.float32
    assert np.array_equal(np.rint(values / (0.5 * step)), values / (0.5 * step))
    assert values == pytest.approx(0.5 * (3 * step + drawn["w"]), abs=step)
