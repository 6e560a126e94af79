"""Answers as a hostile node may make them, and a sum with one such node."""

from __future__ import annotations

import io

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedpriv import tree
from fedpriv.backends import SerialBackend
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


def spoilt(value: float) -> np.ndarray:
    array = KERNEL.copy()
    array[7, 2] = value
    return array


def in_order(*rows: int, dtype: type = np.int64) -> np.ndarray:
    return np.array(rows, dtype)


REPORT = {"round-num": 4, "attempt": 2, "num-failed": 0}


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
        sent = dict(records)
        if isinstance(said := sent.get("report"), ConfigRecord):
            nonce = request.content["work"]["nonce"]
            sent["report"] = ConfigRecord({"nonce": nonce} | dict(said))
        return [Message(RecordDict(sent), reply_to=request)]

    return tamper


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


LOWEST, HIGHEST = -(2**63), 2**63 - 1
