"""Calibration never overshoots, and wastes next to nothing."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.privacy.accounting import NoNoiseFitsError, calibrate, epsilon
from fedpriv.privacy.event import cohort_event
from tests.harness.refusals import refuses


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
