"""The accountants behind ε: their traps pinned, their laws checked."""

import itertools
import math
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.mechanisms.event import Event, Relation
from fedpriv.privacy import accounting
from fedpriv.privacy.accounting import (
    NoNoiseFitsError,
    calibrate,
    epsilon,
    epsilon_of,
    epsilon_value,
)
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.gaussian_loss import grid_interval
from tests.harness.refusals import refuses
from tests.privacy.costing import cohort_event


@pytest.mark.slow
def test_a_whole_run_uses_one_grid_and_only_rises():
    event = cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=1)
    curve = [
        epsilon(event, count, delta=1e-3, relation="add-remove", num_rounds=40).value
        for count in range(41)
    ]
    assert curve[0] == 0.0
    assert all(before < after for before, after in itertools.pairwise(curve))
    assert curve[40] == epsilon(event, 40, delta=1e-3, relation="add-remove").value


@pytest.mark.slow
def test_groups_compose_in_any_order_and_equal_their_sum():
    event = cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=1)
    other = cohort_event(num_users=400, expected_cohort_size=40, noise_multiplier=1.5)
    one = {"delta": 1e-3, "relation": "add-remove"}
    assert epsilon_of([(event, 3), (event, 7)], **one) == epsilon(event, 10, **one)
    mixed = epsilon_of([(event, 10), (other, 5)], **one)
    turned = epsilon_of([(other, 5), (event, 10)], **one)
    assert mixed.value == pytest.approx(turned.value, rel=1e-9)
    assert mixed.value > max(epsilon(event, 10, **one).value, epsilon(other, 5, **one).value)
    assert mixed.rdp is not None and mixed.rdp > mixed.value


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    sigma=st.floats(0.6, 8.0),
    q=st.floats(0.005, 0.5),
    rounds=st.integers(1, 300),
    log_delta=st.floats(-8.0, -2.0),
)
def test_epsilon_is_monotone_rdp_is_above_and_so_is_a_coarse_grid(sigma, q, rounds, log_delta):
    def event(sigma=sigma, q=q):
        return Event(kind="poisson-gaussian", noise_multiplier=sigma, sampling_prob=q)

    def of(rounds=rounds, delta=10.0**log_delta, **changes):
        return epsilon(event(**changes), rounds, delta=delta, relation="add-remove")

    here = of()
    slack = 1e-4 * here.value + 1e-5
    assert of(sigma=1.1 * sigma).value <= here.value + slack
    assert of(rounds=2 * rounds).value >= here.value - slack
    assert of(q=min(1.2 * q, 1.0)).value >= here.value - slack
    assert of(delta=2.0 * 10.0**log_delta).value <= here.value + slack
    assert here.rdp is not None and here.rdp >= here.value - slack
    given = {"delta": 10.0**log_delta, "relation": Relation.ADD_REMOVE}
    coarse = epsilon_value(event(), rounds, **given, coarse=10.0)
    assert here.value * (1.0 - 1e-9) <= coarse <= 1.02 * here.value + 0.01


@pytest.mark.parametrize("rounds", [1, 100, 10_000])
@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.3, 3.0, 100.0])
def test_every_grid_is_small_enough_to_hold(rounds, sigma):
    event = Event(kind="poisson-gaussian", noise_multiplier=sigma, sampling_prob=0.05)
    for relation in Relation:
        interval = grid_interval(event, rounds, relation)
        effective = sigma if relation is not Relation.REPLACE_ONE else sigma / 2
        assert (0.5 / effective**2 + 10.0 / effective) / interval <= 1.6e5


def test_what_no_float_can_hold_is_infinite_with_a_reason():
    event = cohort_event(num_users=400, expected_cohort_size=200, noise_multiplier=0.01)
    got = epsilon(event, 1_000_000, delta=1e-5, relation="replace-one")
    assert math.isinf(got.value) and got.reason
    assert got.to_json()["epsilon"] is None


def test_an_epsilon_is_always_printed_with_its_terms():
    told = Epsilon(value=1.25, delta=1e-5, relation=Relation.REPLACE_ONE, accountant="PLD", rdp=1.5)
    for part in ("1.2500", "1e-05", "replace-one", "user", "PLD", "RDP 1.5"):
        assert part in str(told)
    none = Epsilon(
        value=math.inf,
        delta=1e-5,
        relation=Relation.ADD_REMOVE,
        accountant="none",
        reason="no noise is added",
    )
    assert "∞" in str(none) and "no noise is added" in str(none)
    assert none.to_json()["epsilon"] is None
    names = {"epsilon", "epsilon_rdp", "delta", "relation", "unit", "accountant"}
    assert set(told.to_json()) == names


