"""The released mean has a public denominator."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import gaussian
from fedpriv.optimizers import sgd
from fedpriv.privacy.plan import cohort_plan
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.transform import identity
from tests.laws.bounds.bounded import PARAMS, summed


def make_plan(**changes):
    return cohort_plan(
        **{
            "num_users": 100,
            "expected_cohort_size": 7,
            "num_rounds": 5,
            "bound": "clip",
            "l2_bound": 0.5,
            "noise": "gaussian",
            "noise_multiplier": 1.5,
            "delta": 1e-3,
            **changes,
        }
    )


def release(plan, total, key):
    server = FederatedAveraging(optimizer=sgd(1.0), aggregate=identity())
    state = server.init({n: t.copy() for n, t in PARAMS.items()})
    mechanism = plan.live_mechanism
    answer = mechanism.release(total, mechanism.draw(state.params, key))
    return server.next(state, answer).params


class TestDenominator:
    key = Key.simulation(9).fold("noise").fold(1).fold(1)
    users = {  # noqa: RUF012 - read only
        f"u{i}": {
            n: np.random.default_rng(i).normal(size=t.shape).astype(np.float32)
            for n, t in PARAMS.items()
        }
        for i in range(20)
    }

    @pytest.mark.parametrize("replies", range(0, 21, 2))
    def test_dropouts_change_nothing_but_the_sum(self, replies):
        plan = make_plan()
        total, dense = summed(Clip(l2_clip_norm=0.5), self.users, list(self.users)[:replies])
        found = release(plan, total, self.key)
        noise = gaussian(self.key, PARAMS, plan.live_mechanism.stddev)
        for name in PARAMS:
            # Bit for bit: sum and noise in float64, the public share, and one rounding.
            expected = (dense[name] + noise[name]) * (
                1.0 / plan.live_mechanism.expected_cohort_size
            )
            np.testing.assert_array_equal(found[name], expected.astype(np.float32))
            np.testing.assert_allclose(
                found[name], (dense[name] + noise[name]) / 7, rtol=2e-6, atol=2e-7
            )

    def test_the_empty_cohort_releases_pure_noise(self):
        plan = make_plan()
        nothing = PartialSum(total=tree.zeros(PARAMS), num_users=0, l2_bound=0.5)
        found = release(plan, nothing, self.key)
        noise = gaussian(self.key, PARAMS, 1.5 * 0.5)
        for name in PARAMS:
            np.testing.assert_allclose(found[name], noise[name] / 7, rtol=1e-6)
            assert np.abs(found[name]).min() > 0

    def test_it_is_the_plans_expected_cohort_size_and_no_count_of_users(self):
        total, _ = summed(Clip(l2_clip_norm=0.5), self.users)
        one = release(make_plan(), total, self.key)
        claimed = replace(total, num_users=10**6, num_failed=10**6)
        other = release(make_plan(), claimed, self.key)
        doubled = release(make_plan(expected_cohort_size=14), total, self.key)
        for name in PARAMS:
            np.testing.assert_array_equal(one[name], other[name])
            np.testing.assert_allclose(one[name], 2 * doubled[name], rtol=1e-6)

    def test_fractional_expected_cohorts_are_kept_as_they_are(self):
        total, dense = summed(Clip(l2_clip_norm=0.5), self.users)
        found = release(make_plan(expected_cohort_size=2.5), total, self.key)
        noise = gaussian(self.key, PARAMS, 0.75)
        for name in PARAMS:
            np.testing.assert_allclose(
                found[name], (dense[name] + noise[name]) / 2.5, rtol=2e-6, atol=1e-6
            )

    def test_stddev_is_derived_from_multiplier_and_bound(self):
        for bound in (0.1, 1.0, 30.0):
            for sigma in (0.3, 1.0, 8.0):
                plan = make_plan(l2_bound=bound, noise_multiplier=sigma)
                assert plan.live_mechanism.stddev == pytest.approx(sigma * bound)
