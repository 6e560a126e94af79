"""Which node hosts which users."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedpriv.backends.flower.client import Host
from fedpriv.backends.flower.registry import register
from tests.backends.flower import stub_grid as stub
from tests.harness.refusals import refuses
from tests.harness.waiting import Clock


@pytest.fixture
def task():
    return stub.TinyTags()


def registered(grid, task, seconds=20.0, clock=None, **options):
    return register(stub.timed(grid, clock), task.roster, seconds=seconds, **options)


class Answers(Host):
    """A node that claims what it likes."""

    __slots__ = ("content",)

    @classmethod
    def claiming(cls, task, content):
        host = cls(works={}, data=task.data, user_ids=frozenset())
        object.__setattr__(host, "content", content)
        return host

    def query(self, message):
        return Message(self.content, reply_to=message)


@pytest.mark.parametrize("num_nodes", [1, 5, 12])
def test_every_user_is_found_where_it_lives(task, num_nodes):
    hosts = stub.shards(task, num_nodes)
    registry = registered(stub.StubGrid(hosts), task)
    assert set(registry.node_of) == set(task.roster)
    assert all(user in hosts[node].user_ids for user, node in registry.node_of.items())


@pytest.mark.parametrize("silent", [set(), {103, 107, 109}])
def test_nodes_that_host_nobody_are_asked_but_hardly_waited_for(task, silent):
    """Two shards of ten nodes; those that stay silent cost a few seconds, not the whole wait."""
    hosts = stub.shards(task, 2)
    nobody = Host(works={}, data=task.data, user_ids=frozenset())
    grid = stub.StubGrid(hosts | {node: nobody for node in range(103, 111)}, silent=silent)
    clock = Clock()
    exchange = stub.timed(grid, clock)
    registry = register(exchange, task.roster, seconds=1000.0)
    assert set(registry.node_of) == set(task.roster)
    assert set(registry.node_of.values()) == {101, 102}
    assert clock.now < 1.0 if not silent else 5.0 <= clock.now < 7.0
    assert exchange.dropped["missing"] == len(silent)


@pytest.mark.parametrize("speaks_at", [25.0, 99.0])
def test_a_silent_node_that_may_host_somebody_is_waited_for(task, speaks_at):
    grid, clock = stub.StubGrid(stub.shards(task, 3), silent={102}), Clock()
    pull = grid.pull_messages

    def pull_messages(message_ids):
        if clock.now >= speaks_at:
            grid.silent.clear()
        return pull(message_ids)

    grid.pull_messages = pull_messages
    if speaks_at < 30.0:
        assert len(registered(grid, task, 30.0, clock).node_of) == 12
        assert 25.0 <= clock.now < 26.0
    else:
        with refuses(ValueError, 4, 12, "rostered"):
            registered(grid, task, 30.0, clock)
        assert clock.now >= 30.0


def test_users_that_nobody_hosts_are_refused_unnamed_or_allowed(task, caplog):
    hosts = stub.shards(task, 3)
    del hosts[102]
    with refuses(ValueError, 4, 12, "rostered", 2, "register-seconds") as refused:
        registered(stub.StubGrid(hosts), task)
    assert "user-" not in str(refused.value)  # whose error is read by more people than the roster
    registry = registered(stub.StubGrid(hosts), task, allow_missing=True)
    assert len(registry.node_of) == 8 and "will contribute zero" in caplog.text
    with refuses(ValueError, 12, "rostered"):  # nobody is never allowed
        registered(stub.StubGrid({}), task, allow_missing=True)


def test_the_reason_why_all_nodes_failed_is_shown_and_not_waited_out(task):
    failed = Answers.claiming(task, Error(2, "corpus '/nowhere' is not a folder"))
    grid = stub.StubGrid(dict.fromkeys((101, 102), failed))
    clock = Clock()
    with refuses(ValueError, 2, "failed", "node", "/nowhere", "folder"):
        registered(grid, task, 1000.0, clock)
    assert clock.now < 60


@pytest.mark.parametrize("content", [Error(2, "boom"), RecordDict()], ids=["raises", "garbage"])
def test_a_node_that_fails_ends_nothing_for_nodes_that_come_later(task, content, caplog):
    hosts, clock = stub.shards(task, 4), Clock()
    grid = stub.StubGrid({})

    def appeared():
        there = {key: host for n, (key, host) in enumerate(hosts.items()) if clock.now >= 4 * n}
        grid.hosts = there | {999: Answers.claiming(task, content)}
        return list(grid.hosts)

    grid.get_node_ids = appeared
    assert len(registered(grid, task, 300.0, clock).node_of) == 12
    assert clock.now < 20 and "node 999 failed" in caplog.text


def test_a_node_that_comes_back_under_another_id_hosts_its_users_again(task):
    hosts, clock = stub.shards(task, 4), Clock()
    grid = stub.StubGrid({})
    first, *others = hosts

    def appeared():
        there = {first if clock.now < 5 else 555: hosts[first]}
        there |= {key: hosts[key] for key in others if clock.now >= 10}
        grid.hosts = {**grid.hosts, **there}
        return list(there)

    grid.get_node_ids = appeared
    found = registered(grid, task, 300.0, clock)
    assert len(found.node_of) == 12 and not found.contested
    assert sum(node == 555 for node in found.node_of.values()) == 3


def test_a_node_whose_ids_are_by_another_key_is_named_with_the_cause(task):
    hosts = stub.shards(task, 3)
    hosts[102] = replace(hosts[102], user_ids=hosts[102].user_ids | {"newcomer"})
    others = RecordDict({"registration": ConfigRecord({"user-ids": ["x", "y", "z"]})})
    with pytest.raises(ValueError) as refused:
        registered(stub.StubGrid({**hosts, 103: Answers.claiming(task, others)}), task)
    said = str(refused.value)
    assert "4, 4, 0 rostered users" in said and "people.key" in said
    assert "node 103" in said and "node 101" not in said
    del hosts[103]
    with pytest.raises(ValueError) as refused:
        registered(stub.StubGrid(hosts), task)
    assert "host 4, 4 rostered users;" in str(refused.value) and "key" not in str(refused.value)


def test_two_nodes_that_are_the_same_partition_are_both_named(task):
    """Else all that is said is that half of the users are hosted by none."""
    hosts = stub.shards(task, 2)
    twice = {101: hosts[101], 102: hosts[101]}
    with refuses(ValueError, 6, 12) as refused:
        registered(stub.StubGrid(twice), task)
    said = str(refused.value)
    assert "6 by node 101 and by node 102" in said and "partition-id" in said
    assert "user-" not in said


def test_users_outside_the_roster_wait_for_a_new_plan(task, caplog):
    hosts = stub.shards(task, 3)
    hosts[101] = replace(hosts[101], user_ids=hosts[101].user_ids | {"newcomer"})
    with caplog.at_level(logging.INFO, "fedpriv"):
        registry = registered(stub.StubGrid(hosts), task)
    assert "newcomer" not in registry.node_of
    assert "1 hosted users are not on this plan's roster" in caplog.text


def test_a_node_that_lists_its_users_over_and_over_hosts_them_once(task):
    hosts = stub.shards(task, 3)
    many = [user_id for _ in range(50) for user_id in sorted(hosts[102].user_ids)]
    content = RecordDict({"registration": ConfigRecord({"user-ids": many})})
    repeating = {**hosts, 102: Answers.claiming(task, content)}
    found = registered(stub.StubGrid(repeating), task)
    assert found == registered(stub.StubGrid(hosts), task)
    assert len(found.hosts(task.roster)[102]) == 4


HOSTILE = {
    "nothing": RecordDict(),
    "no list": RecordDict({"registration": ConfigRecord({"user-ids": "user-02"})}),
    "numbers": RecordDict({"registration": ConfigRecord({"user-ids": [2, 5]})}),
    "empty id": RecordDict({"registration": ConfigRecord({"user-ids": [""]})}),
    "endless id": RecordDict({"registration": ConfigRecord({"user-ids": ["x" * 257]})}),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_registration_that_is_none_leaves_its_node_out(task, content):
    hosts = stub.shards(task, 3)
    hosts[103] = Answers.claiming(task, content)
    with refuses(ValueError, 4, 12, "rostered", "hosted", "none", 3):
        registered(stub.StubGrid(hosts), task)
