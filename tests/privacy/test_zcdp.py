"""From ρ to ε and back: the reference's numbers, and a bound that is one."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from fedpriv.privacy.accounting import epsilon_bs16, epsilon_of_rho, rho_bs16, rho_of_epsilon

VECTORS = [
    (1.0, 1e-5, 0.020820),
    (2.0, 1e-3, 0.126968),
    (8.0, 1e-3, 1.519784),
    (0.05, 1e-8, 3.388329e-5),
    (0.1, 1e-8, 1.353499e-4),
    (0.2, 1e-8, 5.399409e-4),
    (0.4, 1e-8, 2.148211e-3),
    (0.8, 1e-8, 8.502247e-3),
    (1.6, 1e-8, 3.331190e-2),
]


@pytest.mark.parametrize(("epsilon", "delta", "rho"), VECTORS)
def test_the_plain_conversion_is_the_references_and_the_other_is_tighter(epsilon, delta, rho):
    plain, tight = rho_bs16(epsilon, delta), rho_of_epsilon(epsilon, delta)
    assert plain == pytest.approx(rho, rel=5e-5, abs=6e-7 if epsilon >= 1 else 0)
    assert epsilon_bs16(plain, delta) == pytest.approx(epsilon, rel=1e-12)
    assert 1.2 * plain < tight < 2.0 * plain
    assert epsilon * (1 - 1e-9) < epsilon_of_rho(tight, delta) <= epsilon


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 1.0, 20.0, 400.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_it_never_promises_more_than_a_gaussian_of_this_rho_keeps(rho, delta):
    """The Gaussian mechanism of σ² = 1/2ρ is ρ-zCDP, and its exact δ at ε is known."""
    epsilon, sigma = epsilon_of_rho(rho, delta), math.sqrt(0.5 / rho)
    left, right = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
    exact = stats.norm.cdf(left) - math.exp(epsilon + stats.norm.logcdf(right))
    assert exact <= delta * (1 + 1e-9)
    assert epsilon <= epsilon_bs16(rho, delta)
    orders = 1.0 + np.geomspace(1e-4, 1e7, 2001)
    excess = orders - 1
    every = orders * rho + np.log(excess / orders) - (np.log(delta) + np.log(orders)) / excess
    assert epsilon == pytest.approx(max(0.0, every.min()), rel=1e-4, abs=1e-9)
    theirs = RdpAccountant().compose(dp.ZCDpEvent(rho)).get_epsilon(delta)
    assert epsilon <= theirs * (1 + 1e-12)
