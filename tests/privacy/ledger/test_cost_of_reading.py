"""Reading and writing a ledger take time linear in its lines."""

import cProfile
import os
import pstats

import pytest

from fedpriv.privacy.event import Event
from fedpriv.privacy.ledger.chain import decode
from fedpriv.privacy.ledger.state import LedgerState, read_ledger
from fedpriv.privacy.plan import AdaptivePlan, cohort_plan
from tests.privacy.ledger.kept import DIGEST, PLAN, create, plan_of, rewritten


def steps_of(call):
    """Number of function calls that a call makes."""
    profile = cProfile.Profile()
    profile.runcall(call)
    return pstats.Stats(profile).total_calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rounds", "lost", "steps", "queries", "rows", "prices"])
def test_reading_a_ledger_takes_time_linear_in_its_lines(tmp_path, kind):
    """Counted in function calls, not by a clock: four times as many for four times.

    Hashing is done by C, a line at a time; here is what the lines add up to.
    """

    def records(number):
        rounds = {"rows": number + 1}.get(kind, 10 * number)
        made = cohort_plan(**{**PLAN.to_json(), "num_rounds": rounds})
        if kind == "steps":
            made = cohort_plan(**{**made.to_json(), "unit": "example"})
        if kind == "rows":
            made = plan_of("gaussian", 3.0, rounds=rounds, whole_run=True, delta=1e-5)
        if kind == "prices":
            made = AdaptivePlan(num_users=400, rho=1e6, delta=1e-5)
        path = tmp_path / f"{number}.jsonl"
        event = PLAN.event.to_json()

        def lines(first):
            yield first
            if kind == "rows":
                yield "charge", {"round_num": 1, "attempt": 1, "event": made.event.to_json()}
            for n in range(1, number + 1):
                released = {"round_num": n, "attempt": 1, "digest": DIGEST}
                if kind == "rounds":
                    yield "charge", {"round_num": n, "attempt": 1, "event": event}
                    yield "release", {**released, "charges": [[n, n]]}
                elif kind == "lost":
                    yield "charge", {"round_num": 1, "attempt": n, "event": event}
                elif kind == "steps":
                    yield "charge", {"round_num": n, "attempt": 1, "event": event}
                    if n % 100 == 0:
                        yield "release", released
                elif kind == "queries":
                    yield "charge", {"round_num": n, "attempt": 1, "event": event}
                    yield "charge", {"round_num": n, "attempt": 1, "event": event, "query": "b"}
                    yield "release", {**released, "charges": [[2 * n - 1, 2 * n]]}
                elif kind == "rows":
                    yield "row", {"row": n, "round_num": n}
                    yield "release", {**released, "attempt": n}
                else:
                    price = {"kind": "zcdp", "rho": 1.0}
                    yield "charge", {"round_num": n, "attempt": 1, "event": price}

        create(path, made).close()
        rewritten(path, lambda first: lines(first[0]))
        return decode(path.read_bytes()).records

    def read(lines):
        state = LedgerState.replay(lines)
        assert len(state.lost) + len(state.charges) + state.rounds_done > 0

    few, many = records(500), records(2000)
    read(few)  # what is computed once and kept
    one, four = (steps_of(lambda lines=lines: read(lines)) for lines in (few, many))
    assert len(many) > 3.9 * len(few) and one > 5000
    assert four <= 4.1 * one


def test_events_of_a_ledger_are_checked_once(tmp_path, monkeypatch):
    """A ledger repeats one event by the ten thousand; to check it each time was its cost."""
    made = 0
    check = Event.__post_init__

    def counted(self):
        nonlocal made
        made += 1
        check(self)

    path = tmp_path / "ledger.jsonl"
    create(path, cohort_plan(**{**PLAN.to_json(), "num_rounds": 2000})).close()
    charge = {"attempt": 1, "event": {**PLAN.event.to_json(), "sampling_prob": 0.05}}
    rewritten(
        path,
        lambda lines: [*lines, *(("charge", {"round_num": n, **charge}) for n in range(1, 2001))],
    )
    monkeypatch.setattr(Event, "__post_init__", counted)
    assert len(read_ledger(path)[1].charges) == 2000
    assert made < 20


def test_writing_a_charge_does_not_read_those_before(path, monkeypatch):
    """As many lines of Python for the 2000th round as for the 100th."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    steps = []
    with create(path, cohort_plan(**{**PLAN.to_json(), "num_rounds": 3000})) as ledger:
        for number in range(1, 2001):

            def play(number=number):
                ledger.charge(number, 1)
                ledger.release(number, 1, DIGEST)

            if number in (100, 2000):
                steps.append(steps_of(play))
            else:
                play()
    assert steps[0] == steps[1] > 10
