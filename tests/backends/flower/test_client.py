"""What a node answers, and what it refuses."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedpriv import tree
from fedpriv.backends.backend import answered as computed
from fedpriv.backends.backend import shapes_of, sum_of_nobody
from fedpriv.backends.flower.client import Host, shard
from fedpriv.backends.flower.messages import (
    MalformedRecordError,
    SharedRecords,
    encode,
    read_answer,
    read_request,
)
from fedpriv.mechanisms import AdaptiveClip, Capped, Clip, Normalise, Rounded, Unbounded
from fedpriv.mechanisms.bounds import Checked
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT, Context, Line, SumRequest
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.work import Attempt
from fedpriv.tree import RowSparse
from tests.backends.flower import stub_grid as stub
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import bounded

SCHEDULE = LocalSgd(learning_rate=2.0, batch_size=3, epochs=2, max_examples_per_user=5)
STEPS = {"kernel": np.linspace(1, 5, 30, dtype=np.float32).reshape(-1, 1)}
KEY = Key.simulation(4)


@pytest.fixture
def task():
    stub.StubGrid({})  # tells Flower who sends
    return stub.TinyTags()


def host_of(task, **place):
    return Host.of(task, task.trainer(SCHEDULE, {}), **place)


def asking(task, bound=None, context=NO_CONTEXT):
    """A request of the task's params, and an attempt at it."""
    attempt = Attempt(bound=bound or Clip(l2_clip_norm=0.5), key=KEY, round_num=7, number=2)
    return SumRequest(params=task.params(), context=context), attempt


def shared(task, bound=None, context=NO_CONTEXT):
    return SharedRecords.of(*asking(task, bound, context))


def ask(content):
    return Message(content, 101, "train")


def difference(left, right):
    """Two sums' difference, as floats."""
    left, right = tree.to_dense(left.real()), tree.to_dense(right.real())
    return {name: left[name] - right[name] for name in left}


def answered(host, task, user_ids, bound=None):
    reply = host.train(ask(shared(task, bound).request(user_ids)))
    return reply, read_answer(reply.content, *asking(task, bound), num_users=len(user_ids))


BOUNDS = [
    Clip(l2_clip_norm=0.5),
    Normalise(l2_clip_norm=0.25, regulariser=0.125),
    Unbounded(),
    Rounded(bound=Clip(l2_clip_norm=0.5)),
    Rounded(bound=Normalise(l2_clip_norm=2.0)),
    Capped(cap=0.5, num_coordinates=124),
    Checked(l2_bound=40.0),
    Rounded(bound=AdaptiveClip(l2_clip_norm=0.5, least=0.25, most=2.0, quantile=0.75, rate=0.5)),
]
EXACT = Rounded(bound=Clip(l2_clip_norm=0.5))


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: type(bound).__name__)
def test_a_request_reads_back(task, bound):
    context = Context(clip_norm=0.75, multiplier=STEPS)
    content = shared(task, bound, context).request(["user-01", "user-04"])
    found = read_request(stub.through_the_wire(ask(content)).content)
    assert found.user_ids == ("user-01", "user-04")
    request, attempt = found.request, found.attempt
    assert (request.work, attempt.key, attempt.round_num, attempt.number) == ("train", KEY, 7, 2)
    for name, array in task.params().items():
        assert np.array_equal(request.params[name], array)
        assert not request.params[name].flags.writeable
    assert list(request.params) == list(task.params())
    assert attempt.bound == bound
    update = {"bias": np.ones(4, np.float32), "kernel": np.ones((30, 4), np.float32)}
    ours = bounded(bound, update, context)
    theirs = bounded(attempt.bound, update, request.context)
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[n], theirs[n]) for n in ours)
    assert ours["kernel"].sum() != 0


