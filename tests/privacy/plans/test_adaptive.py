"""Adaptive plans: any prices, decided on the way, until their sum would pass the total."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.mechanisms.event import NONPRIVATE, Event
from fedpriv.privacy.accounting import epsilon_of_rho
from fedpriv.privacy.plan import FilterPlan
from tests.harness.refusals import refuses
from tests.privacy import costing
from tests.privacy.costing import cohort_event

NAN = float("nan")
GOOD = {"num_users": 400, "rho": 1.0, "delta": 1e-5}
TENTH = Event(kind="zcdp", rho=0.1)
SAMPLED = [
    cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=50.0),
    cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=50.0, cohort_cap=60),
    cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=50.0, sampling="fixed"),
]

OBJECTIVE = Event(kind="objective-gaussian", noise_multiplier=50.0, shift=0.1)


def plan(**changes):
    return FilterPlan(**{**GOOD, **changes})


def gaussian(sigma):
    return Event(kind="gaussian", noise_multiplier=sigma)


class TestFilter:
    def test_ten_tenths_are_the_whole_and_an_eleventh_is_refused(self):
        """The sums of floats are a rounding off; the whole total can be spent all the same."""
        made, spent = plan(), Counter()
        for number in range(10):
            assert made.refusal(spent, TENTH) == "", number
            spent[TENTH] += 1
        assert "ρ = 0.1" in (said := made.refusal(spent, TENTH)) and "1.1" in said
        assert made.refusal(spent, Event(kind="zcdp", rho=1e-9)) != ""
        assert made.left(spent) == 0.0
        assert made.epsilon_of(spent) == made.total()

    @given(st.lists(st.floats(1e-3, 0.4), min_size=1, max_size=60))
    def test_what_is_admitted_never_adds_up_to_more(self, prices):
        made, spent, total = plan(), Counter(), 0.0
        for price in prices:
            event = Event(kind="zcdp", rho=price)
            if made.refusal(spent, event) == "":
                spent[event] += 1
                total = math.fsum((total, price))
            else:  # and what is refused would have been too much
                assert total + price > 1.0
        assert total <= 1.0 + 1e-11
        assert made.left(spent) == pytest.approx(max(0.0, 1.0 - total), abs=1e-11)
        assert made.epsilon_of(spent) == made.total()

    def test_kinds_are_added_up_together(self):
        """1/(2·4²) + 0.5²/2 + 0.8 = 0.95625."""
        made = plan()
        spent = Counter([gaussian(4.0), Event(kind="pure", epsilon=0.5)])
        spent[Event(kind="zcdp", rho=0.8)] += 1
        assert made.left(spent) == pytest.approx(1.0 - 0.95625)
        assert made.refusal(spent, Event(kind="zcdp", rho=0.04)) == ""
        assert "to 1.00625" in made.refusal(spent, Event(kind="zcdp", rho=0.05))

    @pytest.mark.parametrize(
        "event", [*SAMPLED, NONPRIVATE, OBJECTIVE], ids=lambda event: event.kind
    )
    def test_what_has_no_rho_is_refused_whatever_is_left(self, event):
        for spent in (Counter(), Counter({TENTH: 10})):
            assert event.kind in plan(rho=1e6).refusal(spent, event)
        with refuses(ValueError, event.kind):
            plan(rho=1e6).epsilon_of({event: 1})

    def test_no_more_than_the_rounding_of_prices_is_admitted_above_the_total(self):
        for more in (5e-13, 4e-15):
            assert plan().refusal(Counter(), Event(kind="zcdp", rho=1.0 + more)) != ""

    @given(
        st.floats(1e-6, 1e3), st.integers(1, 3000), st.sampled_from(["add-remove", "replace-one"])
    )
    def test_equal_shares_of_the_total_are_the_whole(self, rho, number, relation):
        """As adaptive descent splits it: prices made noise, and noise made prices again."""
        made = plan(rho=rho, relation=relation)
        moved, share = made.relation.moved, 0.3 * rho / number
        spent = Counter()
        for event, count in (
            (gaussian(moved / math.sqrt(2.0 * share)), number),
            (Event(kind="pure", epsilon=math.sqrt(2.0 * (rho / number - share)) / moved), number),
        ):
            spent[event] += count - 1
            assert made.refusal(spent, event) == ""
            spent[event] += 1
        assert made.epsilon_of(spent) == made.total()

    def test_a_ledger_of_more_than_the_total_is_refused(self):
        with refuses(ValueError, 1.1, 1):
            plan().epsilon_of({TENTH: 11})


class TestTotal:
    def test_epsilon_is_that_of_its_rho(self):
        told = plan(rho=0.1, delta=1e-5).total()
        assert told.value == told.rdp == epsilon_of_rho(0.1, 1e-5)
        assert (told.delta, told.accountant, told.unit) == (1e-5, "RDP", "user")

    def test_it_is_the_same_whatever_was_spent(self):
        """Charges were decided by releases: a smaller claim afterwards would not be covered."""
        made = plan()
        assert made.total() == made.epsilon(0) == made.epsilon(7)
        assert made.total() == made.epsilon_of({}) == made.epsilon_of({TENTH: 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [("rho", 0.0), ("rho", NAN), ("num_users", 0), ("num_users", 400.0), ("delta", 0.0)],
)
def test_bad_values_are_refused_by_name(name, value):
    with refuses(ValueError, name, value):
        plan(**{name: value})


def test_announcements_and_ledgers_ask_the_same_of_either_plan():
    fixed = costing.plan(delta=1e-5)
    own = replace(fixed.live_mechanism)
    assert fixed.mechanism_for("update", None) is fixed.mechanism
    assert fixed.mechanism_for("update", own) is plan().mechanism_for("update", own) is own
    with refuses(ValueError, "update"):
        plan().mechanism_for("update", None)
    assert fixed.left(Counter({fixed.event: 3})) == math.inf
    assert plan().left(Counter({TENTH: 3})) == pytest.approx(0.7)
    assert not fixed.replays and not plan().replays
