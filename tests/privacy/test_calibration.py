"""Calibration never overshoots, and wastes next to nothing."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.privacy.accounting import calibrate, epsilon
from fedpriv.privacy.event import cohort_event


def both_ways(
    target,
    *,
    users=400,
    cohort=20.0,
    rounds=100,
    delta=1e-4,
    sampling="poisson",
    relation="add-remove",
    cap=None,
):
    def event(sigma):
        return cohort_event(
            num_users=users,
            expected_cohort_size=cohort,
            sampling=sampling,
            cohort_cap=cap,
            noise_multiplier=sigma,
        )

    sigma = calibrate(event, rounds, target_epsilon=target, delta=delta, relation=relation)
    return sigma, epsilon(event(sigma), rounds, delta=delta, relation=relation).value


FEW, MANY = (
    settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    for number in (3, 40)
)
WHERE = {
    "target": st.floats(0.05, 20.0),
    "cohort": st.floats(1.0, 200.0),
    "rounds": st.integers(1, 300),
    "delta": st.floats(1e-8, 1e-2),
}


def check_round_trip(target, cohort, rounds, delta):
    sigma, reached = both_ways(target, cohort=cohort, rounds=rounds, delta=delta)
    assert type(sigma) is float
    assert 0.99 * target <= reached <= target


@pytest.mark.slow
@FEW
@given(**WHERE)
def test_round_trip_stays_within_the_target(target, cohort, rounds, delta):
    check_round_trip(target, cohort, rounds, delta)


@pytest.mark.slow
@MANY
@given(**WHERE)
def test_the_same_at_many_points(target, cohort, rounds, delta):
    check_round_trip(target, cohort, rounds, delta)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"relation": "replace-one"},
        {"cohort": 400.0},
        {"cap": 40},
        pytest.param({"sampling": "fixed", "relation": "replace-one"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_kind_of_event(case):
    _, reached = both_ways(3.0, rounds=50, **case)
    assert 0.999 * 3.0 <= reached <= 3.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "pld"),
    [
        (1, 2.7095),
        pytest.param(2, 1.6577, marks=pytest.mark.slow),
        pytest.param(8, 0.7924, marks=pytest.mark.slow),
    ],
)
def test_known_noise(target, pld):
    sigma, _ = both_ways(target, rounds=500, delta=1 / 400)
    assert sigma == pytest.approx(pld, rel=3e-4)


def test_targets_nobody_can_meet_are_refused():
    with pytest.raises(ValueError, match="out of reach"):
        both_ways(1e-12, delta=1e-12)
    with pytest.raises(ValueError, match="no noise"):
        both_ways(1e7, rounds=1)
