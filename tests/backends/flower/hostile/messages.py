"""Messages that a hostile node may send, and what each may be counted as."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from fedpriv.mechanisms import Bound
from tests.backends.flower.hostile.payloads import (
    BIAS,
    BOUND,
    EXACT,
    HIGHEST,
    KERNEL,
    LOWEST,
    TAGS,
    TOP,
    UNITS,
    WORDS,
    Executed,
    arrays,
    exact_report,
    header,
    in_order,
    npy,
    raw,
    report,
    some_rows,
    spoilt,
    whole,
)


def kernel(value: object) -> ArrayRecord:
    return arrays(**{"dense/kernel": value})


def sparse(rows: object, values: object) -> ArrayRecord:
    return arrays(**{"dense/kernel": None, "rows/kernel": rows, "values/kernel": values})


_F4 = "{'descr': '<f4', 'fortran_order': False, 'shape': (30, 4), }\n"
TOTALS: dict[str, Callable[[], object]] = {
    **{
        kind: lambda kind=kind: kernel(KERNEL.astype(kind))
        for kind in ("f2", "longdouble", "i8", "c8", "bool", "U3", "S4", ">f4")
    },
    "datetime": lambda: kernel(np.zeros((WORDS, TAGS), "M8[s]")),
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
    "structured": lambda: kernel(np.zeros((WORDS, TAGS), [("a", "<f4")])),
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
    "pickled objects": lambda: whole(
        raw(npy(np.array([Executed()], object), allow_pickle=True), dtype="object", shape=(1,))
    ),
    "what floats would be": lambda: arrays(),
}  # fmt: skip


SIZE = EXACT.granularity
NO_GRID = [None, np.nan, np.inf, -SIZE, 0.0, str(SIZE), b"1", 1, True, [SIZE]]
OTHER_GRIDS = [SIZE / 256, SIZE * 256, float(np.nextafter(SIZE, 1.0)), 5e-324, 1.7e308]


def one_coordinate(value: int, dtype: type = np.int64) -> np.ndarray:
    array = np.zeros((WORDS, TAGS), dtype)
    array[7, 2] = value
    return array


ENDLESS = np.array([LOWEST, HIGHEST] * (WORDS * TAGS // 2)).reshape(WORDS, TAGS)
TOO_LONG: dict[str, Callable[[], object]] = {
    "lowest int64 everywhere": lambda: whole(np.full((WORDS, TAGS), LOWEST)),
    "highest int64 everywhere": lambda: whole(np.full((WORDS, TAGS), HIGHEST)),
    "both in turn": lambda: whole(ENDLESS),
    "lowest int64 once": lambda: whole(one_coordinate(LOWEST)),
    "highest int64 once": lambda: whole(one_coordinate(HIGHEST)),
    "lowest int32": lambda: whole(np.full((WORDS, TAGS), -(2**31), np.int32)),
    "highest int32": lambda: whole(np.full((WORDS, TAGS), 2**31 - 1, np.int32)),
    "one step too long": lambda: whole(one_coordinate(TOP + 1)),
    "just below its negative": lambda: whole(one_coordinate(-TOP - 1, np.int32)),
    "every coordinate at the bound": lambda: whole(np.full((WORDS, TAGS), TOP)),
    # 2^24 / √6 is 6849169.6: were it rounded to the nearest, the six would be too long again.
    "six equal coordinates": lambda: whole(
        np.where(np.arange(WORDS * TAGS) < 6, HIGHEST, 0).reshape(WORDS, TAGS)
    ),
    "a long bias only": lambda: whole(np.zeros((WORDS, TAGS), np.int32), np.full(TAGS, LOWEST)),
    "a long row": lambda: some_rows(in_order(3), np.full((1, TAGS), LOWEST)),
    "long rows of int32": lambda: some_rows(
        np.arange(WORDS), np.full((WORDS, TAGS), -(2**31), np.int32)
    ),
}


LONGER: dict[str, object] = {
    "long": np.full((WORDS, TAGS), 1e6, np.float32),
    "negative": np.full((WORDS, TAGS), -1e6, np.float32),
    "float32 edge": np.full((WORDS, TAGS), 3e38, np.float32),
    "float64": np.full((WORDS, TAGS), 1e300),
    "norm overflows": np.full((WORDS, TAGS), 1.7e308),
}


def _floats(make: Callable[[], object]) -> dict[str, object]:
    return {"total": make(), "report": report()}


def _whole(make: Callable[[], object]) -> dict[str, object]:
    return {"total": make(), "report": exact_report()}


# Each: how its records are made, the bound that the round has, and what it may be counted as.
MESSAGES: dict[str, tuple[Callable[[], dict], Bound, set[str]]] = {
    **{
        f"floats, {name}": (partial(_floats, make), BOUND, {"malformed", "not-finite"})
        for name, make in TOTALS.items()
    },
    **{
        f"floats, {name}": (partial(_floats, partial(kernel, v)), BOUND, {"not-finite", "too-long"})
        for name, v in LONGER.items()
    },
    **{
        f"records, {name}": (records.copy, BOUND, {"malformed", "stale"})
        for name, records in RECORDS.items()
    },
    **{
        f"not whole, {name}": (partial(_whole, make), EXACT, {"malformed"})
        for name, make in NOT_WHOLE.items()
    },
    **{
        f"too long, {name}": (partial(_whole, make), EXACT, {"too-long"})
        for name, make in TOO_LONG.items()
    },
    **{
        f"{kind}, {size}": (
            lambda size=size: {"total": whole(), "report": exact_report(granularity=size)},
            EXACT,
            {kind},
        )
        for kind, sizes in {"malformed": NO_GRID, "other-grid": OTHER_GRIDS}.items()
        for size in sizes
    },
}
