"""What one hostile node may send, and that it costs nobody but itself."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from fedpriv import tree
from tests.backends.flower.hostile.payloads import (
    BIAS,
    BOUND,
    EXACT,
    KERNEL,
    TAGS,
    WORDS,
    Executed,
    arrays,
    header,
    in_order,
    npy,
    raw,
    report,
    run,
    sends,
    spoilt,
    summed,
    whole,
)


def kernel(value: object) -> ArrayRecord:
    return arrays(**{"dense/kernel": value})


def sparse(rows: object, values: object) -> ArrayRecord:
    return arrays(**{"dense/kernel": None, "rows/kernel": rows, "values/kernel": values})


_F4 = "{'descr': '<f4', 'fortran_order': False, 'shape': (30, 4), }\n"
TOTALS: dict[str, Callable[[], object]] = {
    "NaN": lambda: kernel(spoilt(np.nan)),
    "infinity": lambda: kernel(spoilt(np.inf)),
    "minus infinity": lambda: arrays(**{"dense/bias": np.full(TAGS, -np.inf, np.float32)}),
    "NaN in float64": lambda: kernel(spoilt(np.nan).astype(np.float64)),
    "NaN in a sparse row": lambda: sparse(in_order(3), np.full((1, TAGS), np.nan, np.float32)),
    "transposed": lambda: kernel(KERNEL.T.copy()),
    "broadcastable": lambda: kernel(KERNEL[:1]),
    "scalar": lambda: kernel(np.float32(1)),
    "flat": lambda: kernel(KERNEL.reshape(-1)),
    "one axis more": lambda: kernel(KERNEL[None]),
    "too many rows": lambda: kernel(np.concatenate([KERNEL, KERNEL])),
    "no rows": lambda: kernel(KERNEL[:0]),
    "float16": lambda: kernel(KERNEL.astype(np.float16)),
    "longdouble": lambda: kernel(KERNEL.astype(np.longdouble)),
    "int64": lambda: kernel(KERNEL.astype(np.int64)),
    "complex": lambda: kernel(KERNEL.astype(np.complex64)),
    "bool": lambda: kernel(KERNEL > 0),
    "str": lambda: kernel(KERNEL.astype("U3")),
    "bytes": lambda: kernel(KERNEL.astype("S4")),
    "datetime": lambda: kernel(np.zeros((WORDS, TAGS), "M8[s]")),
    "structured": lambda: kernel(np.zeros((WORDS, TAGS), [("a", "<f4")])),
    "big endian": lambda: kernel(KERNEL.astype(">f4")),
    "Fortran order": lambda: kernel(np.asfortranarray(KERNEL)),
    "pickled objects": lambda: kernel(
        raw(npy(np.array([Executed()], object), allow_pickle=True), dtype="object", shape=(1,))
    ),
    "truncated": lambda: kernel(raw(npy(KERNEL)[:-1])),
    "trailing bytes": lambda: kernel(raw(npy(KERNEL) + b"\0")),
    "header only": lambda: kernel(raw(npy(KERNEL)[:128])),
    "half a header": lambda: kernel(raw(npy(KERNEL)[:40])),
    "no bytes": lambda: kernel(raw(b"")),
    "garbage": lambda: kernel(raw(b"\x80\x04garbage" * 9)),
    "an npz": lambda: kernel(raw(b"PK\x03\x04" + bytes(64))),
    "claims a terabyte": lambda: kernel(
        raw(header(_F4.replace("(30, 4)", "(274877906944,)")), shape=(274877906944,))
    ),
    "negative shape": lambda: kernel(raw(header(_F4.replace("(30, 4)", "(-30, -4)"),
                                                body=KERNEL.tobytes()))),
    "huge header": lambda: kernel(raw(header(_F4.replace("}", " " * 60_000 + "}"),
                                             body=KERNEL.tobytes()))),
    "header bomb": lambda: kernel(raw(header("(" * 900))),
    "header with code": lambda: kernel(raw(header("__import__('os').environ.clear()\n"))),
    "npy format 2.0": lambda: kernel(raw(header(_F4, version=b"\x02\x00", body=KERNEL.tobytes()))),
    "npy format 9.9": lambda: kernel(raw(header(_F4, version=b"\x09\x09", body=KERNEL.tobytes()))),
    "other serialisation": lambda: kernel(raw(npy(KERNEL), stype="torch.save")),
    "missing array": lambda: kernel(None),
    "no array": lambda: ArrayRecord(),
    "extra array": lambda: arrays(**{"dense/more": BIAS}),
    "renamed array": lambda: arrays(**{"dense/kernel": None, "dense/Kernel": KERNEL}),
    "no prefix": lambda: arrays(**{"dense/kernel": None, "kernel": KERNEL}),
    "dense and sparse": lambda: arrays(
        **{"rows/kernel": in_order(1), "values/kernel": KERNEL[:1]}
    ),
    "rows without values": lambda: arrays(**{"dense/kernel": None, "rows/kernel": in_order(1)}),
    "rows out of order": lambda: sparse(in_order(5, 2), KERNEL[:2]),
    "a row twice": lambda: sparse(in_order(5, 5), KERNEL[:2]),
    "a row too far": lambda: sparse(in_order(2, WORDS), KERNEL[:2]),
    "a negative row": lambda: sparse(in_order(-1, 2), KERNEL[:2]),
    "rows of int32": lambda: sparse(in_order(1, 2, dtype=np.int32), KERNEL[:2]),
    "rows of floats": lambda: sparse(np.array([1.0, 2.0]), KERNEL[:2]),
    "rows as a table": lambda: sparse(in_order(1, 2).reshape(1, 2), KERNEL[:1]),
    "more values than rows": lambda: sparse(in_order(1), KERNEL[:2]),
    "narrow values": lambda: sparse(in_order(1), KERNEL[:1, :2]),
    "more rows than there are": lambda: sparse(np.arange(WORDS + 1), np.zeros((WORDS + 1, TAGS))),
    "not arrays": lambda: ConfigRecord({"kernel": 1.0}),
    "metrics": lambda: MetricRecord({"kernel": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("make", TOTALS.values(), ids=TOTALS)
def test_a_hostile_payload_contributes_nothing(stub, make):
    os.environ.pop("FEDPRIV_UNPICKLED", None)
    found, moved, counts = run(stub, sends(total=make(), report=report()))
    assert moved < 1e-7
    assert found.num_failed == 1
    assert counts["malformed"] + counts["not-finite"] == 1
    assert "FEDPRIV_UNPICKLED" not in os.environ


REPORTS: dict[str, dict] = {
    "no round": {"round-num": None},
    "no count": {"num-failed": None},
    "more failed than asked": {"num-failed": 2},
    "negative count": {"num-failed": -1},
    "count as float": {"num-failed": 0.0},
    "count as truth": {"num-failed": False},
    "count as list": {"num-failed": [0]},
    "a grid where floats are summed": {"granularity": EXACT.granularity},
    "an earlier round": {"round-num": 3},
    "a later round": {"round-num": 5},
    "an earlier attempt": {"attempt": 1},
    "an error that is no text": {"first-error": 7},
}
RECORDS: dict[str, dict] = {
    **{name: {"total": arrays(), "report": report(**c)} for name, c in REPORTS.items()},
    "empty": {},
    "no total": {"report": report()},
    "no report": {"total": arrays()},
    "report of metrics": {"total": arrays(), "report": MetricRecord({"num-failed": 0})},
    "extra record": {"total": arrays(), "report": report(), "more": arrays()},
    "renamed": {"Total": arrays(), "report": report()},
    "whole numbers": {"total": whole(), "report": report()},
}


@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS)
def test_a_hostile_report_contributes_nothing(stub, records):
    found, moved, counts = run(stub, sends(**records))
    assert moved < 1e-7 and found.num_failed == 1
    assert counts["malformed"] + counts["stale"] == sum(counts.values()) == 1


@pytest.mark.parametrize(
    "value",
    [1e6, -1e6, 3e38, 1e300, np.full((WORDS, TAGS), 1.7e308)],
    ids=["long", "negative", "float32 edge", "float64", "norm overflows"],
)
def test_a_longer_sum_adds_nothing(stub, value):
    dtype = np.float64 if np.max(np.abs(value)) > 3.5e38 else np.float32
    payload = (KERNEL.astype(np.float64) * 0 + value).astype(dtype)
    found, moved, counts = run(stub, sends(total=kernel(payload), report=report()))
    assert counts["not-finite"] + counts["too-long"] == sum(counts.values()) == 1
    assert moved < 1e-7 and found.num_failed == 1


@pytest.mark.parametrize(
    ("longer", "reason"),
    [(1.0, None), (1 + 2**-21, "rebounded"), (1 + 2**-19, "too-long")],
    ids=["as long as it may be", "by rounding", "by more"],
)
def test_a_single_users_update_is_scaled_for_rounding_alone(stub, longer, reason):
    payload = np.zeros((WORDS, TAGS))
    payload[7, 2] = BOUND.l2_bound * longer
    total = arrays(**{"dense/kernel": payload, "dense/bias": np.zeros(TAGS)})
    _, moved, counts = run(stub, sends(total=total, report=report()))
    assert counts == ({} if reason is None else {reason: 1})
    if reason == "too-long":
        assert moved < 1e-7
    else:  # the other nodes of one user send float32
        assert abs(moved - BOUND.l2_bound) < 2e-8


def test_an_honest_sum_is_not_bounded_again(stub):
    found, moved, counts = run(stub, lambda request, reply: [reply])
    assert found.num_failed == 0
    assert 0 < moved <= BOUND.l2_bound
    assert not counts


@pytest.mark.parametrize("longer", [1.0, 1 + 2**-30, 1e9])
def test_a_node_of_k_users_is_held_to_k_bounds(stub, longer):
    """Its sum is of float64 numbers: nothing lengthens it on its way."""
    payload = np.zeros((WORDS, TAGS))
    payload[7, 2] = 3 * BOUND.l2_bound * longer
    total = arrays(**{"dense/kernel": payload, "dense/bias": np.zeros(TAGS)})
    three = stub.TinyTags().roster[0:6:2]  # all on the first of two nodes
    tamper = {101: sends(total=total, report=report())}
    found, counts = summed(stub, tamper, num_nodes=2, cohort=three)
    length = tree.l2_norm(found.real())
    assert length == (3 * BOUND.l2_bound if longer == 1.0 else 0.0)
    assert counts == ({} if longer == 1.0 else {"too-long": 1})
