"""The ledger: charged before anything is drawn, chained, never under-counting."""

import json
import os
from functools import partial

import pytest

from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import BudgetSpentError, read_ledger
from tests.harness.disks import noted
from tests.harness.refusals import refuses
from tests.privacy.ledger.kept import DIGEST, PLAN, changed, create


def test_a_run_is_charged_released_and_accounted(path):
    with create(path, note="hello") as ledger:
        assert (ledger.charges, ledger.plan, ledger.mode) == (0, PLAN, "simulation")
        assert ledger.extra.keys() == {"note", "started"} and ledger.extra["note"] == "hello"
        assert len(ledger.run_id) == 32
        for round_num in (1, 2, 3):
            assert ledger.attempts(round_num) == 0
            ledger.charge(round_num, 1)
            assert ledger.attempts(round_num) == 1 and ledger.release_of(round_num, 1) is None
            ledger.release(round_num, 1, DIGEST)
            assert ledger.release_of(round_num, 1) and ledger.attempts(round_num) == 1
        assert ledger.lost == ()
        assert ledger.epsilon() == PLAN.epsilon(3)
        head = ledger.head
    records, state, torn = read_ledger(path)
    assert records[-1].hash == head and torn == 0
    assert [charge.round_num for charge in state.charges] == [1, 2, 3]


def test_the_line_is_on_the_disk_before_charge_returns(path, monkeypatch):
    """Write, then sync, then return; so nothing can be drawn for an unsynced charge."""
    with create(path) as ledger:
        order = noted(monkeypatch, "write", "fsync")
        ledger.charge(1, 1)
        assert order == ["write", "fsync"]
    assert json.loads(path.read_bytes().splitlines()[-1])["kind"] == "charge"


def test_creation_syncs_file_and_folder(path, monkeypatch):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))[1]
    )
    create(path).close()
    assert str(path) in synced and str(path.parent) in synced


def test_a_lost_attempt_is_spent_and_redone_under_another_number(path):
    with create(path) as ledger:
        ledger.charge(1, 1)
        ledger.release(1, 1, DIGEST)
        ledger.charge(2, 1)
    with Ledger.open(path) as ledger:
        ledger.resume()
        assert [(charge.round_num, charge.attempt) for charge in ledger.lost] == [(2, 1)]
        assert ledger.attempts(2) == 1
        with refuses(LedgerError, 1, 2):
            ledger.charge(2, 1)
        ledger.charge(2, 2)
        ledger.release(2, 2, DIGEST)
        assert ledger.charges == 3
        assert ledger.epsilon() == PLAN.epsilon(3)


@pytest.mark.parametrize("target", [None, 0.15])
def test_the_budget_stops_before_the_charge(path, target):
    made = changed(target_epsilon=target)
    with create(path, made) as ledger:
        for attempt in range(1, made.affordable_rounds + 1):
            ledger.charge(1, attempt)
        if target is not None:
            assert 0 < ledger.charges < 10 and ledger.epsilon().value <= target
        before = path.read_bytes()
        with refuses(BudgetSpentError, target or 10):
            ledger.charge(2, 1)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "call",
    [
        lambda ledger: ledger.charge(0, 1),
        lambda ledger: ledger.charge(1, 0),
        lambda ledger: ledger.charge(11, 1),
        lambda ledger: ledger.charge(1, 3),
        lambda ledger: ledger.charge(1, 1),
        lambda ledger: ledger.charge("1", 1),
        lambda ledger: ledger.charge(True, 1),
        lambda ledger: ledger.charge(1.0, 2),
        lambda ledger: ledger.release(2, 1, DIGEST),
        lambda ledger: ledger.release(1, 2, DIGEST),
        lambda ledger: ledger.release(1, 1, DIGEST),
        lambda ledger: ledger.release(1, 1, "short"),
        lambda ledger: ledger.row(1),
    ],
)
@pytest.mark.parametrize("in_memory", [False, True])
def test_what_does_not_follow_is_refused_and_nothing_is_written(path, call, in_memory):
    with Ledger.in_memory(PLAN, mode="secure") if in_memory else create(path) as ledger:
        ledger.charge(1, 1)
        ledger.release(1, 1, DIGEST)
        before = path.exists() and path.read_bytes()
        with pytest.raises(LedgerError):
            call(ledger)
        assert (path.exists() and path.read_bytes()) == before
        ledger.charge(2, 1)  # still alive
        assert ledger.charges == 2
    with pytest.raises(LedgerError):
        ledger.charge(2, 2)


def test_only_the_attempt_charged_last_can_be_released(path):
    with create(path) as ledger:
        ledger.charge(1, 1)
        ledger.charge(1, 2)
        with refuses(LedgerError, 1):
            ledger.release(1, 1, DIGEST)
        ledger.release(1, 2, DIGEST)


def test_other_modes_and_values_json_cannot_hold_are_refused(path):
    for make in (partial(Ledger.create, path), Ledger.in_memory):
        with refuses(ValueError, "public"):
            make(PLAN, mode="public")
    for bad in (float("nan"), object()):
        with pytest.raises(LedgerError):
            create(path, bad=bad)


def test_the_ledger_of_a_run_that_is_not_kept_touches_no_disk(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("open", "write", "fsync"):
        monkeypatch.setattr(os, name, lambda *args, **named: pytest.fail("it was written"))
    with Ledger.in_memory(PLAN, mode="simulation") as ledger:
        for round_num in range(1, 11):
            ledger.charge(round_num, 1)
            ledger.release(round_num, 1, DIGEST)
        assert (ledger.path, ledger.mode, ledger.plan) == (None, "simulation", PLAN)
        assert ledger.epsilon() == PLAN.total() and not ledger.pays_for_more
        with pytest.raises(BudgetSpentError):
            ledger.charge(1, 2)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
