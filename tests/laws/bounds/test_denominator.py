"""The released mean has a public denominator."""

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.gaussian import gaussian
from fedpriv.rng import Key
from tests.laws.bounds.bounded import PARAMS, make_plan, released, summed


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
        found = released(plan, total, self.key).params
        noise = gaussian(self.key, PARAMS, plan.live_mechanism.stddev)
        for name in PARAMS:
            # Bit for bit: sum and noise in float64, the public share, and one rounding.
            expected = (dense[name] + noise[name]) * (1.0 / 7)
            np.testing.assert_array_equal(found[name], expected.astype(np.float32))

    def test_it_is_the_plans_expected_cohort_size_and_no_count_of_users(self):
        total, _ = summed(Clip(l2_clip_norm=0.5), self.users)
        one = released(make_plan(), total, self.key).params
        claimed = replace(total, num_users=10**6, num_failed=10**6)
        other = released(make_plan(), claimed, self.key).params
        doubled = released(make_plan(expected_cohort_size=14), total, self.key).params
        for name in PARAMS:
            np.testing.assert_array_equal(one[name], other[name])
            np.testing.assert_allclose(one[name], 2 * doubled[name], rtol=1e-6)
