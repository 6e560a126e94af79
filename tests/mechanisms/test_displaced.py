"""Updates that are only checked: none is shortened, and their sums hang on no order."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.backends.flower.bounded_sum import BoundedSum
from fedpriv.backends.flower.messages import NodeRequest, answer
from fedpriv.mechanisms.bounds import Checked
from fedpriv.rng import Key
from fedpriv.sums import Block, PartialSum
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.bounded_sum import RowStack
from fedpriv.training.work import Attempt
from fedpriv.tree import RowSparse
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import Given, bounded, contributed

PARAMS = {"w": np.zeros((50, 4), np.float32)}


def update(rng, bound):
    """Coordinates of every size, from a hundredth of the bound to a 10^20th."""
    size = 10.0 ** rng.uniform(-20, -2, (50, 4)) * rng.choice([-1.0, 1.0], (50, 4))
    return {"w": (bound.l2_bound * size).astype(np.float32)}


def summed(bound, updates):
    users = {f"u{place}": one for place, one in enumerate(updates)}
    done = contributed(Given(), PARAMS, users, bound=bound)
    assert done.num_failed == 0
    return done.real()["w"]


@pytest.mark.slow
@pytest.mark.parametrize("l2_bound", [1e-25, 0.3, 1.0, 2.0, 1e6])
def test_a_sum_is_the_same_bits_in_any_order(l2_bound):
    rng, bound = np.random.default_rng(0), Checked(l2_bound=l2_bound)
    updates = [update(rng, bound) for _ in range(200)]
    found = summed(bound, updates)
    for _ in range(5):
        order = rng.permutation(200)
        assert summed(bound, [updates[place] for place in order]).tobytes() == found.tobytes()
    halves = summed(bound, updates[:90]) + summed(bound, updates[90:])
    assert halves.tobytes() == found.tobytes()
    naive = sum(one["w"].astype(np.float64) for one in updates)
    assert np.abs(naive - found).max() <= 200 * 2.0**-40 * l2_bound
    backwards = sum(one["w"].astype(np.float64) for one in reversed(updates))
    assert naive.tobytes() != backwards.tobytes()  # so would floats as they are


def test_rounding_moves_an_update_by_less_than_is_said_and_keeps_its_form():
    rng, bound = np.random.default_rng(1), Checked(l2_bound=1.7)
    dense = update(rng, bound)
    rows = np.array([3, 8])
    sparse = {"w": RowSparse(rows=rows, values=dense["w"][rows], num_rows=50)}
    once = {"w": RowStack.of(dense).multiples_of(bound.multiple_of).rows["w"][0]}
    assert once["w"].dtype == np.float32
    np.testing.assert_array_equal(bounded(bound, dense)["w"], once["w"])
    moved = tree.l2_norm({"w": once["w"].astype(np.float64) - dense["w"]})
    assert 0 < moved <= 0.5 * 2.0**-39 * bound.l2_bound * np.sqrt(200)
    np.testing.assert_array_equal(bounded(bound, once)["w"], once["w"])
    found = RowStack.of(sparse).multiples_of(bound.multiple_of).rows["w"]
    assert isinstance(found, Block) and np.array_equal(found.values, once["w"][rows])


def test_one_that_is_too_long_is_refused_and_none_is_shortened():
    bound = Checked(l2_bound=1.0)
    longest = {"w": np.full((50, 4), np.float32(1.0 / np.sqrt(200)))}
    assert bound.factors(np.array([0.0, 1.0, 1.0 + 2.0**-17])).tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(bounded(bound, longest)["w"], longest["w"], rtol=1e-6)
    with refuses(ValueError, 1):
        bounded(bound, tree.scale(longest, 1.001))
    for factor in (np.nan, np.inf):
        with refuses(ValueError, factor):
            bounded(bound, tree.scale(longest, factor))


@pytest.mark.parametrize("number", [1, 3])
def test_a_server_takes_the_longest_updates_as_they_are(number):
    """To float32's rounding: shortened, or dropped, one backend would end elsewhere."""
    bound = Checked(l2_bound=1.0)
    longest = {"w": np.full((50, 4), np.float32((1 + 2.0**-18) / np.sqrt(200)))}
    total = summed(bound, [longest] * number)
    users = tuple(f"u{place}" for place in range(number))
    request, attempt = SumRequest(params=PARAMS), Attempt(bound=bound, key=Key.simulation(0))
    node = NodeRequest(request=request, attempt=attempt, user_ids=users)
    sent = answer(node, PartialSum(total={"w": total}, num_users=number))
    added = BoundedSum(request=request, attempt=attempt)
    added.add(sent, num_users=number)
    assert not added.dropped
    assert added.result(number).total["w"].tobytes() == total.tobytes()
