"""What one hostile node may send, and that it costs nobody but itself."""

from __future__ import annotations

import io
import os
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.bounded_sum import BoundedSum
from fedpriv.backends.flower.client import Host
from fedpriv.backends.flower.strategy import GridSettings, UserLevelStrategy
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.training.local.trainer import Schedule

BOUND, SCHEDULE = Clip(l2_clip_norm=0.3), Schedule(learning_rate=2.0)
EXACT, TOP = Rounded(bound=BOUND), 2**24
WORDS, TAGS = 30, 4
HOSTILE = 103
KERNEL, BIAS = np.full((WORDS, TAGS), 0.01, np.float32), np.full(TAGS, 0.01, np.float32)
UNITS = np.full((WORDS, TAGS), 1000, np.int64)


class Executed:
    """Unpickling this would leave a mark."""

    def __reduce__(self):
        return (exec, ("import os; os.environ['FEDPRIV_UNPICKLED'] = 'yes'",))


def npy(array, *, allow_pickle=False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def raw(data: bytes, *, dtype="float32", shape=(WORDS, TAGS), stype="numpy.ndarray") -> Array:
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def header(text: str, *, version=b"\x01\x00", body=b"") -> bytes:
    encoded = text.encode()
    size = len(encoded).to_bytes(2 if version[:1] == b"\x01" else 4, "little")
    return b"\x93NUMPY" + version + size + encoded + body


def arrays(**changes: object) -> ArrayRecord:
    """An honest looking answer with some arrays replaced, or removed by None."""
    found = {"dense/bias": BIAS, "dense/kernel": KERNEL} | changes
    return ArrayRecord({
        key: item if isinstance(item, Array) else Array(np.asarray(item))
        for key, item in found.items()
        if item is not None
    })  # fmt: skip


def kernel(value: object) -> ArrayRecord:
    return arrays(**{"dense/kernel": value})


def sparse(rows: object, values: object) -> ArrayRecord:
    return arrays(**{"dense/kernel": None, "rows/kernel": rows, "values/kernel": values})


def spoilt(value: float) -> np.ndarray:
    array = KERNEL.copy()
    array[7, 2] = value
    return array


def in_order(*rows: int, dtype: type = np.int64) -> np.ndarray:
    return np.array(rows, dtype)


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

REPORT = {"round-num": 4, "attempt": 2, "num-failed": 0}
REPORTS: dict[str, dict] = {
    "no round": {"round-num": None},
    "no count": {"num-failed": None},
    "more failed than asked": {"num-failed": 2},
    "negative count": {"num-failed": -1},
    "count as float": {"num-failed": 0.0},
    "count as truth": {"num-failed": False},
    "count as word": {"num-failed": "0"},
    "count as list": {"num-failed": [0]},
}
STALE: dict[str, dict] = {
    "an earlier round": {"round-num": 3},
    "an earlier attempt": {"attempt": 1},
    "a later round": {"round-num": 5},
}


def report(**changes: object) -> ConfigRecord:
    merged = REPORT | changes
    return ConfigRecord({key: value for key, value in merged.items() if value is not None})


def exact_report(**changes: object) -> ConfigRecord:
    """What a node on the round's grid would report."""
    return report(**({"granularity": EXACT.granularity} | changes))


def difference(left, right):
    """Two sums' difference, as floats."""
    left, right = tree.to_dense(left.real()), tree.to_dense(right.real())
    return {name: left[name] - right[name] for name in left}


def run(stub, tamper, *, cohort=None, bound=BOUND):
    """Return the sum with node 103 hostile, how far it moved the others', and the counts."""
    task = stub.TinyTags()
    cohort = task.roster[:8] if cohort is None else cohort
    grid = stub.StubGrid(stub.shards(task, 12), tamper={HOSTILE: tamper})
    strategy = UserLevelStrategy(roster=task.roster, settings=GridSettings())
    ask = {
        "params": task.params(), "bound": bound, "key": Key.simulation(1),
        "round_num": 4, "attempt": 2,
    }  # fmt: skip
    found = strategy.start(grid, lambda backend: backend.partial_sum(cohort=cohort, **ask))
    oracle = SerialBackend(trainer=task.trainer(SCHEDULE, {}), data=task.data)
    others = [user for user in cohort if user != task.roster[HOSTILE - 101]]
    expected = oracle.partial_sum(cohort=others, **ask)
    return found, tree.l2_norm(difference(found, expected)), strategy.counts


def sends(**records):
    def tamper(request: Message, reply: Message) -> list[Message]:
        return [Message(RecordDict(records), reply_to=request)]

    return tamper


@pytest.mark.parametrize("make", TOTALS.values(), ids=TOTALS)
def test_a_hostile_payload_contributes_nothing(stub, make):
    os.environ.pop("FEDPRIV_UNPICKLED", None)
    found, moved, counts = run(stub, sends(total=make(), report=report()))
    assert moved < 1e-7
    assert found.num_failed == 1
    assert counts["malformed"] + counts["not-finite"] == 1
    assert "FEDPRIV_UNPICKLED" not in os.environ


@pytest.mark.parametrize("changes", REPORTS.values(), ids=REPORTS)
def test_a_hostile_report_contributes_nothing(stub, changes):
    found, moved, counts = run(stub, sends(total=arrays(), report=report(**changes)))
    assert moved < 1e-7
    assert found.num_failed == 1
    assert counts["malformed"] + counts["stale"] == 1


@pytest.mark.parametrize("changes", STALE.values(), ids=STALE)
def test_an_answer_to_another_attempt_contributes_nothing(stub, changes):
    _, moved, counts = run(stub, sends(total=arrays(), report=report(**changes)))
    assert moved < 1e-7
    assert counts["stale"] == 1


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"report": report()},
        {"total": arrays()},
        {"total": arrays(), "report": MetricRecord({"num-failed": 0})},
        {"total": arrays(), "report": report(), "more": arrays()},
        {"Total": arrays(), "report": report()},
    ],
    ids=["empty", "no total", "no report", "report of metrics", "extra record", "renamed"],
)
def test_a_reply_of_other_records_contributes_nothing(stub, records):
    found, moved, counts = run(stub, sends(**records))
    assert moved < 1e-7
    assert found.num_failed == 1
    assert counts["malformed"] == 1


