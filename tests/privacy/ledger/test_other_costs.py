"""Ledgers of other costs than a Gaussian's, and of several queries a round."""

import pytest

from fedpriv.mechanisms.event import NONPRIVATE, Event
from fedpriv.privacy.ledger.chain import LedgerError, decode
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import BudgetSpentError, read_ledger
from fedpriv.privacy.plan import FilterPlan
from fedpriv.privacy.statement.verify import verify_run
from tests.harness.refusals import refuses
from tests.privacy.costing import cohort_event
from tests.privacy.ledger.kept import DIGEST, PLAN, create, filled, plan_of, rewritten

SAMPLED = cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=50.0)


def lines(path, kind):
    return [r.fields for r in decode(path.read_bytes()).records if r.kind == kind]


class TestOtherCosts:
    def test_pure_answers_are_charged_and_added_up_at_delta_zero(self, path):
        made = plan_of("pure", 0.25)
        assert made.delta == 0.0
        with create(path, made) as ledger:
            for round_num in range(1, 11):
                ledger.charge(round_num, 1)
            spent = ledger.epsilon()
            assert (spent.value, spent.delta, spent.accountant) == (2.5, 0.0, "composition")
            with refuses(BudgetSpentError, 10):
                ledger.charge(1, 2)
        _, state, _ = read_ledger(path)
        assert state.epsilon() == made.total() == spent
        # What is read is the event and the words, not the objects; it accounts all the same.
        assert not state.plan.mechanism.runs
        assert state.plan.event == made.event and state.plan.to_json() == made.to_json()
        assert lines(path, "charge")[0]["event"] == {"kind": "pure", "epsilon": 0.25}

    def test_another_event_than_the_plans_is_refused(self, path):
        with create(path, plan_of("pure", 0.25)) as ledger:
            for event in (Event(kind="pure", epsilon=0.2), Event(kind="zcdp", rho=0.1), NONPRIVATE):
                with refuses(BudgetSpentError, event):
                    ledger.charge(1, 1, event)
            ledger.charge(1, 1, Event(kind="pure", epsilon=0.25))

    def test_prices_decided_on_the_way(self, path):
        made = FilterPlan(num_users=400, rho=1.0, delta=1e-5)
        with create(path, made) as ledger:
            with pytest.raises(LedgerError):
                ledger.charge(1, 1)
            ledger.charge(1, 1, Event(kind="gaussian", noise_multiplier=1.0))
            ledger.charge(1, 1, Event(kind="pure", epsilon=0.5), query="best")
            before = path.read_bytes()
            for event in (Event(kind="zcdp", rho=0.4), SAMPLED, NONPRIVATE):
                with pytest.raises(BudgetSpentError):
                    ledger.charge(2, 1, event)
            assert path.read_bytes() == before and ledger.pays_for_more
            ledger.charge(2, 1, Event(kind="zcdp", rho=0.375))
            with refuses(BudgetSpentError, 1e-06, 1):
                ledger.charge(3, 1, Event(kind="zcdp", rho=1e-6))
            assert ledger.plan.left(ledger.state.spent) == 0.0
            assert ledger.epsilon() == made.total()
        with Ledger.open(path) as ledger:  # nothing that was spent comes back
            assert ledger.plan == made and ledger.plan.left(ledger.state.spent) == 0.0

    def test_a_run_that_has_ended_is_charged_no_further(self, path):
        made, event = FilterPlan(num_users=400, rho=1.0, delta=1e-5), Event(kind="zcdp", rho=0.25)
        with create(path, made) as ledger:
            ledger.charge(1, 1, event)
            ledger.release(1, 1, DIGEST)
            assert ledger.pays_for_more
            with refuses(LedgerError, "tired"):
                ledger.end("tired")
            ledger.end("refused")
        for _ in range(2):
            with Ledger.open(path) as ledger:
                assert ledger.state.ended is not None and not ledger.pays_for_more
                with refuses(BudgetSpentError, 2):
                    ledger.charge(2, 1, event)
                with refuses(LedgerError, "refused"):
                    ledger.end("finished")
                ledger.resume()
        assert verify_run(path.parent).ok
        charge = {"round_num": 2, "attempt": 1, "event": event.to_json()}
        rewritten(path, lambda lines: [*lines, ("charge", charge)])
        with refuses(LedgerError, "refused"):
            read_ledger(path)

    @pytest.mark.parametrize("fields", [{}, {"reason": "tired"}, {"reason": "refused", "more": 1}])
    def test_an_end_that_could_not_have_been_written(self, fields, path):
        create(path, FilterPlan(num_users=400, rho=1.0)).close()
        rewritten(path, lambda lines: [*lines, ("end", fields)])
        with refuses(LedgerError, 2):
            read_ledger(path)

    def test_more_than_the_total_is_refused_when_it_is_read(self, path):
        with create(path, FilterPlan(num_users=400, rho=1.0, delta=1e-5)) as ledger:
            ledger.charge(1, 1, Event(kind="zcdp", rho=0.9))
        rewritten(path, lambda lines: [*lines, (lines[1][0], {**lines[1][1], "round_num": 2})])
        with refuses(LedgerError, 3, 2, 0.9):
            read_ledger(path)

    def test_a_target_of_pure_answers(self, path):
        made = plan_of("pure", 0.25, target_epsilon=1.1)
        with create(path, made) as ledger:
            for round_num in range(1, 5):
                ledger.charge(round_num, 1)
            assert not ledger.pays_for_more
            with refuses(BudgetSpentError, "1.2500", 1.1):
                ledger.charge(5, 1)


class TestQueries:
    """A round may ask several things; each is charged, and counts its own attempts."""

    def test_attempts_are_of_a_query(self, path):
        with create(path) as ledger:
            ledger.charge(1, 1)
            ledger.charge(1, 1, query="count")
            with refuses(LedgerError, 2):
                ledger.charge(1, 1, query="count")
            ledger.charge(1, 2, query="count")
            assert [ledger.attempts(1, query) for query in ("update", "count", "else")] == [1, 2, 0]
            assert ledger.attempts(1) == 1
            assert ledger.charges == 3 and ledger.epsilon() == PLAN.epsilon(3)

    def test_a_release_is_of_the_last_attempt_of_every_query(self, path):
        with create(path) as ledger:
            for attempt, query in ((1, "update"), (1, "count"), (2, "count")):
                ledger.charge(1, attempt, query=query)
            ledger.release(1, 2, DIGEST)
            assert ledger.state.releases[-1].charges == ((1, 1), (3, 3))
            assert [(c.query, c.attempt) for c in ledger.lost] == [("count", 1)]
            for attempt, query in ((1, "update"), (1, "count")):
                ledger.charge(2, attempt, query=query)
            ledger.release(2, 1, DIGEST)
            assert ledger.state.releases[-1].charges == ((4, 5),)
            said = [charge.query for charge in ledger.state.charges]
            assert said == ["update", "count", "count", "update", "count"]
            head = ledger.head
        with Ledger.open(path) as ledger:
            assert ledger.head == head and [c.attempt for c in ledger.lost] == [1]

    @pytest.mark.parametrize("named", [[[7, 7]], [[1, 9]], [], [[2, 1]], [[0, 1]], 3, "1"], ids=str)
    def test_charges_that_are_not_there_are_refused(self, path, named):
        filled(path)
        rewritten(
            path, lambda lines: [*lines[:-1], (lines[-1][0], {**lines[-1][1], "charges": named})]
        )
        for opened in (read_ledger, Ledger.open):
            with refuses(LedgerError, 11):
                opened(path)
