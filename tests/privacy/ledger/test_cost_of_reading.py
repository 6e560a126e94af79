"""Reading and writing a ledger take time linear in its lines."""

import cProfile
import gc
import os
import pstats
from functools import partial
from itertools import chain

import pytest

from fedpriv.privacy.ledger.chain import decode
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.plan import FilterPlan
from tests.privacy.ledger.kept import DIGEST, PLAN, changed, create, plan_of, rewritten


def steps_of(call):
    """Number of function calls that a call makes; what other tests left is not collected in it."""
    profile = cProfile.Profile()
    gc.disable()
    try:
        profile.runcall(call)
    finally:
        gc.enable()
    return pstats.Stats(profile).total_calls


EVENT = PLAN.event.to_json()


def charge(number, **rest):
    return "charge", {"round_num": number, "attempt": 1, "event": EVENT, **rest}


def released(number, **rest):
    return "release", {"round_num": number, "attempt": 1, "digest": DIGEST, **rest}


ROWS = partial(plan_of, "gaussian", 3.0, whole_run=True, delta=1e-5)
#: The plan of so many rounds, the lines of one, and what comes before all of them.
LINES = {
    "rounds": (changed, lambda n: [charge(n), released(n, charges=[[n, n]])], []),
    "lost": (changed, lambda n: [charge(1, attempt=n)], []),
    "queries": (
        changed,
        lambda n: [charge(n), charge(n, query="b"), released(n, charges=[[2 * n - 1, 2 * n]])],
        [],
    ),
    "rows": (
        lambda num_rounds: ROWS(rounds=num_rounds),
        lambda n: [("row", {"row": n, "round_num": n}), released(n, attempt=n)],
        [charge(1, event=ROWS().event.to_json())],
    ),
    "prices": (
        lambda num_rounds: FilterPlan(num_users=400, rho=1e6, delta=1e-5),
        lambda n: [charge(n, event={"kind": "zcdp", "rho": 1.0})],
        [],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LINES)
def test_reading_a_ledger_takes_time_linear_in_its_lines(tmp_path, kind):
    """Counted in function calls, not by a clock: four times as many for four times.

    Hashing is done by C, a line at a time; here is what the lines add up to.
    """
    make, lines_of, before = LINES[kind]

    def records(number):
        path = tmp_path / f"{number}.jsonl"
        create(path, make(num_rounds=10 * number)).close()
        numbers = range(1, number + 1)
        rewritten(path, lambda first: [*first, *before, *chain(*map(lines_of, numbers))])
        return decode(path.read_bytes()).records

    few, many = records(500), records(2000)
    LedgerState.replay(few)  # what is computed once and kept
    one, four = (steps_of(lambda lines=lines: LedgerState.replay(lines)) for lines in (few, many))
    assert len(many) > 3.9 * len(few) and one > 5000
    assert four <= 4.1 * one


def test_writing_a_charge_does_not_read_those_before(path, monkeypatch):
    """As many lines of Python for the 2000th round as for the 100th."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    steps = []
    with create(path, changed(num_rounds=3000)) as ledger:
        for number in range(1, 2001):

            def play(number=number):
                ledger.charge(number, 1)
                ledger.release(number, 1, DIGEST)

            if number in (100, 2000):
                steps.append(steps_of(play))
            else:
                play()
    assert steps[0] == steps[1] > 10
