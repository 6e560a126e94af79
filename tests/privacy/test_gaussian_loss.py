"""The privacy loss of a Gaussian answer: dp-accounting's own, cell by cell, only sooner."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
    from_truncated_subsampled_gaussian_mechanism,
)
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from fedpriv.mechanisms.event import Event, Relation
from fedpriv.privacy.gaussian_loss import capped_gaussian_loss, composed, deltas, gaussian_loss

SIGMAS, PROBS = (0.05, 0.3, 1.0, 4.0, 100.0), (1e-4, 0.01, 0.3, 0.9, 1.0)


def width(sigma: float, coarse: float) -> float:
    """An interval of about 16,000 cells at σ, over `coarse`; below a sparse one's 1,000 nowhere."""
    return float(f"{(0.5 / sigma**2 + 10.0 / sigma) / 8_000 * coarse:.1e}")


def both(pld: PrivacyLossDistribution) -> list[PLDPmf]:
    return [pld._pmf_remove] if pld._symmetric else [pld._pmf_remove, pld._pmf_add]


def few_ulps(interval: float) -> float:
    """What an ulp in δ is in a cell: functions of many differ from those of one by so much.

    A cell is a second difference of four δ over e^h - 1, each off by up to four ulps below 1.
    """
    return max(1e-12, 16 * 2.0**-53 / math.expm1(interval))


def check_equal(
    ours: PrivacyLossDistribution, theirs: PrivacyLossDistribution, interval: float
) -> None:
    """Two distributions have the same cells on one grid, and the same ε alone and composed."""
    assert ours._symmetric == theirs._symmetric
    for one, other in zip(both(ours), both(theirs), strict=True):
        one, other = one.to_dense_pmf(), other.to_dense_pmf()
        assert isinstance(one, DensePLDPmf) and isinstance(other, DensePLDPmf)
        assert one._discretization == other._discretization == interval
        assert one._pessimistic_estimate and other._pessimistic_estimate
        assert one._lower_loss == other._lower_loss
        assert one._probs.shape == other._probs.shape
        np.testing.assert_allclose(one._probs, other._probs, rtol=0.0, atol=few_ulps(interval))
        assert one._infinity_mass == pytest.approx(other._infinity_mass, rel=0.0, abs=1e-12)
    for count, delta in ((1, 1e-6), (30, 1e-3)):
        found, wanted = (
            pld.self_compose(count).get_epsilon_for_delta(delta) for pld in (ours, theirs)
        )
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("prob", PROBS)
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("coarse", [10.0, 1.0])
def test_cells_and_epsilon_are_those_of_dp_accounting(sigma, prob, coarse, relation):
    interval = width(sigma, coarse)
    ours = gaussian_loss(sigma, sampling_prob=prob, interval=interval, relation=relation)
    theirs = from_gaussian_mechanism(
        sigma,
        sampling_prob=prob,
        value_discretization_interval=interval,
        neighboring_relation=relation.dp_relation,
    )
    assert len(both(ours)) == (1 if prob == 1.0 or relation is Relation.REPLACE_ONE else 2)
    check_equal(ours, theirs, interval)


# A cap below the expected cohort, one over it, and one that is never reached.
@pytest.mark.slow
@pytest.mark.parametrize("cap", [10, 30, 400])
@pytest.mark.parametrize("sigma", [0.5, 4.0])
@pytest.mark.parametrize("relation", Relation)
def test_capped_cohorts_have_the_cells_of_dp_accounting(cap, sigma, relation):
    interval = width(sigma / 2.0, 10.0)
    event = Event(
        kind="truncated-poisson-gaussian", noise_multiplier=sigma, num_users=400,
        sampling_prob=0.05, cap=cap,
    )  # fmt: skip
    ours = capped_gaussian_loss(event, relation, interval)
    theirs = from_truncated_subsampled_gaussian_mechanism(
        400,
        0.05,
        cap,
        sigma,
        value_discretization_interval=interval,
        neighboring_relation=relation.dp_relation,
    )
    check_equal(ours, theirs, interval)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 37, 3000])
