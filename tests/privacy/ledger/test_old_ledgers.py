"""What a release is made of, in ledgers of now and of before."""

import pytest

from fedpriv.privacy.event import NONPRIVATE
from fedpriv.privacy.ledger.chain import LedgerError, decode
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import read_ledger
from fedpriv.privacy.plan import cohort_plan
from tests.privacy.ledger.kept import DIGEST, PLAN, create, filled, rewritten


def pairs(charges):
    return [(charge.round_num, charge.attempt) for charge in charges]


class TestReleasedCharges:
    """A release names the charges it is made of; whatever none names is lost."""

    def lines(self, path, kind):
        return [r.fields for r in decode(path.read_bytes()).records if r.kind == kind]

    def test_every_release_names_its_own(self, path):
        filled(path)
        named = [line["charges"] for line in self.lines(path, "release")]
        assert named == [[[number, number]] for number in range(1, 6)]

    def test_attempts_that_came_to_nothing_are_in_none(self, path):
        with create(path) as ledger:
            for attempt in (1, 2, 3):
                ledger.charge(1, attempt)
            ledger.release(1, 3, DIGEST)
            ledger.charge(2, 1)
            ledger.release(2, 1, DIGEST)
            ledger.charge(3, 1)
            assert pairs(ledger.lost) == [(1, 1), (1, 2), (3, 1)]
        assert [line["charges"] for line in self.lines(path, "release")] == [[[3, 3]], [[4, 4]]]

    @pytest.mark.parametrize("named", [[[7, 7]], [[1, 9]], [], [[2, 1]], [[0, 1]], 3, "1"], ids=str)
    def test_charges_that_are_not_there_are_refused(self, path, named):
        filled(path)
        rewritten(
            path, lambda lines: [*lines[:-1], (lines[-1][0], {**lines[-1][1], "charges": named})]
        )
        for opened in (read_ledger, Ledger.open):
            with pytest.raises(LedgerError, match="line 11"):
                opened(path)


class TestOldLedgers:
    """Null for a charge without noise, and releases that name nothing."""

    def old(self, path):
        def change(lines):
            for kind, fields in lines:
                if kind == "charge" and fields["event"] == {"kind": "nonprivate"}:
                    fields["event"] = None
                fields.pop("charges", None)
            return lines

        rewritten(path, change)

    def test_releases_stand_for_their_own_attempts(self, path):
        with create(path) as ledger:
            for attempt in (1, 2):
                ledger.charge(1, attempt)
            ledger.release(1, 2, DIGEST)
            ledger.charge(2, 1)
        self.old(path)
        assert b"charges" not in path.read_bytes()
        with Ledger.open(path) as ledger:
            assert pairs(ledger.lost) == [(1, 1), (2, 1)] and ledger.charges == 3
            assert ledger.epsilon() == PLAN.epsilon(3)
            ledger.resume()
            ledger.charge(2, 2)
            ledger.release(2, 2, DIGEST)  # a line of now beside lines of then
            assert pairs(ledger.lost) == [(1, 1), (2, 1)]
            assert ledger.state.releases[-1].charges == ((4, 4),)
        assert pairs(read_ledger(path)[1].lost) == [(1, 1), (2, 1)]

    def test_in_centralised_training_for_every_step_since_the_one_before(self, path):
        made = cohort_plan(**{**PLAN.to_json(), "unit": "example"})
        with create(path, made) as ledger:
            for pair in ((1, 1), (2, 1), (3, 1)):
                ledger.charge(*pair)
            ledger.release(3, 1, DIGEST)
            for pair in ((4, 1), (5, 1), (4, 2)):
                ledger.charge(*pair)
            ledger.release(4, 2, DIGEST)
            now = pairs(ledger.lost)
        self.old(path)
        assert pairs(read_ledger(path)[1].lost) == now == [(4, 1), (5, 1)]
        with Ledger.open(path) as ledger:
            ledger.charge(5, 2)
            ledger.charge(6, 1)
            ledger.release(6, 1, DIGEST)
            assert ledger.state.releases[-1].charges == ((7, 8),)
            assert pairs(ledger.lost) == [(4, 1), (5, 1)]

    def test_null_events_are_charges_without_noise(self, path):
        made = cohort_plan(num_users=4, expected_cohort_size=2, num_rounds=3)
        with create(path, made) as ledger:
            ledger.charge(1, 1)
            ledger.release(1, 1, DIGEST)
        self.old(path)
        assert b'"event":null' in path.read_bytes()
        with Ledger.open(path) as ledger:
            assert ledger.state.charges[0].event == NONPRIVATE and ledger.lost == ()
            assert ledger.epsilon().to_json()["epsilon"] is None
            ledger.charge(2, 1)

    def test_a_null_event_buys_nothing_where_noise_was_promised(self, path):
        filled(path)
        rewritten(path, lambda lines: [*lines[:1], (lines[1][0], {**lines[1][1], "event": None})])
        with pytest.raises(LedgerError, match="line 2: round 1 cannot be charged"):
            read_ledger(path)
