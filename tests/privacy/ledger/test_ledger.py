"""The ledger: charged before anything is drawn, chained, never under-counting."""

import json
import os

import pytest

from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.ledger import BudgetSpentError, Ledger
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.plan import cohort_plan
from tests.privacy.ledger.kept import DIGEST, PLAN, create


def test_a_run_is_charged_released_and_accounted(path):
    with create(path, note="hello") as ledger:
        assert (ledger.charges, ledger.plan, ledger.mode) == (0, PLAN, "simulation")
        assert ledger.extra.keys() == {"note", "started"} and ledger.extra["note"] == "hello"
        assert len(ledger.run_id) == 32
        for round_num in (1, 2, 3):
            assert ledger.attempts(round_num) == 0
            ledger.charge(round_num, 1)
            assert ledger.attempts(round_num) == 1 and not ledger.has_release(round_num, 1)
            ledger.release(round_num, 1, DIGEST)
            assert ledger.has_release(round_num, 1) and ledger.attempts(round_num) == 1
        assert ledger.lost == ()
        assert ledger.epsilon() == PLAN.epsilon(3)
        head = ledger.head
    records, state, torn = read_ledger(path)
    assert records[-1].hash == head and torn == 0
    assert [charge.round_num for charge in state.charges] == [1, 2, 3]


def test_the_line_is_on_the_disk_before_charge_returns(path, monkeypatch):
    """Write, then sync, then return; so nothing can be drawn for an unsynced charge."""
    order = []
    write, sync = os.write, os.fsync
    ledger = create(path)
    monkeypatch.setattr(os, "write", lambda *args: (order.append("write"), write(*args))[1])
    monkeypatch.setattr(os, "fsync", lambda *args: (order.append("sync"), sync(*args))[1])
    ledger.charge(1, 1)
    order.append("returned")
    assert order == ["write", "sync", "returned"]
    assert json.loads(path.read_bytes().splitlines()[-1])["kind"] == "charge"
    ledger.close()


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
        with pytest.raises(LedgerError, match="attempt 1 of round 2"):
            ledger.charge(2, 1)
        ledger.charge(2, 2)
        ledger.release(2, 2, DIGEST)
        assert ledger.charges == 3
        assert ledger.epsilon() == PLAN.epsilon(3)


def test_the_budget_stops_before_the_charge(path):
    with create(path) as ledger:
        for attempt in range(1, 11):
            ledger.charge(1, attempt)
        before = path.read_bytes()
        with pytest.raises(BudgetSpentError, match="10 charges"):
            ledger.charge(2, 1)
        assert path.read_bytes() == before


def test_the_target_stops_before_the_charge(tmp_path):
    made = cohort_plan(**{**PLAN.to_json(), "target_epsilon": 0.15})
    path = tmp_path / "ledger.jsonl"
    with create(path, made) as ledger:
        for round_num in range(1, made.affordable_rounds + 1):
            ledger.charge(round_num, 1)
        assert 0 < ledger.charges < 10 and ledger.epsilon().value <= 0.15
        before = path.read_bytes()
        with pytest.raises(BudgetSpentError, match="above the target"):
            ledger.charge(ledger.charges + 1, 1)
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
    ],
)
def test_what_does_not_follow_is_refused_and_nothing_is_written(path, call):
    with create(path) as ledger:
        ledger.charge(1, 1)
        ledger.release(1, 1, DIGEST)
        before = path.read_bytes()
        with pytest.raises(LedgerError):
            call(ledger)
        assert path.read_bytes() == before
        ledger.charge(2, 1)  # still alive


def test_only_the_attempt_charged_last_can_be_released(path):
    with create(path) as ledger:
        ledger.charge(1, 1)
        ledger.charge(1, 2)
        with pytest.raises(LedgerError, match="charged last"):
            ledger.release(1, 1, DIGEST)
        ledger.release(1, 2, DIGEST)


def test_other_modes_and_values_json_cannot_hold_are_refused(path):
    with pytest.raises(ValueError, match="mode"):
        Ledger.create(path, PLAN, mode="public")
    with pytest.raises(LedgerError):
        create(path, bad=float("nan"))
    with pytest.raises(LedgerError):
        create(path, bad=object())


class TestInMemory:
    """The ledger of a run that is not kept goes by the same rules, and touches no disk."""

    def test_nothing_is_written(self, monkeypatch, tmp_path):
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

    def test_the_same_is_refused(self):
        ledger = Ledger.in_memory(PLAN, mode="secure")
        ledger.charge(1, 1)
        for call in (
            lambda: ledger.charge(1, 1),
            lambda: ledger.charge(11, 1),
            lambda: ledger.release(2, 1, DIGEST),
            lambda: ledger.row(1),
        ):
            with pytest.raises(LedgerError):
                call()
        assert ledger.charges == 1
        ledger.close()
        with pytest.raises(LedgerError, match="closed"):
            ledger.charge(1, 2)
        with pytest.raises(ValueError, match="mode"):
            Ledger.in_memory(PLAN, mode="public")
