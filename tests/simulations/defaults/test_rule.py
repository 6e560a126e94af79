"""The rule of settings: what it holds fixed, and its limits."""

import pytest

from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.event import cohort_event
from simulations.defaults import rule_prototype
from simulations.defaults.rule_prototype import forecast, settings


def chosen(num_users, epsilon, length=60.0, params=1_000, **change):
    return settings(
        num_users=num_users,
        epsilon=epsilon,
        delta=num_users**-1.1,
        num_params=params,
        update_length=length,
        **change,
    )


def test_noise_on_a_logit_is_the_same_at_every_size_and_epsilon():
    for num_users, epsilon in ((100, 1.0), (300, 8.0), (3_000, 2.0), (6_716, 2.0)):
        found = chosen(num_users, epsilon)
        assert found.rounds * found.l2_clip_norm * found.single == pytest.approx(0.7)


def test_where_there_is_little_noise_rounds_and_clip_norm_are_at_their_most():
    found = chosen(100_000, 8.0)
    assert found.rounds == rule_prototype.MOST_ROUNDS
    assert found.l2_clip_norm == rule_prototype.MOST_SHARE * 60.0
    assert found.logit_noise < 0.7


def test_a_wrong_length_trades_rounds_for_clip_norm_and_nothing_else():
    right, long_ = chosen(3_000, 2.0), chosen(3_000, 2.0, length=120.0)
    assert long_.rounds < right.rounds
    assert long_.rounds * long_.l2_clip_norm == pytest.approx(right.rounds * right.l2_clip_norm)


@pytest.mark.parametrize(("num_users", "epsilon"), [(3_000, 8.0), (6_716, 2.0)])
def test_cohorts_at_the_knee_have_little_more_noise_than_everybody(num_users, epsilon):
    found = chosen(num_users, epsilon)
    assert found.cohort < num_users
    sigma = calibrate(
        lambda sigma: cohort_event(
            num_users=num_users, expected_cohort_size=found.cohort, noise_multiplier=sigma
        ),
        found.rounds,
        target_epsilon=epsilon,
        delta=num_users**-1.1,
        relation="add-remove",
    )
    everybody = found.single * found.rounds**0.5
    assert 1.0 < sigma / found.cohort / everybody < 1.1


def test_noise_that_is_longer_than_an_update_shortens_the_way():
    single = chosen(300, 1.0).single
    found = chosen(300, 1.0, params=round(4.0 / single**2))
    assert found.logit_noise == pytest.approx(0.35, rel=1e-3)


def test_little_of_the_public_start_is_kept_where_there_is_little_noise():
    single = chosen(3_000, 8.0).single
    assert chosen(3_000, 8.0, params=round((0.19 / single) ** 2)).start_factor == 0.25
    assert chosen(3_000, 8.0, params=round((0.21 / single) ** 2)).start_factor is None


def test_no_gain_is_forecast_where_noise_is_long_or_public_examples_are_few():
    def gains(params, public=500, single=0.01):
        found = forecast(num_params=params, num_public_examples=public, single=single)
        return found.gains

    assert gains(20_000)
    assert not gains(25_000)
    assert not gains(20_000, public=20)


def test_a_small_roster_takes_part_as_a_whole():
    assert chosen(300, 8.0).cohort == 300
