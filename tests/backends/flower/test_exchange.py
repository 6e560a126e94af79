"""Messages in flight: windows, deadlines, and replies that should not count."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from flwr.app import Error, Message, RecordDict

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.backend import Order
from fedpriv.backends.flower.exchange import Exchange
from fedpriv.backends.flower.strategy import GridSettings, UserLevelStrategy
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.training.local.trainer import Schedule
from tests.backends.flower.stub_grid import Clock

BOUND, SCHEDULE = Rounded(bound=Clip(l2_clip_norm=0.3)), Schedule(learning_rate=2.0)


class Federation:
    """Twelve nodes of one user each, an in-process oracle, and a clock of its own."""

    def __init__(self, stub, *, num_users=12, settings=None, **grid):
        self.task = stub.TinyTags(num_users)
        self.clock = Clock()
        self.grid = stub.StubGrid(stub.shards(self.task, num_users), **grid)
        self.strategy = UserLevelStrategy(
            roster=self.task.roster,
            settings=settings or GridSettings(round_deadline=30.0),
        )
        self.oracle = SerialBackend(trainer=self.task.trainer(SCHEDULE, {}), data=self.task.data)
        backend = self.strategy.start(self.grid, lambda backend: backend)
        exchange = Exchange(
            grid=self.grid,
            max_in_flight=backend.exchange.max_in_flight,
            clock=self.clock,
            sleep=self.clock.sleep,
            dropped=self.strategy.counts,
        )
        self.backend = replace(backend, exchange=exchange)

    def sum(self, cohort, *, round_num=1, attempt=1, backend=None, key=None):
        order = Order(
            params=self.task.params(), bound=BOUND, key=key or Key.simulation(1),
            round_num=round_num, attempt=attempt,
        )  # fmt: skip
        return (backend or self.backend).sum_over(cohort, order)

    def off_by(self, found, cohort):
        """The distance of a sum from the oracle's over these users."""
        expected = tree.to_dense(self.sum(cohort, backend=self.oracle).real())
        real = tree.to_dense(found.real())
        return tree.l2_norm({name: real[name] - expected[name] for name in real})

    def without(self, cohort, *node_ids):
        gone = {self.task.roster[node_id - 101] for node_id in node_ids}
        return [user for user in cohort if user not in gone]


def test_silent_nodes_are_missing_after_the_deadline(stub):
    federation = Federation(stub, silent=set())
    federation.grid.silent = {102, 105}
    cohort = federation.task.roster[:8]
    found = federation.sum(cohort)
    assert federation.off_by(found, federation.without(cohort, 102, 105)) < 1e-9
    assert found.num_failed == 2
    assert federation.strategy.counts == {"missing": 2}
    assert 30.0 <= federation.clock.now < 31.0


def test_everybody_is_asked_at_once_however_few_answers_are_pulled(stub):
    settings = GridSettings(round_deadline=30.0, max_in_flight=2)
    federation = Federation(stub, settings=settings)
    federation.grid.silent = set(range(101, 113))
    federation.sum(federation.task.roster)
    assert federation.strategy.counts == {"missing": 12}
    assert len(federation.grid.requests) == 12


def test_slow_nodes_hold_nobody_up_and_order_does_not_matter(stub):
    federation = Federation(stub, settings=GridSettings(round_deadline=30.0, max_in_flight=3))
    federation.grid.slow = {101: 40, 103: 3, 104: 7}
    cohort = federation.task.roster[:8]
    found = federation.sum(cohort)
    assert federation.off_by(found, cohort) < 1e-9
    assert not federation.strategy.counts


def test_a_late_answer_counts_for_no_later_round(stub):
    federation = Federation(stub)
    cohort = federation.task.roster[:8]
    federation.grid.slow = {104: 10_000}
    first = federation.sum(cohort)
    assert federation.off_by(first, federation.without(cohort, 104)) < 1e-9
    federation.grid._patience = dict.fromkeys(federation.grid._patience, 0)
    federation.grid.slow = {}
    second = federation.sum(cohort, round_num=2)
    assert federation.off_by(second, cohort) < 1e-9
    assert federation.strategy.counts == {"missing": 1, "late": 1}
    assert federation.grid.in_flight == 0


def as_another_node(request, reply):
    reply.metadata.__dict__["_src_node_id"] = 105
    return [reply]


def to_another_request(request, reply):
    reply.metadata.__dict__["_reply_to_message_id"] = "somebody-elses"
    return [reply]


def forged_and_true(request, reply):
    return [*as_another_node(request, Message(RecordDict(), reply_to=request)), reply]


def error(request, reply):
    return [Message(Error(3, "x" * 99), reply_to=request)]


