"""Answers may lie anywhere in a message, and take no memory that stays."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from tests.backends.flower.hostile.payloads import (
    BOUND,
    EXACT,
    HIGHEST,
    LOWEST,
    adding,
    exact_report,
    header,
    report,
)

BIG = {"kernel": np.zeros((5000, 20), np.float32), "bias": np.zeros(20, np.float32)}


def oddly_placed(array: np.ndarray) -> Array:
    """The same array behind an npy header of odd length: its numbers are not aligned."""
    text = f"{{'descr': {array.dtype.str!r}, 'fortran_order': False, 'shape': {array.shape}, }}"
    text += " " * (len(text) % 2) + "\n"
    data = header(text, body=array.tobytes())
    assert (len(data) - array.nbytes) % 2 == 1
    return Array(dtype=str(array.dtype), shape=array.shape, stype="numpy.ndarray", data=data)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("sparse_too", [False, True])
@pytest.mark.parametrize("value", [1, 9])
def test_numbers_may_lie_anywhere_in_a_message(kind, sparse_too, value):
    """Compiled loops add them and measure them all the same."""
    exact = np.dtype(kind).kind == "i"
    value = value if exact else value * 1e-4
    values, found = np.full((5000, 20), value, kind), []
    for place in (Array, oddly_placed):
        total = {"dense/bias": place(np.zeros(20, kind)), "dense/kernel": place(values)}
        if sparse_too:
            del total["dense/kernel"]
            total |= {"rows/kernel": place(np.arange(5000)), "values/kernel": place(values)}
        adds = adding(EXACT if exact else BOUND, BIG)
        said = exact_report() if exact else report()
        adds.add(RecordDict({"total": ArrayRecord(total), "report": said}), num_users=1)
        assert not adds.dropped
        found.append(adds.result(1).total["kernel"])
    assert found[0].any() and np.array_equal(found[0], found[1])


@pytest.mark.parametrize(
    "values",
    [
        np.full((5000, 20), LOWEST),
        np.full((5000, 20), HIGHEST),
        np.full((5000, 20), 2**31 - 1, np.int32),
        np.full((5000, 20), 5, np.int32),
        np.full((5000, 20), 1, np.int8),
        np.full((5000, 20), 0.1),
    ],
    ids=["lowest", "highest", "int32", "honest", "int8", "floats"],
)
def test_memory_does_not_grow_with_answers(values):
    content = RecordDict({
        "total": ArrayRecord({
            "dense/bias": Array(np.zeros(20, np.int32)), "dense/kernel": Array(values)
        }),
        "report": exact_report(),
    })  # fmt: skip
    adds, held = adding(EXACT, BIG), []
    adds.add(content, num_users=1)  # compiled code is loaded here
    tracemalloc.start()
    for _ in range(12):
        adds.add(content, num_users=1)
        held.append(tracemalloc.get_traced_memory()[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(held) < 100_000  # the sum itself was there before
    assert peak < 4 * 8 * values.size  # a few arrays of 64-bit numbers, one answer at a time
