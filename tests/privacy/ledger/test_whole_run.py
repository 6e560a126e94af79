"""One charge for a whole run, whose noise has memory."""

from dataclasses import replace

import pytest

from fedpriv.mechanisms.event import Event
from fedpriv.privacy.accounting import epsilon
from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import BudgetSpentError, read_ledger
from fedpriv.privacy.plan import FilterPlan
from tests.harness.disks import noted
from tests.harness.refusals import refuses
from tests.privacy.ledger.kept import DIGEST, PLAN, create, plan_of, rewritten


class TestWholeRun:
    """Noise with memory: one charge for all rows, each of which meets one sum at most."""

    ROWS = plan_of("gaussian", 3.0, rounds=4, whole_run=True, delta=1e-5)

    def test_it_is_charged_once_for_all_its_rows(self, path):
        with create(path, self.ROWS) as ledger:
            assert ledger.pays_for_more and ledger.plan.charged_once
            with pytest.raises(LedgerError):
                ledger.row(1)
            ledger.charge(1, 1)
            spent = ledger.epsilon()
            assert spent == epsilon(self.ROWS.event, 1, delta=1e-5, relation="add-remove")
            assert spent == self.ROWS.total()
            for number in range(1, 5):
                assert ledger.row(number).row == number == ledger.rows == ledger.last_attempt
                ledger.release(number, number, DIGEST)
                assert ledger.epsilon() == spent
            assert ledger.charges == 1 and not ledger.pays_for_more
            with refuses(BudgetSpentError, 4):
                ledger.row(5)
            for again in ((1, 2), (2, 1)):
                with pytest.raises(BudgetSpentError):
                    ledger.charge(*again)
        _, state, _ = read_ledger(path)
        assert [(row.row, row.round_num) for row in state.rows] == [(n, n) for n in range(1, 5)]
        assert state.releases[0].charges == ((1, 1),) and state.lost == ()
        assert state.rounds_done == 4 and state.epsilon() == spent

    def test_a_target_is_kept(self, path):
        """All rows are charged with the first: a target below their ε admits none."""
        spent = self.ROWS.total().value
        kept = replace(self.ROWS, target_epsilon=spent * 1.01)
        with create(path, kept) as ledger:
            ledger.charge(1, 1)
            assert ledger.row(1).row == 1
        path.unlink()
        with refuses(ValueError, f"{spent * 0.99:g}"):
            replace(self.ROWS, target_epsilon=spent * 0.99)

    def test_a_row_that_a_crash_left_open_is_discarded(self, path):
        with create(path, self.ROWS) as ledger:
            ledger.charge(1, 1)
            ledger.row(1)
            ledger.release(1, 1, DIGEST)
            ledger.row(2)  # and the process dies
        with Ledger.open(path) as ledger:
            ledger.resume()
            assert ledger.row(2).row == 3  # another row for the same round
            ledger.release(2, 3, DIGEST)
            assert ledger.reached(2, 3) and ledger.reached(2, 2) and not ledger.reached(2, 1)
            ledger.row(3)
            assert not ledger.pays_for_more  # the discarded row is gone from the four
        _, state, _ = read_ledger(path)
        assert [(r.row, r.round_num) for r in state.rows] == [(1, 1), (2, 2), (3, 2), (4, 3)]
        assert [r.row for r in state.discarded] == [2, 4]  # of the last nothing came so far

    def test_in_centralised_training_a_row_is_discarded_that_another_follows(self, path):
        with create(path, replace(self.ROWS, unit="example")) as ledger:
            ledger.charge(1, 1)
            for step in (1, 2, 3, 2):  # step 1 alone was kept
                ledger.row(step)
        assert [r.row for r in read_ledger(path)[1].discarded] == [2, 3]

    def test_a_row_is_on_the_disk_before_it_may_be_drawn(self, path, monkeypatch):
        with create(path, self.ROWS) as ledger:
            ledger.charge(1, 1)
            order = noted(monkeypatch, "write", "fsync")
            ledger.row(1)
            assert order == ["write", "fsync"]

    @pytest.mark.parametrize(
        ("drawn", "row", "named"),
        [
            (3, {"row": 5, "round_num": 4}, [5, 4]),
            (3, {"row": 1, "round_num": 3}, [1, 4]),
            (3, {"row": 3, "round_num": 3}, [3, 4]),
            (3, {"row": 4.0, "round_num": 4}, [4.0]),
            (3, {"row": True, "round_num": 4}, [True]),
            (3, {"row": 4, "round_num": 4, "gift": 1}, ["gift"]),
            (3, {"row": 4}, ["round_num"]),
            (4, {"row": 5, "round_num": 5}, [5, 4]),  # more than were made
        ],
        ids=str,
    )
    def test_a_forged_row_is_refused(self, path, drawn, row, named):
        with create(path, self.ROWS) as ledger:
            ledger.charge(1, 1)
            for number in range(1, drawn + 1):
                ledger.row(number)
        rewritten(path, lambda lines: [*lines, ("row", row)])
        with refuses(LedgerError, drawn + 3, *named):
            read_ledger(path)

    @pytest.mark.parametrize("made", [PLAN, FilterPlan(num_users=4, rho=1.0)], ids=["fixed", "ρ"])
    def test_a_run_that_is_charged_round_by_round_has_no_rows(self, path, made):
        event = Event(kind="gaussian", noise_multiplier=1.0) if made is not PLAN else None
        with create(path, made) as ledger:
            ledger.charge(1, 1, event)
            with refuses(LedgerError, 1):
                ledger.row(1)

    def test_a_result_needs_a_row_of_its_own(self, path):
        with create(path, self.ROWS) as ledger:
            ledger.charge(1, 1)
            ledger.row(1)
            with refuses(LedgerError, 2):
                ledger.release(2, 1, DIGEST)
            ledger.release(1, 1, DIGEST)
            with refuses(LedgerError, 1):
                ledger.release(1, 1, DIGEST)