def undecodable(request, reply):
    raise ValueError("Unexpected set of `children`.")


@pytest.mark.parametrize(
    ("tamper", "lost", "counts"),
    [
        (lambda request, reply: [reply, reply, reply], (), {"duplicate": 2}),
        (forged_and_true, (), {"foreign": 1}),
        (as_another_node, (102,), {"foreign": 1, "missing": 1}),
        (to_another_request, (102,), {"foreign": 1, "missing": 1}),
        (error, (102,), {"error": 1}),
        (undecodable, (102,), {"unreadable": 1}),
    ],
    ids=["thrice", "forged and true", "of another node", "to another", "error", "undecodable"],
)
def test_what_is_no_answer_costs_its_own_user_alone(stub, tamper, lost, counts):
    federation = Federation(stub, tamper={102: tamper})
    cohort = federation.task.roster[:8]
    found = federation.sum(cohort)
    assert federation.off_by(found, federation.without(cohort, *lost)) < 1e-9
    assert found.num_failed == len(lost) and federation.strategy.counts == counts


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_replayed_answer_is_stale(stub, attempt):
    """To an earlier attempt, or to one of the same number: a server that began again from an older
    ledger has only another nonce."""
    federation, kept = Federation(stub), []
    cohort = federation.task.roster[:8]
    federation.grid.tamper = {102: lambda request, reply: kept.append(reply) or [reply]}
    federation.sum(cohort)
    replayed = {102: lambda request, reply: [Message(kept[0].content, reply_to=request)]}
    federation.grid.tamper = replayed
    found = federation.sum(cohort, attempt=attempt)
    assert federation.off_by(found, federation.without(cohort, 102)) < 1e-9
    assert federation.strategy.counts == {"stale": 1}


def test_a_request_that_is_not_taken_is_missing(stub):
    federation = Federation(stub)
    cohort = federation.task.roster[:8]
    push = federation.grid.push_messages

    def refuse_one(messages):
        (message,) = messages
        return [None] if message.metadata.dst_node_id == 102 else push([message])

    federation.grid.push_messages = refuse_one
    found = federation.sum(cohort)
    assert federation.off_by(found, federation.without(cohort, 102)) < 1e-9
    assert federation.strategy.counts == {"missing": 1}


def test_an_interrupt_while_an_answer_is_decoded_is_no_unreadable_answer(stub):
    federation = Federation(stub)

    def interrupted(ids):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise SystemError("a decoder returned a result with an exception set") from error

    federation.grid.pull_messages = interrupted
    with pytest.raises(KeyboardInterrupt):
        federation.sum(federation.task.roster[:5])
    assert federation.strategy.counts["unreadable"] == 0


@pytest.mark.parametrize("method", ["push_messages", "pull_messages"])
def test_a_superlink_that_is_gone_stops_the_run(stub, method):
    """Rounds that reach nobody would be charged for nothing; a resumed run goes on later."""
    federation = Federation(stub)

    def gone(*_):
        raise httpx.ConnectError("refused")

    setattr(federation.grid, method, gone)
    with pytest.raises(httpx.ConnectError):
        federation.sum(federation.task.roster[:3])


def test_memory_does_not_grow_with_the_cohort(stub):
    """At most a window of answers is alive at a time; what requests share is there once."""
    for num_users in (8, 64):
        settings = GridSettings(max_in_flight=4, round_deadline=600.0)
        federation = Federation(stub, num_users=num_users, settings=settings, on_wire=False)
        found = federation.sum(federation.task.roster)
        assert federation.off_by(found, federation.task.roster) < 1e-9
        assert federation.grid.live <= 4 + 1  # one more is being added
        shared = [{id(m.content[name]) for m in federation.grid.requests} for name in
                  ("params", "multiplier-before-bound")]  # fmt: skip
        assert [len(ids) for ids in shared] == [1, 1]


def test_a_node_learns_its_own_users_and_the_rounds_key_only(stub):
    federation = Federation(stub)
    root = Key.simulation(1)
    key = root.fold("users").fold(3).fold(1)
    cohort = federation.task.roster[:8]
    federation.sum(cohort, round_num=3, key=key)
    secrets = [root, root.fold("noise"), root.fold("users"), root.fold("cohort")]
    for message in federation.grid.requests:
        own = federation.grid.hosts[message.metadata.dst_node_id].user_ids
        seen = [value for record in message.content.values() for value in record.values()]
        text = repr(seen)
        assert [user for user in federation.task.roster if user in text] == sorted(own)
        held = [value for value in seen if isinstance(value, bytes)]
        assert held == [key.to_bytes()]
        assert not {secret.to_bytes() for secret in secrets} & set(held)
        assert message.metadata.group_id == "3.1"
