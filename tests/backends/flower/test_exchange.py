"""Messages in flight: windows, deadlines, and replies that should not count."""

from __future__ import annotations

import httpx
import pytest
from flwr.app import Error, Message, RecordDict

from fedpriv.backends.flower.strategy import GridSettings
from fedpriv.rng import Key
from tests.backends.flower.stub_grid import Federation
from tests.harness.waiting import Clock


class Timed(Federation):
    """Twelve nodes of one user each, with a clock that moves when somebody sleeps."""

    def __init__(self, num_users=12, *, settings=None, **grid):
        super().__init__(num_users, settings=settings or GridSettings(round_deadline=30.0), **grid)
        self.clock = Clock()
        exchange = self.backend.exchange
        exchange.clock, exchange.sleep = self.clock, self.clock.sleep
        self.cohort = self.task.roster[:8]

    def sum(self, cohort=None, **given):
        return super().sum(cohort or self.cohort, **given)

    def is_sum_without(self, found, *gone):
        return super().is_sum_without(found, *gone, cohort=self.cohort)


def test_silent_nodes_are_missing_after_the_deadline():
    federation = Timed()
    federation.grid.silent = {102, 105}
    found = federation.sum()
    assert federation.is_sum_without(found, 102, 105)
    assert found.num_failed == 2
    assert federation.counts == {"missing": 2}
    assert 30.0 <= federation.clock.now < 31.0


def test_everybody_is_asked_at_once_however_few_answers_are_pulled():
    settings = GridSettings(round_deadline=30.0, max_in_flight=2)
    federation = Timed(settings=settings)
    federation.grid.silent = set(range(101, 113))
    federation.sum(federation.task.roster)
    assert federation.counts == {"missing": 12}
    assert len(federation.grid.requests) == 12


def test_slow_nodes_hold_nobody_up_and_order_does_not_matter():
    federation = Timed(settings=GridSettings(round_deadline=30.0, max_in_flight=3))
    federation.grid.slow = {101: 40, 103: 3, 104: 7}
    found = federation.sum()
    assert federation.is_sum_without(found)
    assert not federation.counts


@pytest.mark.slow
def test_a_late_answer_counts_for_no_later_round():
    federation = Timed()
    federation.grid.slow = {104: 10_000}
    first = federation.sum()
    assert federation.is_sum_without(first, 104)
    federation.grid._patience = dict.fromkeys(federation.grid._patience, 0)
    federation.grid.slow = {}
    second = federation.sum(round_num=2)
    assert federation.is_sum_without(second)
    assert federation.counts == {"missing": 1, "late": 1}
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
    return [Message(Error(2, "x" * 99), reply_to=request)]


def away(request, reply):
    return [Message(Error(5, "Node Unavailable"), reply_to=request)]


def undecodable(request, reply):
    raise ValueError("Unexpected set of `children`.")


TAMPERED = {
    "thrice": (lambda request, reply: [reply, reply, reply], (), {"duplicate": 2}),
    "forged and true": (forged_and_true, (), {"foreign": 1}),
    "of another node": (as_another_node, (102,), {"foreign": 1, "missing": 1}),
    "to another": (to_another_request, (102,), {"foreign": 1, "missing": 1}),
    "error": (error, (102,), {"error": 1}),
    "away": (away, (102,), {"missing": 1}),
    "undecodable": (undecodable, (102,), {"unreadable": 1}),
}


@pytest.mark.parametrize(("tamper", "lost", "counts"), TAMPERED.values(), ids=TAMPERED)
def test_what_is_no_answer_costs_its_own_user_alone(tamper, lost, counts):
    federation = Timed(tamper={102: tamper})
    found = federation.sum()
    assert federation.is_sum_without(found, *lost)
    assert found.num_failed == len(lost) and federation.counts == counts


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_replayed_answer_is_stale(attempt):
    """To an earlier attempt, or to one of the same number: a server that began again from an older
    ledger has only another nonce."""
    federation, kept = Timed(), []
    federation.grid.tamper = {102: lambda request, reply: kept.append(reply) or [reply]}
    federation.sum()
    replayed = {102: lambda request, reply: [Message(kept[0].content, reply_to=request)]}
    federation.grid.tamper = replayed
    found = federation.sum(attempt=attempt)
    assert federation.is_sum_without(found, 102)
    assert federation.counts == {"stale": 1}


def test_a_request_that_is_not_taken_is_missing():
    federation = Timed()
    push = federation.grid.push_messages

    def refuse_one(messages):
        (message,) = messages
        return [None] if message.metadata.dst_node_id == 102 else push([message])

    federation.grid.push_messages = refuse_one
    found = federation.sum()
    assert federation.is_sum_without(found, 102)
    assert federation.counts == {"missing": 1}


def test_an_interrupt_while_an_answer_is_decoded_is_no_unreadable_answer():
    federation = Timed()

    def interrupted(ids):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise SystemError("a decoder returned a result with an exception set") from error

    federation.grid.pull_messages = interrupted
    with pytest.raises(KeyboardInterrupt):
        federation.sum(federation.task.roster[:5])
    assert federation.counts["unreadable"] == 0


@pytest.mark.parametrize("method", ["push_messages", "pull_messages"])
def test_a_superlink_that_is_gone_stops_the_run(method):
    """Rounds that reach nobody would be charged for nothing; a resumed run goes on later."""
    federation = Timed()

    def gone(*_):
        raise httpx.ConnectError("refused")

    setattr(federation.grid, method, gone)
    with pytest.raises(httpx.ConnectError):
        federation.sum(federation.task.roster[:3])


def test_a_node_learns_its_own_users_and_the_rounds_key_only():
    federation = Timed()
    root = Key.simulation(1)
    key = root.fold("users").fold(3).fold(1)
    federation.sum(round_num=3, key=key)
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