@pytest.mark.parametrize("prob", [0.01, 0.9, 1.0])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 100.0])
@pytest.mark.parametrize("coarse", [10.0, 500.0])
def test_many_answers_are_composed_as_by_dp_accounting(count, prob, sigma, coarse):
    """At 500 there are 30 cells: such a loss stays sparse until it is composed."""
    interval = width(sigma, coarse)
    one = gaussian_loss(sigma, sampling_prob=prob, interval=interval, relation=Relation.ADD_REMOVE)
    ours, theirs = composed(one, count), one.self_compose(count)
    assert ours._symmetric == theirs._symmetric
    for left, right in zip(both(ours), both(theirs), strict=True):
        assert type(left) is type(right)
        left, right = left.to_dense_pmf(), right.to_dense_pmf()
        assert (left._lower_loss, left.size) == (right._lower_loss, right.size)
        assert left._infinity_mass == right._infinity_mass
        assert left._pessimistic_estimate and right._pessimistic_estimate
        np.testing.assert_array_equal(left._probs, right._probs)


@pytest.mark.parametrize("adjacency", AdjacencyType)
@pytest.mark.parametrize("prob", [1e-4, 0.3, 1.0])
def test_delta_of_many_epsilons_at_once(adjacency, prob):
    """At zero, both sides, and the loss's limit: at it, an ulp, nearly and clearly to its sides."""
    loss = GaussianPrivacyLoss(0.7, sampling_prob=prob, adjacency_type=adjacency)
    points = [-3.0, -0.2, -1e-9, 0.0, 1e-9, 0.2, 3.0]
    if prob < 1.0:
        limit = math.log1p(-prob) * (-1.0 if adjacency is AdjacencyType.ADD else 1.0)
        points += [limit * (1.0 + off) for off in (-1e-4, -2e-9, -5e-10, 0.0, 5e-10, 2e-9, 1e-4)]
        points += [math.nextafter(limit, 9.0), math.nextafter(limit, -9.0)]
    at = np.array(sorted(points))
    wanted = loss.get_delta_for_epsilon(at)
    np.testing.assert_allclose(deltas(loss, at), wanted, rtol=0.0, atol=1e-15)
    assert deltas(loss, np.array([])).shape == (0,)


@pytest.mark.slow
def test_it_stays_a_probability_where_rounding_leaves_it():
    # The cells at which the difference of two numbers near 1, or near 0, falls outside [0, 1].
    for sigma, prob in itertools.product(SIGMAS, PROBS):
        for adjacency in AdjacencyType:
            loss = GaussianPrivacyLoss(sigma, sampling_prob=prob, adjacency_type=adjacency)
            bounds = loss.connect_dots_bounds()
            assert bounds.epsilon_lower is not None and bounds.epsilon_upper is not None
            found = deltas(loss, np.linspace(bounds.epsilon_lower, bounds.epsilon_upper, 3001))
            assert found.min() >= 0.0 and found.max() <= 1.0


@pytest.mark.parametrize("prob", [0.3, 1e-15])
def test_beyond_a_loss_that_sampling_never_reaches_delta_is_exact(prob):
    """An added user's loss stays below -log(1 - q), a removed one's above log(1 - q).

    Of 1e-15 log(1/q - 1) is log(1/q) less an ulp or two, and nothing between 0 and the limit has
    digits: δ is 1 - exp(ε) there, or 0, to an ulp.
    """
    limit = math.log1p(-prob)
    for times in (0.9, 1.0, 2.0):
        if prob == 0.3 and times < 1.0:
            continue
        removed, added = (
            deltas(
                GaussianPrivacyLoss(1.0, sampling_prob=prob, adjacency_type=adjacency),
                np.array([sign * times * limit]),
            )
            for adjacency, sign in ((AdjacencyType.REMOVE, 1.0), (AdjacencyType.ADD, -1.0))
        )
        assert removed[0] == pytest.approx(-math.expm1(times * limit), rel=0.0, abs=2.3e-16)
        assert added[0] == pytest.approx(0.0, rel=0.0, abs=2.3e-16)