@pytest.mark.parametrize(
    "value",
    [1e6, -1e6, 3e38, 1e300, np.full((WORDS, TAGS), 1.7e308)],
    ids=["long", "negative", "float32 edge", "float64", "norm overflows"],
)
def test_a_longer_sum_is_bounded_again(stub, value):
    dtype = np.float64 if np.max(np.abs(value)) > 3.5e38 else np.float32
    payload = (KERNEL.astype(np.float64) * 0 + value).astype(dtype)
    _, moved, counts = run(stub, sends(total=kernel(payload), report=report()))
    if counts["not-finite"]:  # a norm beyond the largest float is no norm
        assert moved < 1e-7
    else:
        assert counts["rebounded"] == 1
        # The direction is kept, so the hostile user gets all of its bound and no more.
        assert 0.99 * BOUND.l2_bound < moved <= BOUND.l2_bound * (1 + 1e-7)


def test_an_honest_sum_is_not_bounded_again(stub):
    found, moved, counts = run(stub, lambda request, reply: [reply])
    assert found.num_failed == 0
    assert 0 < moved <= BOUND.l2_bound
    assert not counts


def test_tiny_numbers_are_honest(stub):
    _, moved, counts = run(stub, sends(total=kernel(KERNEL * 0 + 1e-45), report=report()))
    assert moved < BOUND.l2_bound
    assert not counts


def test_a_node_of_k_users_is_held_to_k_bounds(stub):
    task = stub.TinyTags()
    grid = stub.StubGrid(
        stub.shards(task, 2),
        tamper={101: sends(total=kernel(KERNEL * 1e9), report=report())},
    )
    strategy = UserLevelStrategy(roster=task.roster, settings=GridSettings())
    cohort = task.roster[0:6:2]  # three users, all on the first node
    found = strategy.start(
        grid,
        lambda backend: backend.partial_sum(
            params=task.params(), bound=BOUND, cohort=cohort, key=Key.simulation(1),
            round_num=4, attempt=2,
        ),
    )  # fmt: skip
    assert 2.99 * BOUND.l2_bound < tree.l2_norm(found.real()) <= 3 * BOUND.l2_bound


