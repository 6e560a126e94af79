"""The ledger of centralised training: a release stands for the steps since the one before."""

from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.ledger import Ledger
from tests.harness.refusals import refuses
from tests.privacy.plans.clipped import clipped


class TestLedger:
    def ledger(self, path, unit="example"):
        plan = clipped(
            num_users=60, expected_cohort_size=6, num_rounds=20, l2_bound=1.0, noise_multiplier=1.0,
            unit=unit,
        )  # fmt: skip
        return Ledger.create(path / f"{unit}.jsonl", plan=plan, mode="simulation")

    def charged(self, ledger, *pairs):
        for pair in pairs:
            ledger.charge(*pair)

    def test_a_release_stands_for_the_steps_since_the_one_before(self, tmp_path):
        with self.ledger(tmp_path) as ledger:
            self.charged(ledger, (1, 1), (2, 1), (3, 1))
            assert len(ledger.lost) == 3  # nothing came of them so far
            ledger.release(3, 1, "0" * 64)
            assert ledger.lost == () and ledger.state.rounds_done == 3
            self.charged(ledger, (4, 1), (5, 1), (4, 2))
            assert len(ledger.lost) == 3
            ledger.release(4, 2, "0" * 64)
            assert [(c.round_num, c.attempt) for c in ledger.lost] == [(4, 1), (5, 1)]
            self.charged(ledger, (5, 2), (6, 1))
            ledger.release(6, 1, "0" * 64)
            assert [(c.round_num, c.attempt) for c in ledger.lost] == [(4, 1), (5, 1)]
            assert ledger.state.rounds_done == 6 and ledger.charges == 8
            assert ledger.epsilon() == ledger.plan.epsilon(8)

    def test_users_rounds_are_lost_without_a_release_of_their_own(self, tmp_path):
        with self.ledger(tmp_path, unit="user") as ledger:
            self.charged(ledger, (1, 1), (2, 1))
            ledger.release(2, 1, "0" * 64)
            # A release says what it is made of.
            assert ledger.lost == () and ledger.state.releases[-1].charges == ((1, 2),)
            self.charged(ledger, (3, 1), (3, 2))
            ledger.release(3, 2, "0" * 64)
            assert [(c.round_num, c.attempt) for c in ledger.lost] == [(3, 1)]

    def test_no_step_is_left_out(self, tmp_path):
        """A release stands for steps that were charged, so none may be missing."""
        with self.ledger(tmp_path) as ledger:
            self.charged(ledger, (1, 1))
            with refuses(LedgerError, 3, 2):
                ledger.charge(3, 1)

    def test_only_what_was_charged_last_is_released(self, tmp_path):
        with self.ledger(tmp_path) as ledger:
            self.charged(ledger, (1, 1), (2, 1))
            with refuses(LedgerError, 1):
                ledger.release(1, 1, "0" * 64)
