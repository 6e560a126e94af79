"""What a node answers, and what it refuses."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fedpriv import tree
from fedpriv.backends.backend import Order
from fedpriv.backends.flower.client import Host, shard
from fedpriv.backends.flower.messages import (
    SharedRecords,
    read_answer,
    read_request,
)
from fedpriv.mechanisms import Capped, Clip, Normalise, Preconditioned, Rounded, Unbounded
from fedpriv.mechanisms.bounds import Checked
from fedpriv.rng import Key
from fedpriv.training.local.schedule import Schedule
from fedpriv.tree import RowSparse
from tests.backends.flower import stub_grid as stub

SCHEDULE = Schedule(learning_rate=2.0, batch_size=3, epochs=2, max_examples=5)
STEPS = {"kernel": np.linspace(1, 5, 30, dtype=np.float32).reshape(-1, 1)}
KEY = Key.simulation(4)


@pytest.fixture
def task():
    stub.StubGrid({})  # tells Flower who sends
    return stub.TinyTags()


def host_of(task, **place):
    return Host.of(task, task.trainer(SCHEDULE, {}), **place)


def order(task, bound=None):
    bound = bound or Clip(l2_clip_norm=0.5)
    return Order(params=task.params(), bound=bound, key=KEY, round_num=7, attempt=2)


def shared(task, bound=None):
    return SharedRecords.of(order(task, bound))


def ask(content):
    return Message(content, 101, "train")


def difference(left, right):
    """Two sums' difference, as floats."""
    left, right = tree.to_dense(left.real()), tree.to_dense(right.real())
    return {name: left[name] - right[name] for name in left}


def answered(host, task, user_ids, bound=None):
    reply = host.train(ask(shared(task, bound).request(user_ids)))
    return reply, read_answer(reply.content, order(task, bound), num_users=len(user_ids))


BOUNDS = [
    Clip(l2_clip_norm=0.5),
    Normalise(l2_clip_norm=0.25, regulariser=0.125),
    Unbounded(),
    Preconditioned(multiplier=STEPS, bound=Normalise(l2_clip_norm=2.0)),
    Rounded(bound=Clip(l2_clip_norm=0.5)),
    Rounded(bound=Preconditioned(multiplier=STEPS, bound=Normalise(l2_clip_norm=2.0))),
    Capped(cap=0.5, num_coordinates=124),
    Checked(l2_bound=20.0),
]
EXACT = Rounded(bound=Clip(l2_clip_norm=0.5))


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: type(bound).__name__)
def test_a_request_reads_back(task, bound):
    content = shared(task, bound).request(["user-01", "user-04"])
    request = read_request(stub.through_the_wire(ask(content)).content)
    assert request.user_ids == ("user-01", "user-04")
    found = request.order
    assert (found.work, found.key, found.round_num, found.attempt) == ("train", KEY, 7, 2)
    for name, array in task.params().items():
        assert np.array_equal(found.params[name], array) and found.params[name].flags.writeable
    assert list(found.params) == list(task.params())
    assert (found.bound.l2_bound, found.bound.granularity) == (bound.l2_bound, bound.granularity)
    update = {"bias": np.ones(4, np.float32), "kernel": np.ones((30, 4), np.float32)}
    ours, theirs = bound.apply(update), found.bound.apply(update)
    assert all(np.array_equal(ours[name], theirs[name]) for name in update)
    assert ours["kernel"].sum() != 0


def test_a_bound_that_nodes_do_not_know_is_refused_on_the_server(task):
    @dataclass(frozen=True)
    class Other(Clip):
        table: tuple = ()

    with pytest.raises(ValueError):
        shared(task, Other(l2_clip_norm=1.0))


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
    "no norm": lambda content: content["work"].pop("bound.l2_clip_norm"),
    "negative norm": lambda content: content["work"].__setitem__("bound.l2_clip_norm", -1.0),
    "odd number of a bound": lambda content: content["work"].__setitem__("bound.x", 0.5),
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
    expected = order(task).sum_of(host.works, task.data, asked)
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
    expected = order(task, EXACT).sum_of(host_of(task).works, task.data, asked)
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
        def summed(self, order, works, data, user_ids, seconds, *, apart):
            given.append(seconds)
            return order.nothing(order.shapes)

    message = ask(shared(task).request(["user-01"], 100.0))
    message.metadata.__dict__["_created_at"] = time.time() - age
    replace(host_of(task), guard=Noted()).train(message)
    assert given == [pytest.approx(left, abs=5.0)]
