"""Several devices of one person, each drawn and bounded alone: a mixture of Gaussians."""

import numpy as np
import pytest
from scipy import stats

from fedpriv.mechanisms.event import Event, device_sums
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.privacy.accounting import epsilon
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import DevicesSampler, FixedSizeSampler, PoissonSampler
from fedpriv.rng import Key
from tests.harness.refusals import refuses
from tests.privacy.costing import POISSON, cohort_event, mechanism


def event(devices, sigma=1.0, cohort=20):
    return cohort_event(
        num_users=400, expected_cohort_size=cohort, noise_multiplier=sigma, devices=devices
    )


def value(devices, sigma=1.0, cohort=20, rounds=100, delta=1 / 400):
    return epsilon(event(devices, sigma, cohort), rounds, delta=delta, relation="add-remove").value


@pytest.mark.slow
def test_epsilon_is_golden():
    """Of three devices, and others: `tests/golden/test_user_level_sampling.py`."""
    told = epsilon(event(5), 100, delta=1 / 400, relation="add-remove")
    assert told.value == pytest.approx(15.2374, abs=1e-4)
    assert (told.accountant, told.rdp) == ("PLD", None)


def test_one_device_is_a_user():
    assert event(1) == cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=1.0)
    one = Event(
        kind="poisson-devices-gaussian", noise_multiplier=1.0, sampling_prob=0.05, devices=1
    )
    told = epsilon(one, 100, delta=1 / 400, relation="add-remove").value
    assert told == pytest.approx(1.9059, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_more_devices_cost_more_and_never_more_than_if_all_always_took_part(sigma):
    told = [value(devices, sigma) for devices in (1, 2, 3, 8)]
    assert told == sorted(told) and len(set(told)) == 4
    for devices, found in zip((2, 3, 8), told[1:], strict=True):
        assert found <= value(devices, sigma, cohort=400)


def test_everybody_drawn_is_a_gaussian_of_their_joint_norm():
    plain = Event(kind="gaussian", noise_multiplier=4.0 / 3)
    wanted = epsilon(plain, 5, delta=1e-5, relation="add-remove").value
    assert value(3, 4.0, cohort=400, rounds=5, delta=1e-5) == pytest.approx(wanted, rel=1e-3)


def test_how_many_take_part_is_binomial():
    sums, probs = device_sums(4, 0.3)
    assert sums == [0, 1, 2, 3, 4]
    assert probs == pytest.approx(stats.binom.pmf(range(5), 4, 0.3))
    few, their = device_sums(1000, 0.9)  # what no float can hold is left out
    assert len(few) == len(their) < 1001 and sum(their) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampling": "fixed"}, ["FixedSizeSampler"]),
        ({"cohort_cap": 40}, [3]),
        ({"devices": 401, "num_users": 400}, [401, 400]),
        ({"devices": 0}, ["devices", 0]),
    ],
)
def test_what_has_no_price_is_refused(changes, named):
    given = {"num_users": 400, "expected_cohort_size": 20, "noise_multiplier": 1.0, "devices": 3}
    with refuses(ValueError, *named):
        cohort_event(**{**given, **changes})


def test_replacing_a_person_is_refused():
    with refuses(ValueError, "add-remove", "replace-one"):
        epsilon(event(3), 1, delta=1e-5, relation="replace-one")


@pytest.mark.slow
def test_a_plan_of_devices_is_written_with_its_event_and_calibrates():
    sampler = DevicesSampler(draws=POISSON, devices=3)
    made = mechanism(sampler=sampler, privatizer=Gaussian(noise_multiplier=1.0))
    plan = Plan(mechanism=made, num_rounds=100, delta=1 / 400)
    assert plan.total().value == pytest.approx(7.6974, abs=1e-4)
    again = Plan.from_json(plan.to_json())
    assert again.event == plan.event and again.total() == plan.total()
    tuned = plan.calibrated(2.0)
    assert 1.99 <= tuned.total().value <= 2.0 and tuned.noise_multiplier > 2.0


def test_devices_are_drawn_as_users_are():
    draws = PoissonSampler(num_users=4, expected_cohort_size=2)
    sampler, roster = DevicesSampler(draws=draws, devices=2), list("abcd")
    for seed in range(20):
        key = Key.simulation(seed)
        assert sampler.next(sampler.init(), key, roster) == draws.next({}, key, roster)
    assert np.isclose(sampler.expected_cohort_size, 2.0) and sampler.num_users == 4
    noise = Gaussian(noise_multiplier=1)
    assert DevicesSampler(draws=draws, devices=1).event(noise) == draws.event(noise)
    assert sampler.event(noise) == Event(
        kind="poisson-devices-gaussian", noise_multiplier=1.0, sampling_prob=0.5, devices=2
    )
    assert not sampler.event(Unprotected()).is_private


def test_only_independent_draws_have_devices():
    for devices in (1, 2):
        for draws in (
            FixedSizeSampler(num_users=9, size=2),
            PoissonSampler(num_users=9, expected_cohort_size=2, cap=4),
        ):
            named = "FixedSizeSampler" if isinstance(draws, FixedSizeSampler) else devices
            with refuses(ValueError, named):
                DevicesSampler(draws=draws, devices=devices)
