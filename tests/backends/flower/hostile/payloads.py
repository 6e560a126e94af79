"""Answers as a hostile node may make them, and a sum with one such node."""

from __future__ import annotations

import io

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.bounded_sum import BoundedSum
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.work import Attempt
from tests.backends.flower import stub_grid as stub

BOUND, SCHEDULE = Clip(l2_clip_norm=0.3), LocalSgd(learning_rate=2.0)
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


def asking(params, bound=BOUND):
    """What the hostile node is asked for, and by which attempt."""
    attempt = Attempt(bound=bound, key=Key.simulation(1), round_num=4, number=2)
    return SumRequest(params=params), attempt


def adding(bound=EXACT, params=None):
    """An empty sum that trusts no node."""
    template = {"kernel": np.zeros((WORDS, TAGS), np.float32), "bias": BIAS}
    request, attempt = asking(template if params is None else params, bound)
    return BoundedSum(request=request, attempt=attempt)


def summed(tamper, *, num_nodes=12, cohort=None, bound=BOUND):
    """Return the sum with some nodes hostile, and the counts."""
    task = stub.TinyTags()
    backend = stub.started(task, num_nodes, tamper=tamper)
    asked = asking(task.params(), bound)
    found = backend.sum(*asked, task.roster if cohort is None else cohort)
    return found, backend.exchange.dropped


def run(tamper, *, bound=BOUND):
    """Return the sum with node 103 hostile, how far it moved the others', and the counts."""
    task = stub.TinyTags()
    cohort, asked = task.roster[:8], asking(task.params(), bound)
    found, counts = summed({HOSTILE: tamper}, cohort=cohort, bound=bound)
    oracle = SerialBackend(trainer=task.trainer(SCHEDULE, {}), data=task.data)
    others = [user for user in cohort if user != task.roster[HOSTILE - 101]]
    expected = oracle.sum(*asked, others)
    left, right = tree.to_dense(found.real()), tree.to_dense(expected.real())
    return found, tree.l2_norm({name: left[name] - right[name] for name in left}), counts


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
