"""Exact sums longer than their users' bounds add nothing, and nothing overflows."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import RecordDict

from fedpriv import tree
from tests.backends.flower.hostile.messages import one_coordinate
from tests.backends.flower.hostile.payloads import (
    EXACT,
    HIGHEST,
    LOWEST,
    TAGS,
    TOP,
    WORDS,
    adding,
    exact_report,
    sends,
    summed,
    whole,
)


def length_squared(found) -> int:
    """Of a sum, in units: Python's integers."""
    tensors = tree.to_dense(found.total).values()
    assert all(tensor.dtype.kind == "i" for tensor in tensors)
    return sum(int(value) ** 2 for tensor in tensors for value in tensor.reshape(-1))


# Whole lengths by one more square than float64 can tell from the bound, and none more.
EDGES = [
    (1, {0: 2**24, 1: 0}, False), (1, {0: 2**24, 1: 1}, True), (1, {0: 2**24 - 1, 1: 5792}, False),
    (1, {0: 2**24 - 1, 1: 5793}, True), (100, {0: 100 * 2**24, 1: 1}, True),
    (100, {0: 100 * 2**24 - 1, 1: 57927}, True), (100, {0: 100 * 2**24 - 1, 1: 57926}, False),
    (2**15, {0: 2**39, 1: 1}, True), (2**15, {0: 2**39, 1: 0}, False),
    (2**25, {0: 2**49, 1: 1}, True), (2**25, {0: 2**49, 1: 0}, False),
]  # fmt: skip


@pytest.mark.parametrize(("num_users", "coordinates", "too_long"), EDGES)
def test_whole_numbers_are_held_to_the_bound_to_the_last_one(num_users, coordinates, too_long):
    kernel = np.zeros((WORDS, TAGS), np.int64)
    for place, value in coordinates.items():
        kernel.reshape(-1)[place] = value
    assert (sum(v * v for v in coordinates.values()) > (num_users * TOP) ** 2) == too_long
    adds = adding()
    content = RecordDict({"total": whole(kernel), "report": exact_report()})
    adds.add(content, num_users=num_users)
    assert adds.dropped == ({"too-long": 1} if too_long else {})


@pytest.mark.parametrize("kernel_units", [
    np.full((WORDS, TAGS), LOWEST), np.full((WORDS, TAGS), HIGHEST), one_coordinate(HIGHEST),
    one_coordinate(LOWEST), one_coordinate(TOP), one_coordinate(-TOP),
], ids=["lowest", "highest", "highest once", "lowest once", "bound", "minus bound"])  # fmt: skip
@pytest.mark.parametrize("num_nodes", [12, 3])
def test_nodes_that_conspire_do_not_overflow_the_sum(kernel_units, num_nodes):
    """Every node sends the same, so that a sum that wrapped around would change its sign."""
    sent = sends(total=whole(kernel_units), report=exact_report())
    tampered = {101 + number: sent for number in range(num_nodes)}
    found, _ = summed(tampered, num_nodes=num_nodes, bound=EXACT)
    total = tree.to_dense(found.total)["kernel"]
    if (kernel_units != 0).sum() == 1 and abs(int(kernel_units[7, 2])) == TOP:
        sign = int(np.sign(kernel_units[7, 2]))
        assert total[7, 2] == sign * num_nodes * TOP  # what nodes that are honest could send
        assert length_squared(found) == (num_nodes * TOP) ** 2
    else:
        assert length_squared(found) == 0


@pytest.mark.parametrize("value", [LOWEST, HIGHEST, TOP, -TOP])
@pytest.mark.parametrize("num_users", [1, 100])
def test_hundreds_of_answers_at_the_bound_do_not_overflow(value, num_users):
    """More than an int32 holds: 300 nodes at what their users may contribute at most."""
    adds = adding()
    sent = value if abs(value) > TOP else num_users * value
    content = RecordDict({"total": whole(one_coordinate(sent)), "report": exact_report()})
    for _ in range(300):
        adds.add(content, num_users=num_users)
    found = int(adds.result(300 * num_users).total["kernel"][7, 2])
    assert found == (300 * sent if abs(value) == TOP else 0)
    assert adds.dropped == ({} if abs(value) == TOP else {"too-long": 300})
