"""Plans: what fits together is accounted, what does not cannot be built."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from fedpriv.mechanisms.event import NONPRIVATE, Event, Relation
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.accounting import epsilon, rho_of
from fedpriv.privacy.plan import FilterPlan, Plan
from fedpriv.privacy.sampling import DevicesSampler, FixedSizeSampler
from tests.harness.refusals import refuses
from tests.privacy import costing
from tests.privacy.costing import EVERYBODY, POISSON, Costing, mechanism


def plan(**changes):
    given = {"num_rounds": 100, "noise_multiplier": 1.0, "delta": 1 / 400}
    return costing.plan(**{**given, **changes})


NAN, INF = float("nan"), float("inf")
#: What is given; the refusal names each of these.
BAD = {
    "noise_multiplier": [NAN, INF, 0.0, -1.0, 1e-12, True, None],
    "delta": [NAN, 0.0, 1.0],
    "num_users": [0, 400.0, True],
    "num_rounds": [0],
    "expected_cohort_size": [0.0],
    "cohort_cap": [39, 401],
    "l2_bound": [0.0, INF, None],
    "sampling": ["shuffled"],
    "relation": ["blank-out"],
    "target_epsilon": [NAN],
    "max_examples_per_user": [0],
    "roster_sha256": ["abc"],
    "unit": ["household"],
}
FIXED = {"sampling": "fixed", "relation": "replace-one"}
#: What does not fit together, and what is named.
UNFIT = [
    ({"num_users": 1, "expected_cohort_size": 1, "delta": None}, []),
    ({"expected_cohort_size": 401}, [401, 400]),
    ({"sampling": "fixed"}, ["add-remove"]),
    ({**FIXED, "expected_cohort_size": 20.5}, [20.5]),
    ({**FIXED, "cohort_cap": 40}, ["cohort_cap", 40]),
    ({"bound": "none", "l2_bound": None}, ["gaussian"]),
    ({"l2_bound": 5e-324, "noise_multiplier": 0.1}, ["l2_clip_norm", 5e-324]),
    ({"noise": "none", "noise_multiplier": 0.0, "target_epsilon": 2.0}, ["target_epsilon", 2.0]),
    ({"unit": "example", "micro_batch": 0}, ["micro_batch", 0]),
    ({"unit": "example", "micro_batch": 21}, ["micro_batch", 21, 20]),
    ({"unit": "user", "micro_batch": 4}, ["micro_batch", 4]),
    ({"unit": "example", "micro_batch": 4, "relation": "replace-one"}, ["add-remove", 1]),
]
UNFIT += [
    (
        {name: value},
        [value] if isinstance(value, str) else [name.replace("l2_bound", "l2_clip_norm"), value],
    )
    for name, values in BAD.items()
    for value in values
]


@pytest.mark.parametrize(("changes", "named"), UNFIT, ids=str)
def test_bad_inputs_are_refused_by_name(changes, named):
    with refuses(ValueError, *named):
        plan(**changes)


NOISE = Gaussian(noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("sampler", "privatizer", "relation"),
    [
        (FixedSizeSampler(num_users=400, size=20), NOISE, "add-remove"),
        (FixedSizeSampler(num_users=400, size=20), NOISE, "zero-out"),
        (DevicesSampler(draws=POISSON, devices=2), NOISE, "replace-one"),
        (EVERYBODY, Costing("objective-gaussian", 1.0, 0.1), "replace-one"),
    ],
    ids=["fixed", "fixed, blanked", "devices", "objective"],
)
def test_what_no_accountant_bounds_under_a_relation_is_no_plan(sampler, privatizer, relation):
    made = mechanism(sampler=sampler, privatizer=privatizer)
    make = partial(Plan, mechanism=made, num_rounds=10, delta=1e-3)
    with refuses(ValueError, relation):
        make(relation=relation)
    recorded = make(relation="replace-one" if "fixed" in made.event.kind else "add-remove")
    with refuses(ValueError, relation):
        Plan.from_json({**recorded.to_json(), "relation": relation})


def test_a_fixed_cohort_of_everybody_is_a_plain_gaussian_under_any_relation():
    everybody = plan(expected_cohort_size=400)
    for relation in ("add-remove", "replace-one"):
        fixed = plan(sampling="fixed", expected_cohort_size=400, relation=relation)
        assert fixed.total() == replace(everybody, relation=relation).total()


def test_a_plan_prices_itself():
    made = plan()
    assert (made.event.sampling_prob, made.mechanism.stddev, made.is_private) == (0.05, 0.5, True)
    told = made.epsilon(100)
    assert told.value == pytest.approx(1.9059, abs=5e-5)
    assert (told.delta, told.relation, told.accountant) == (1 / 400, Relation.ADD_REMOVE, "PLD")
    assert made.epsilon(0).value == 0.0
    for beyond in (101, -1, 1.0):
        with pytest.raises(ValueError):
            made.epsilon(beyond)


def test_the_sampler_and_the_event_are_one_choice():
    assert plan().mechanism.sampler == POISSON
    capped = plan(cohort_cap=40)
    assert capped.mechanism.sampler == replace(plan().mechanism.sampler, cap=40)
    assert capped.epsilon(100).value == pytest.approx(1.9072, abs=5e-5)
    fixed = plan(**FIXED)
    assert fixed.mechanism.sampler == FixedSizeSampler(num_users=400, size=20)
    assert fixed.epsilon(100).value == pytest.approx(28.7421, abs=5e-5)
    assert plan(cohort_cap=400, expected_cohort_size=300).event.kind == "poisson-gaussian"


@pytest.mark.parametrize(
    "bound",
    [
        {"bound": "none", "l2_bound": None},
        {"bound": "clip", "l2_bound": 1.0},
    ],
    ids=str,
)
def test_a_plan_without_noise_promises_nothing_and_says_why(bound):
    made = plan(noise="none", noise_multiplier=0.0, **bound)
    told = made.epsilon(3)
    assert math.isinf(told.value) and told.reason and told.accountant == "none"
    assert (made.event, made.mechanism.stddev, made.is_private) == (NONPRIVATE, 0.0, False)
    assert made.affordable_rounds == 100
    assert "there is no guarantee" in made.warnings[0]


def test_delta_defaults_below_one_in_n_and_one_in_n_is_remarked():
    made = plan(delta=None)
    assert made.delta == pytest.approx(400**-1.1)
    assert "1/n" in plan().warnings[0]


@pytest.mark.parametrize(
    ("users", "share"), [(2, "0.93"), (233, "0.58"), (1023, "0.50"), (1025, None), (10**6, None)]
)
def test_a_default_delta_that_is_not_well_below_one_in_n_is_remarked(users, share):
    cohort = min(20, users / 2)
    fixed = plan(delta=None, num_users=users, expected_cohort_size=cohort)
    for made in (fixed, FilterPlan(num_users=users, rho=0.5)):
        said = " ".join(made.warnings)
        assert (share is not None and f" {share} of 1/n" in said) or (share is None and not said)


def test_calibration_stays_within_the_target_and_becomes_the_budget():
    made = plan().calibrated(2.0)
    assert 1.99 <= made.epsilon(100).value <= 2.0
    assert made.target_epsilon == 2.0
    assert made.affordable_rounds == 100
    with refuses(ValueError, "target_epsilon"):
        plan(noise="none", noise_multiplier=0.0).calibrated(2.0)


def test_a_budget_stops_before_the_charge_that_would_exceed_it():
    made = plan(target_epsilon=1.0)
    last = made.affordable_rounds
    assert 0 < last < 100
    assert made.epsilon(last).value <= 1.0 < made.epsilon(last + 1).value
    assert made.pays_for_more(Counter({made.event: last - 1}), 0)
    assert not made.pays_for_more(Counter({made.event: last}), 0)
    assert not plan(target_epsilon=1e-3).pays_for_more(Counter(), 0)
    assert plan(target_epsilon=1e-3).affordable_rounds == 0
    assert plan().affordable_rounds == 100


def test_a_target_is_not_passed_by_one_bit():
    """Charge 701 costs less than 0.1 % more than 700: the target is just what 700 spend."""
    many = plan(num_rounds=1000, expected_cohort_size=400)
    spent = many.epsilon(700).value
    assert replace(many, target_epsilon=spent).affordable_rounds == 700
    below = replace(many, target_epsilon=math.nextafter(spent, 0.0))
    assert below.affordable_rounds == 699
    spent = [Counter({below.event: count}) for count in (698, 699)]
    assert [below.pays_for_more(charges, 0) for charges in spent] == [True, False]


def test_an_example_costs_what_a_user_costs():
    """Centralised training: the unit is an example."""
    assert plan(unit="example").epsilon(100).value == plan().epsilon(100).value
    assert plan(unit="example").epsilon(100).unit == "example"
    assert "per example" in str(plan(unit="example").epsilon(100))
    assert plan(unit="example", noise="none", noise_multiplier=0.0).epsilon(1).unit == "example"
    assert plan(unit="example") != plan()


@pytest.mark.parametrize(
    ("event", "doubled"),
    [
        (Event(kind="pure", epsilon=0.5), Event(kind="pure", epsilon=1.0)),
        (Event(kind="zcdp", rho=0.5), Event(kind="zcdp", rho=2.0)),
        (
            Event(kind="gaussian", noise_multiplier=0.5),
            Event(kind="gaussian", noise_multiplier=0.25),
        ),
    ],
    ids=str,
)
def test_whoever_is_replaced_costs_as_two_who_are_there_or_not(event, doubled):
    """A replaced user moves the sum twice as far as the privatizer priced."""
    noise = Costing(event.kind, 0.5)
    made = Plan(mechanism=mechanism(sampler=EVERYBODY, privatizer=noise), num_rounds=3, delta=1e-3)
    assert made.event == event
    replaced = replace(made, relation="replace-one").total().value
    doubly = epsilon(doubled, 3, delta=1e-3, relation="add-remove").value
    assert replaced == pytest.approx(doubly, rel=1e-6)
    assert replaced > made.total().value
    filtered = FilterPlan(num_users=400, rho=100.0, delta=1e-3, relation=Relation.REPLACE_ONE)
    left = 100.0 - rho_of(doubled, Relation.ADD_REMOVE)
    assert filtered.left(Counter([event])) == pytest.approx(left)