LINE = Line(
    direction=stub.TinyTags().params(seed=6),
    sizes=np.array([0.0, 0.1, 1 / 3, 2.0**-140], np.float32),
)
CONTEXTS = {
    "nothing": NO_CONTEXT,
    "rate": Context(rate=1 / 3),
    "clip norm": Context(clip_norm=0.1),
    "multiplier": Context(multiplier=STEPS),
    "line": Context(line=LINE),
    "extra": Context(extra={"level": np.array(4.5, np.float32), "none": np.zeros((0, 3), "f4")}),
    "all": Context(
        rate=2.0, clip_norm=1e-9, multiplier=STEPS, line=LINE, extra={"a/b": np.ones(2, np.float32)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_the_public_facts_of_a_round_read_back_to_the_bit(task, context):
    content = shared(task, context=context).request(["user-01"])
    found = read_request(stub.through_the_wire(ask(content)).content).request.context
    assert (found.rate, found.clip_norm) == (context.rate, context.clip_norm)
    assert found.mixture is None and (found.line is None) == (context.line is None)
    pairs = [(found.multiplier, context.multiplier), (found.extra, context.extra)]
    if context.line is not None:
        pairs.append((found.line.direction, context.line.direction))
        pairs.append(({"": found.line.sizes}, {"": context.line.sizes}))
    for ours, theirs in pairs:
        assert list(ours) == list(theirs)
        for name, array in theirs.items():
            assert (ours[name].dtype, ours[name].shape) == (np.float32, array.shape)
            np.testing.assert_array_equal(ours[name], array)


def test_what_is_not_sent_to_nodes_is_refused_on_the_server(task):
    context = Context(mixture=Mixture(own=0.5, offset=task.params()))
    with refuses(ValueError, "mixture"):
        shared(task, context=context)


def put(name, value):
    """Write a value into a request's own record."""
    return lambda content: content["work"].__setitem__(name, value)


def direction(**tensors):
    """Give a request another direction."""
    record = encode({**LINE.direction, **tensors})
    return lambda content: content.__setitem__("direction", record)


NO_NUMBERS = [0.0, -1.0, float("nan"), float("inf"), "1.0", 1, True, b"1", [1.0]]
NO_SIZES = [
    "1.0", 1.0, [], [float("nan")], [0.5, float("inf")], [-float("inf")], ["0.5"], [b"1"], [1, 2],
    [True], [1e300],
]  # fmt: skip
HOSTILE = {
    **{f"rate {value!r}": put("rate", value) for value in NO_NUMBERS},
    **{f"clip norm {value!r}": put("clip-norm", value) for value in NO_NUMBERS},
    **{f"step sizes {value!r}": put("step-sizes", value) for value in NO_SIZES},
    "no step sizes": lambda content: content["work"].pop("step-sizes"),
    "no direction": lambda content: content.pop("direction"),
    "direction of one tensor more": direction(more=np.zeros(2, np.float32)),
    "direction of another shape": direction(bias=np.zeros(3, np.float32)),
    "direction in float64": direction(bias=np.zeros(4)),
    "direction that is no record of arrays": lambda content: content.__setitem__(
        "direction", ConfigRecord({"bias": 1.0})
    ),
    **{
        f"{why} {name}": lambda content, name=name, change=change: change(content, name)
        for name in ("multiplier", "extra")
        for why, change in {
            "no": lambda content, name: content.pop(name),
            "config for": lambda content, name: content.__setitem__(name, ConfigRecord({"a": 1.0})),
            "float64 in": lambda content, name: content.__setitem__(
                name, encode({"kernel": np.ones((30, 1))})
            ),
            "rows in": lambda content, name: content.__setitem__(
                name,
                encode({"kernel": RowSparse(rows=np.array([1]), values=np.ones((1, 1), "f4"),
                                            num_rows=30)}),
            ),
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE)
def test_public_facts_that_are_none_make_no_request(task, spoil):
    content = shared(task, context=CONTEXTS["all"]).request(["user-01"])
    assert read_request(content).request.context.rate == 2.0
    spoil(content)
    with pytest.raises(MalformedRecordError):
        read_request(content)


@dataclass(frozen=True, kw_only=True)
class OfATable(Clip):
    """A bound with a field that has no JSON."""

    table: np.ndarray


def test_a_bound_that_nodes_would_not_read_back_is_refused_on_the_server(task):
    with refuses(ValueError, "table"):
        shared(task, OfATable(l2_clip_norm=1.0, table=np.ones(3)))


BOUND_TEXTS = {
    "empty": "",
    "no JSON": "clip",
    "a number": "3",
    "unknown": '{"kind": "Hug"}',
    "of a class by its path": '{"kind": "fedpriv.mechanisms.bounds.Clip", "l2_clip_norm": 1.0}',
    "without a norm": '{"kind": "Clip"}',
    "with a negative norm": '{"kind": "Clip", "l2_clip_norm": -1.0}',
    "with NaN": '{"kind": "Clip", "l2_clip_norm": NaN}',
    "with infinity": '{"kind": "Clip", "l2_clip_norm": 1e400}',
    "with a whole number of 10,000 digits": f'{{"kind": "Clip", "l2_clip_norm": {"9" * 10_000}}}',
    "with a number of another": '{"kind": "Clip", "l2_clip_norm": 1.0, "x": 0.5}',
    "that is 900 deep": '{"kind": "Rounded", "bound": ' * 900 + "3" + "}" * 900,
    "that is 100,000 deep": '{"kind": "Rounded", "bound": ' * 100_000 + "3" + "}" * 100_000,
    "of brackets": "[" * 1_000_000,
    "that is long": f'{{"kind": "{"x" * 1_000_000}"}}',
}


@pytest.mark.parametrize("text", BOUND_TEXTS.values(), ids=BOUND_TEXTS)
def test_a_hostile_bound_makes_no_request(task, text):
    content = shared(task).request(["user-01"])
    content["work"]["bound"] = text
    with pytest.raises(MalformedRecordError) as refused:
        read_request(content)
    assert len(str(refused.value)) < 500


BROKEN = {
    "no work": lambda content: content.pop("work"),
    "no params": lambda content: content.pop("params"),
    "row-sparse params": lambda content: content.__setitem__(
        "params", ArrayRecord({"rows/kernel": content["params"]["dense/kernel"]})
    ),
    "no users": lambda content: content["work"].pop("user-ids"),
    "users as word": lambda content: content["work"].__setitem__("user-ids", "user-01"),
    "no key": lambda content: content["work"].pop("key"),
    "short key": lambda content: content["work"].__setitem__("key", b"short"),
    "odd key": lambda content: content["work"].__setitem__("key-mode", "guess"),
    "no bound": lambda content: content["work"].pop("bound"),
    "odd bound": lambda content: content["work"].__setitem__("bound", "hug"),
    "bound as bytes": lambda content: content["work"].__setitem__("bound", b"{}"),
    "bound as number": lambda content: content["work"].__setitem__("bound", 0.5),
    "bound as list": lambda content: content["work"].__setitem__("bound", ["clip"]),
    "no name of work": lambda content: content["work"].__setitem__("work", 3),
    "unknown work": lambda content: content["work"].__setitem__("work", "os.system"),
    "round 0": lambda content: content["work"].__setitem__("round-num", 0),
}


@pytest.mark.parametrize("spoil", BROKEN.values(), ids=BROKEN)
def test_a_node_refuses_what_is_no_request(task, spoil):
    content = shared(task).request(["user-01"])
    spoil(content)
    with pytest.raises(ValueError):
        host_of(task).train(ask(content))


def test_a_node_answers_with_the_sum_over_its_own_users(task):
    host = host_of(task, partition=1, num_partitions=3)
    asked = ["user-01", "user-04", "user-07"]
    reply, found = answered(host, task, asked)
    expected = computed(host.works, task.data, *asking(task), asked)
    assert tree.l2_norm(difference(found, expected)) == 0.0
    assert set(reply.content) == {"total", "report"}
    assert dict(reply.content["report"]) == {
        "round-num": 7, "attempt": 2, "num-failed": 0, "nonce": "",
    }  # fmt: skip


def test_users_that_live_elsewhere_or_are_named_twice_add_nothing(task):
    host = host_of(task, partition=1, num_partitions=3)
    _, one = answered(host, task, ["user-04"])
    _, odd = answered(host, task, ["user-04", "user-04", "user-05", "nobody"])
    assert tree.l2_norm(difference(one, odd)) < 1e-6
    assert (one.num_failed, odd.num_failed) == (0, 3)


def test_an_answer_carries_only_the_rows_that_were_touched(task):
    user = task.roster[0]
    reply, found = answered(host_of(task), task, [user])
    assert isinstance(found.total["kernel"], RowSparse)
    assert 0 < len(found.total["kernel"].rows) < 15
    assert set(found.total["kernel"].rows) <= set(task.data.users[user].indices)
    assert reply.content["total"]["values/kernel"].dtype == "float32"


@pytest.mark.parametrize("num_users", [0, 1, 3, 12])
def test_an_exact_sum_is_sent_as_the_whole_numbers_it_is(task, num_users):
    asked = list(task.roster[:num_users])
    reply, found = answered(host_of(task), task, asked, EXACT)
    expected = computed(host_of(task).works, task.data, *asking(task, EXACT), asked)
    assert (found.granularity, found.num_users, found.num_failed) == (
        EXACT.granularity,
        num_users,
        0,
    )
    for name, tensor in tree.to_dense(expected.total).items():
        assert np.array_equal(tree.to_dense(found.total)[name], tensor)
        assert tensor.any() == bool(num_users)
    assert reply.content["report"]["granularity"] == EXACT.granularity
    sent = reply.content["total"]
    assert {sent[key].dtype for key in sent if not key.startswith("rows/")} == {"int32"}


def test_a_node_of_many_users_sends_wider_numbers(monkeypatch):
    """From 128 users on a sum may exceed int32."""
    task = stub.TinyTags(num_users=130)
    for number, kind in ((127, "int32"), (128, "int64"), (130, "int64")):
        reply, found = answered(host_of(task), task, list(task.roster[:number]), EXACT)
        assert reply.content["total"]["dense/bias"].dtype == kind
        assert found.num_failed == 0


def test_shards_share_the_roster_out():
    roster = [f"u{number}" for number in range(10)]
    parts = [shard(roster, number, 4) for number in range(4)]
    assert sorted(user for part in parts for user in part) == sorted(roster)
    assert parts[1] == ["u1", "u5", "u9"]
    assert shard(roster, 399, 400) == []


@pytest.mark.parametrize(
    ("age", "left"), [(0.0, 100.0), (20.0, 80.0), (5000.0, 50.0), (-90.0, 100.0)]
)
def test_users_have_what_is_left_of_the_time_since_they_were_asked_for(task, age, left):
    """A process that was started for the message has taken some; clocks may differ."""
    given = []

    class Noted:
        def summed(self, works, data, request, attempt, user_ids, seconds, *, apart):
            given.append(seconds)
            return sum_of_nobody(shapes_of(request, attempt), attempt.bound.granularity)

    message = ask(shared(task).request(["user-01"], 100.0))
    message.metadata.__dict__["_created_at"] = time.time() - age
    replace(host_of(task), guard=Noted()).train(message)
    assert given == [pytest.approx(left, abs=5.0)]