@pytest.mark.slow
def test_the_root_logger_is_left_alone():
    code = (
        "import logging\n"
        "from fedpriv.privacy.accounting import epsilon\n"
        "from fedpriv.mechanisms.event import Event\n"
        "event = Event(kind='poisson-gaussian', noise_multiplier=0.31, sampling_prob=0.05)\n"
        "epsilon(event, 10, delta=1e-3, relation='add-remove')\n"
        "assert not logging.root.handlers, logging.root.handlers\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_billion_are_priced_at_once_by_rdp(monkeypatch):
    monkeypatch.setattr(accounting, "_pld_epsilon", lambda *_, **__: pytest.fail("PLD"))
    event = Event(kind="poisson-gaussian", noise_multiplier=1000.0, sampling_prob=0.01)
    given = {"delta": 1e-5, "relation": Relation.ADD_REMOVE}
    found = epsilon(event, 10**9, **given)
    assert found.accountant == "RDP" and found.value == found.rdp
    # A Gaussian mechanism of mu = q sqrt(T) / sigma = 0.316 has ε = 1.25 at this δ.
    assert 1.2 < found.value < 2.0
    assert accounting.epsilon_value(event, 10**9, **given) == found.value
    assert accounting.epsilon_value(event, 10**9, **given, coarse=10.0) == found.value
    part = epsilon(event, 1, num_rounds=10**9, **given)  # of one plan, one accountant
    assert part.accountant == "RDP"


@pytest.mark.slow
def test_it_is_no_less_than_the_composed_loss(monkeypatch):
    monkeypatch.setattr(accounting, "MOST_BY_PLD", 40)
    event = Event(kind="poisson-gaussian", noise_multiplier=1.25, sampling_prob=0.125)
    given = {"delta": 1e-5, "relation": Relation.ADD_REMOVE}
    few, more = epsilon(event, 40, **given), epsilon(event, 41, **given)
    assert (few.accountant, more.accountant) == ("PLD", "RDP")
    assert more.value > few.value


def test_what_rdp_does_not_price_is_refused_and_says_the_most():
    event = Event(kind="objective-gaussian", noise_multiplier=3.0, shift=0.1)
    with refuses(ValueError, "1,000,000", event.kind):
        epsilon(event, 10**9, delta=1e-5, relation="add-remove")


def test_pure_answers_still_add_up():
    found = epsilon(Event(kind="pure", epsilon=1e-9), 10**9, delta=0.0, relation="add-remove")
    assert found.value == pytest.approx(1.0) and found.accountant == "composition"


def both_ways(target, *, rounds=100, delta=1e-4, relation="add-remove", cohort=20.0, **more):
    def event(sigma):
        return cohort_event(
            num_users=400, expected_cohort_size=cohort, noise_multiplier=sigma, **more
        )

    sigma = calibrate(event, rounds, target_epsilon=target, delta=delta, relation=relation)
    return sigma, epsilon(event(sigma), rounds, delta=delta, relation=relation).value


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    target=st.floats(0.05, 20.0),
    cohort=st.floats(1.0, 200.0),
    rounds=st.integers(1, 300),
    delta=st.floats(1e-8, 1e-2),
)
def test_round_trip_stays_within_the_target(target, cohort, rounds, delta):
    sigma, reached = both_ways(target, cohort=cohort, rounds=rounds, delta=delta)
    assert type(sigma) is float
    assert 0.99 * target <= reached <= target


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"relation": "replace-one"},
        {"cohort": 400.0},
        {"cohort_cap": 40},
        {"sampling": "fixed", "relation": "replace-one"},
    ],
    ids=str,
)
def test_every_kind_of_event(case):
    _, reached = both_ways(3.0, rounds=50, **case)
    assert 0.999 * 3.0 <= reached <= 3.0


@pytest.mark.slow
@pytest.mark.parametrize(("target", "pld"), [(1, 2.7095), (2, 1.6577), (8, 0.7924)])
def test_known_noise(target, pld):
    sigma, _ = both_ways(target, rounds=500, delta=1 / 400)
    assert sigma == pytest.approx(pld, rel=3e-4)


def test_targets_nobody_can_meet_are_refused():
    with refuses(NoNoiseFitsError, "1e-12"):
        both_ways(1e-12, delta=1e-12)
    with refuses(NoNoiseFitsError, "1e+07"):
        both_ways(1e7, rounds=1)
