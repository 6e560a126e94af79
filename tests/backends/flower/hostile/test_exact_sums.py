"""Where sums are exact, whole numbers on the round's grid are asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedpriv.backends.flower.client import Host
from fedpriv.sums import BITS
from tests.backends.flower.hostile.payloads import (
    BIAS,
    EXACT,
    HOSTILE,
    KERNEL,
    SCHEDULE,
    TAGS,
    UNITS,
    WORDS,
    Executed,
    arrays,
    exact_report,
    in_order,
    npy,
    raw,
    run,
    sends,
    some_rows,
    spoilt,
    whole,
)

NOT_WHOLE: dict[str, Callable[[], object]] = {
    **{
        str(np.dtype(kind)): lambda kind=kind: whole(UNITS.astype(kind))
        for kind in (
            np.int8, np.int16, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32,
            np.float64, np.longdouble, np.complex64, bool, ">i4", ">i8", "M8[s]", "m8[s]", "U3",
            "S4",
        )
    },
    "a bias of floats": lambda: whole(UNITS, BIAS),
    "NaN": lambda: whole(spoilt(np.nan)),
    "rows of floats": lambda: some_rows(in_order(1), KERNEL[:1]),
    "rows of bytes": lambda: some_rows(in_order(1), UNITS[:1].astype(np.int8)),
    "rows out of order": lambda: some_rows(in_order(5, 2), UNITS[:2]),
    "a row too far": lambda: some_rows(in_order(2, WORDS), UNITS[:2]),
    "transposed": lambda: whole(UNITS.T.copy()),
    "Fortran order": lambda: whole(np.asfortranarray(UNITS)),
    "structured": lambda: whole(np.zeros((WORDS, TAGS), [("a", "<i8")])),
    "pickled objects": lambda: whole(
        raw(npy(np.array([Executed()], object), allow_pickle=True), dtype="object", shape=(1,))
    ),
    "truncated": lambda: whole(raw(npy(UNITS)[:-1], dtype="int64")),
    "what floats would be": lambda: arrays(),
}  # fmt: skip


@pytest.mark.parametrize("make", NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_what_is_not_whole_contributes_nothing_to_an_exact_sum(stub, make):
    os.environ.pop("FEDPRIV_UNPICKLED", None)
    found, moved, counts = run(stub, sends(total=make(), report=exact_report()), bound=EXACT)
    assert moved == 0.0
    assert found.num_failed == 1 and found.granularity == EXACT.granularity
    assert counts["malformed"] == 1
    assert "FEDPRIV_UNPICKLED" not in os.environ


SIZE = EXACT.granularity
NO_GRID = [None, np.nan, np.inf, -SIZE, 0.0, str(SIZE), b"1", 1, True, [SIZE]]
OTHER_GRIDS = [SIZE / 256, SIZE * 256, float(np.nextafter(SIZE, 1.0)), 5e-324, 1.7e308]


@pytest.mark.parametrize("granularity", [*NO_GRID, *OTHER_GRIDS], ids=str)
def test_a_sum_on_no_grid_or_another_contributes_nothing(stub, caplog, granularity):
    tamper = sends(total=whole(), report=exact_report(granularity=granularity))
    found, moved, counts = run(stub, tamper, bound=EXACT)
    assert moved == 0.0 and found.num_failed == 1
    other = any(granularity is each for each in OTHER_GRIDS)
    assert counts == {"other-grid" if other else "malformed": 1}
    both = f"multiples of {granularity!r}, this round to multiples of {SIZE!r}"
    assert caplog.text.count(both) == other


def test_a_node_whose_code_rounds_on_another_grid_is_refused(stub, monkeypatch):
    """Its own bound is honest; only a constant of its version differs from the server's."""
    version = threading.local()

    class Bits(int):
        """16 in the node of another version; other threads read answers meanwhile."""

        def __neg__(self):
            return -16 if getattr(version, "other", False) else -int(self)

    monkeypatch.setattr("fedpriv.mechanisms.bounds.BITS", Bits(BITS))

    def rounded_by_another_version(request, reply):
        task = stub.TinyTags()
        again = Message(RecordDict(dict(request.content)), HOSTILE, "train")
        host = Host.of(task, task.trainer(SCHEDULE, {}), partition=HOSTILE - 101, num_partitions=12)
        version.other = True
        try:
            theirs = host.train(again)
        finally:
            version.other = False
        assert theirs.content["report"]["granularity"] == EXACT.granularity * 256
        return [Message(theirs.content, reply_to=request)]

    found, moved, counts = run(stub, rounded_by_another_version, bound=EXACT)
    assert moved == 0.0 and found.num_failed == 1
    assert counts == {"other-grid": 1}