# Where sums are exact, whole numbers are asked for.


def whole(kernel_units: object = UNITS, bias_units: object = 0) -> ArrayRecord:
    """An answer of whole numbers."""
    return arrays(
        **{
            "dense/kernel": kernel_units,
            "dense/bias": np.full(TAGS, bias_units, np.int32)
            if isinstance(bias_units, int)
            else bias_units,
        }
    )


def some_rows(rows: object, values: object) -> ArrayRecord:
    return arrays(
        **{
            "dense/kernel": None,
            "rows/kernel": rows,
            "values/kernel": values,
            "dense/bias": np.zeros(TAGS, np.int32),
        }
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


def one_coordinate(value: int, dtype: type = np.int64) -> np.ndarray:
    array = np.zeros((WORDS, TAGS), dtype)
    array[7, 2] = value
    return array


LOWEST, HIGHEST = -(2**63), 2**63 - 1
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


def length_squared(found, *others) -> int:
    """Of a sum, less others, in units: Python's integers."""
    parts = [tree.to_dense(part.total) for part in (found, *others)]
    assert all(t.dtype.kind == "i" for part in parts for t in part.values())
    return sum(
        (int(first) - sum(map(int, rest))) ** 2
        for name in parts[0]
        for first, *rest in zip(*(part[name].reshape(-1) for part in parts), strict=True)
    )


def without_the_hostile(stub):
    """The others' exact sum."""
    silence = sends(total=whole(np.zeros((WORDS, TAGS), np.int32)), report=exact_report())
    return run(stub, silence, bound=EXACT)[0]


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
            other.setattr("fedpriv.mechanisms.rounding.BITS", 16)
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


@pytest.mark.parametrize("make", TOO_LONG.values(), ids=TOO_LONG)
def test_a_longer_exact_sum_is_bounded_again(stub, make):
    found, _, counts = run(stub, sends(total=make(), report=exact_report()), bound=EXACT)
    assert counts == {"rebounded": 1} and found.num_failed == 0
    moved = length_squared(found, without_the_hostile(stub))
    # Nearly all of its bound, and never more: rounding towards zero loses a little.
    assert (0.999 * TOP) ** 2 < moved <= TOP**2


@pytest.mark.parametrize("value", [TOP, -TOP])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_sum_as_long_as_it_may_be_is_left_alone(stub, value, kind):
    tamper = sends(total=whole(one_coordinate(value, kind)), report=exact_report())
    found, _, counts = run(stub, tamper, bound=EXACT)
    assert not counts
    assert length_squared(found, without_the_hostile(stub)) == TOP**2
    moved = tree.to_dense(found.total)["kernel"][7, 2]
    assert moved - tree.to_dense(without_the_hostile(stub).total)["kernel"][7, 2] == value


@pytest.mark.parametrize("kernel_units", [
    np.full((WORDS, TAGS), LOWEST), np.full((WORDS, TAGS), HIGHEST), one_coordinate(HIGHEST),
    one_coordinate(LOWEST), one_coordinate(TOP), one_coordinate(-TOP),
], ids=["lowest", "highest", "highest once", "lowest once", "bound", "minus bound"])  # fmt: skip
@pytest.mark.parametrize("num_nodes", [12, 3])
def test_nodes_that_conspire_do_not_overflow_the_sum(stub, kernel_units, num_nodes):
    """Every node sends the same, so that a sum that wrapped around would change its sign."""
    task = stub.TinyTags()
    hosts = stub.shards(task, num_nodes)
    tampered = dict.fromkeys(hosts, sends(total=whole(kernel_units), report=exact_report()))
    strategy = UserLevelStrategy(roster=task.roster, settings=GridSettings())
    found = strategy.start(
        stub.StubGrid(hosts, tamper=tampered),
        lambda backend: backend.partial_sum(
            params=task.params(), bound=EXACT, cohort=task.roster, key=Key.simulation(1),
            round_num=4, attempt=2,
        ),
    )  # fmt: skip
    sign = int(np.sign(kernel_units.astype(np.float64).sum()))
    total = tree.to_dense(found.total)["kernel"]
    assert set(np.unique(np.sign(total))) <= {0, sign} and total.any()
    assert length_squared(found) <= (12 * TOP) ** 2
    if (kernel_units != 0).sum() == 1 and abs(int(kernel_units[7, 2])) == TOP:
        assert total[7, 2] == sign * num_nodes * TOP  # what nodes that are honest could send
    else:
        assert length_squared(found) > (0.999 * 12 * TOP) ** 2


@pytest.mark.parametrize("value", [LOWEST, HIGHEST, TOP, -TOP])
@pytest.mark.parametrize("num_users", [1, 100])
def test_hundreds_of_answers_at_the_bound_do_not_overflow(value, num_users):
    """More than an int32 holds: 300 nodes at what their users may contribute at most."""
    template = {"kernel": np.zeros((WORDS, TAGS), np.float32), "bias": BIAS}
    adds = BoundedSum(
        params=template,
        limit=BOUND.sum_limit,
        granularity=EXACT.granularity,
        round_num=4,
        attempt=2,
    )
    sent = value if abs(value) > TOP else num_users * value
    content = RecordDict({"total": whole(one_coordinate(sent)), "report": exact_report()})
    for _ in range(300):
        adds.add(content, num_users=num_users)
    found = int(adds.result(300 * num_users).total["kernel"][7, 2])
    limit = 300 * num_users * TOP
    assert 0.999 * limit < (found if value > 0 else -found) <= limit
    assert (adds.dropped["rebounded"] == 0) == (abs(value) == TOP)


BIG = {"kernel": np.zeros((5000, 20), np.float32), "bias": np.zeros(20, np.float32)}


def adding(granularity):
    return BoundedSum(
        params=BIG,
        limit=BOUND.sum_limit,
        granularity=granularity,
        round_num=4,
        attempt=2,
    )


def oddly_placed(array: np.ndarray) -> Array:
    """The same array behind an npy header of odd length: its numbers are not aligned."""
    text = f"{{'descr': {array.dtype.str!r}, 'fortran_order': False, 'shape': {array.shape}, }}"
    text += " " * (len(text) % 2) + "\n"
    data = header(text, body=array.tobytes())
    assert (len(data) - array.nbytes) % 2 == 1
    return Array(dtype=str(array.dtype), shape=array.shape, stype="numpy.ndarray", data=data)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("sparse_too", [False, True])
@pytest.mark.parametrize("value", [1, 10**6])
def test_numbers_may_lie_anywhere_in_a_message(kind, sparse_too, value):
    """Compiled loops add them and measure them all the same."""
    granularity = EXACT.granularity if np.dtype(kind).kind == "i" else None
    value = value if granularity else value * 1e-4
    values, found = np.full((5000, 20), value, kind), []
    for place in (Array, oddly_placed):
        total = {"dense/bias": place(np.zeros(20, kind)), "dense/kernel": place(values)}
        if sparse_too:
            del total["dense/kernel"]
            total |= {"rows/kernel": place(np.arange(5000)), "values/kernel": place(values)}
        adds = adding(granularity)
        said = report() if granularity is None else exact_report()
        adds.add(RecordDict({"total": ArrayRecord(total), "report": said}), num_users=1)
        assert set(adds.dropped) <= {"rebounded"}
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
    adds, held = adding(EXACT.granularity), []
    adds.add(content, num_users=1)  # compiled code is loaded here
    tracemalloc.start()
    for _ in range(12):
        adds.add(content, num_users=1)
        held.append(tracemalloc.get_traced_memory()[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(held) < 100_000  # the sum itself was there before
    assert peak < 4 * 8 * values.size  # a few arrays of 64-bit numbers, one answer at a time
