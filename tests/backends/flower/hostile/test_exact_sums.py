"""Where sums are exact, whole numbers on the round's grid are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedpriv.backends.flower.bounded_sum import BoundedSum
from fedpriv.backends.flower.client import Host
from tests.backends.flower.hostile.payloads import (
    BIAS,
    BOUND,
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
    report,
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


NO_GRID: dict[str, object] = {
    "missing": None,
    "NaN": np.nan,
    "infinity": np.inf,
    "negative": -EXACT.granularity,
    "zero": 0.0,
    "a word": str(EXACT.granularity),
    "bytes": b"1",
    "a whole number": 1,
    "truth": True,
    "a list": [EXACT.granularity],
}


@pytest.mark.parametrize("granularity", NO_GRID.values(), ids=NO_GRID)
def test_an_exact_sum_without_a_grid_contributes_nothing(stub, granularity):
    tamper = sends(total=whole(), report=exact_report(granularity=granularity))
    found, moved, counts = run(stub, tamper, bound=EXACT)
    assert moved == 0.0 and found.num_failed == 1
    assert counts == {"malformed": 1}


OTHER_GRIDS: dict[str, float] = {
    "finer": EXACT.granularity / 256,
    "coarser": EXACT.granularity * 256,
    "the last bit": float(np.nextafter(EXACT.granularity, 1.0)),
    "tiny": 5e-324,
    "huge": 1.7e308,
}


@pytest.mark.parametrize("granularity", OTHER_GRIDS.values(), ids=OTHER_GRIDS)
def test_a_sum_on_another_grid_contributes_nothing_and_both_granularities_are_said(
    stub, caplog, granularity
):
    tamper = sends(total=whole(), report=exact_report(granularity=granularity))
    found, moved, counts = run(stub, tamper, bound=EXACT)
    assert moved == 0.0 and found.num_failed == 1
    assert counts == {"other-grid": 1}
    said = (
        f"rounds to multiples of {granularity!r}, this round to multiples of {EXACT.granularity!r}"
    )
    assert caplog.text.count(said) == 1 and "the same version" in caplog.text


def test_a_node_whose_code_rounds_on_another_grid_is_refused(stub, monkeypatch):
    """Its own bound is honest; only a constant of its version differs from the server's."""

    def rounded_by_another_version(request, reply):
        with monkeypatch.context() as other:
            other.setattr("fedpriv.mechanisms.bounds.BITS", 16)
            task = stub.TinyTags()
            again = Message(RecordDict(dict(request.content)), HOSTILE, "train")
            theirs = Host.of(
                task, task.trainer(SCHEDULE, {}), partition=HOSTILE - 101, num_partitions=12
            ).train(again)
        assert theirs.content["report"]["granularity"] == EXACT.granularity * 256
        return [Message(theirs.content, reply_to=request)]

    found, moved, counts = run(stub, rounded_by_another_version, bound=EXACT)
    assert moved == 0.0 and found.num_failed == 1
    assert counts == {"other-grid": 1}


def test_a_grid_where_floats_are_summed_contributes_nothing(stub):
    found, moved, counts = run(stub, sends(total=arrays(), report=exact_report()))
    assert moved < 1e-7 and found.num_failed == 1
    assert counts == {"malformed": 1}


def test_more_users_than_the_integers_hold_are_refused(monkeypatch):
    monkeypatch.setattr("fedpriv.sums._USERS_IN_INT64", 5)
    template = {"kernel": np.zeros((WORDS, TAGS), np.float32), "bias": BIAS}
    content = RecordDict({"total": whole(), "report": exact_report()})
    adds = BoundedSum(
        params=template,
        limit=BOUND.sum_limit,
        granularity=EXACT.granularity,
        round_num=4,
        attempt=2,
    )
    adds.add(content, num_users=5)
    with pytest.raises(ValueError, match="6 users of up to 2"):
        adds.add(content, num_users=1)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_whole_numbers_contribute_nothing_to_a_sum_of_floats(stub, kind):
    found, moved, counts = run(stub, sends(total=whole(UNITS.astype(kind)), report=report()))
    assert moved < 1e-7 and found.num_failed == counts["malformed"] == 1
