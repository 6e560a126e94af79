"""Answers of pure ε, of zCDP and without privacy, alone and beside Gaussian noise."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from fedpriv.mechanisms.event import NONPRIVATE, Event, Relation
from fedpriv.privacy.accounting import (
    epsilon,
    epsilon_bs16,
    epsilon_of,
    epsilon_of_rho,
    rho_bs16,
    rho_of_epsilon,
)
from tests.harness.exact_gaussian import gaussian_delta
from tests.harness.refusals import refuses
from tests.privacy.costing import cohort_event


def pure(value):
    return Event(kind="pure", epsilon=value)


def zcdp(rho):
    return Event(kind="zcdp", rho=rho)


def composed_exactly(single, count, delta):
    """The least ε of so many ε₀-DP answers: Kairouz, Oh and Viswanath 2015, Theorem 3.3.

    The loss of the worst answers is (count - 2 i) ε₀ where i of them lie, binomial.
    """
    lies = stats.binom(count, 1.0 / (1.0 + math.exp(single)))

    def needed(value):
        losses = ((count - 2 * i) * single for i in range(count + 1))
        return math.fsum(
            lies.pmf(i) * -math.expm1(value - loss) for i, loss in enumerate(losses) if loss > value
        )

    low, high = 0.0, count * single
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if needed(middle) <= delta else (middle, high)
    return high


class TestPure:
    """Answers of pure ε: added up at δ = 0, and never more than that at δ > 0."""

    @pytest.mark.parametrize("relation", list(Relation))
    def test_alone_at_delta_zero_they_cost_their_sum(self, relation):
        told = epsilon(pure(0.1), 10, delta=0.0, relation=relation)
        times = 2.0 if relation is Relation.REPLACE_ONE else 1.0  # one who leaves, one who comes
        assert told.value == times  # ten tenths, not a rounding off
        assert (told.delta, told.accountant, told.rdp) == (0.0, "composition", None)
        assert f"{times:.4f}" in str(told) and relation.value in str(told)
        mixed = epsilon_of(
            [(pure(0.1), 3), (pure(2.0), 1), (pure(0.1), 4)], delta=0, relation=relation
        )
        assert mixed.value == pytest.approx(2.7 * times, rel=1e-15)
        assert epsilon(pure(0.1), 0, delta=0.0, relation=relation).value == 0.0
        assert type(told.delta) is float

    @pytest.mark.parametrize(
        "other", [NONPRIVATE, Event(kind="gaussian", noise_multiplier=2.0), zcdp(0.1)]
    )
    def test_beside_others_delta_zero_is_refused(self, other):
        for events in ([(other, 1)], [(pure(0.1), 1), (other, 1)], []):
            with refuses(ValueError, "delta", 0.0):
                epsilon_of(events, delta=0.0, relation="add-remove")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("single", "count", "delta"),
        [
            (0.1, 500, 1e-5),
            (0.5, 100, 1e-6),
            (0.01, 3000, 1e-3),
            (1.0, 200, 1e-3),
        ],
    )
    def test_many_cost_less_than_their_sum_and_not_less_than_the_least(self, single, count, delta):
        told = epsilon(pure(single), count, delta=delta, relation="add-remove")
        least = composed_exactly(single, count, delta)
        assert least < told.value < 0.95 * count * single
        assert told.value <= least * 1.01 + 1e-3
        assert told.accountant == "PLD" and told.rdp is not None and told.rdp >= told.value - 1e-6

    def test_beside_gaussian_noise_they_are_composed(self):
        noise = Event(kind="gaussian", noise_multiplier=2.0)
        one = {"delta": 1e-5, "relation": "add-remove"}
        mixed = epsilon_of([(noise, 4), (pure(0.05), 50)], **one)
        turned = epsilon_of([(pure(0.05), 50), (noise, 4)], **one)
        assert mixed.value == pytest.approx(turned.value, rel=1e-9) and mixed.accountant == "PLD"
        alone = epsilon(noise, 4, **one).value
        assert max(alone, epsilon(pure(0.05), 50, **one).value) < mixed.value < alone + 2.5
        assert mixed.rdp is not None and mixed.rdp > mixed.value
        sampled = cohort_event(num_users=400, expected_cohort_size=20, noise_multiplier=1)
        both = epsilon_of([(sampled, 10), (pure(0.2), 2)], **one).value
        assert epsilon(sampled, 10, **one).value < both < epsilon(sampled, 10, **one).value + 0.41


class TestZcdp:
    @pytest.mark.parametrize("relation", list(Relation))
    @pytest.mark.parametrize(("rho", "count"), [(0.01, 1), (0.01, 40), (1.0, 1), (0.3, 7)])
    def test_it_is_dp_accountings_rdp(self, rho, count, relation):
        """Of whoever is there or not; a replaced user is two of them, and costs 4ρ."""
        told = epsilon(zcdp(rho), count, delta=1e-5, relation=relation)
        times = 4.0 if relation is Relation.REPLACE_ONE else 1.0
        expected = RdpAccountant().compose(dp.ZCDpEvent(times * rho), count).get_epsilon(1e-5)
        assert told.value == told.rdp == pytest.approx(expected, rel=1e-12)
        assert told.accountant == "RDP"
        whole = epsilon(zcdp(rho * count), 1, delta=1e-5, relation=relation)
        assert told.value == pytest.approx(whole.value, rel=1e-9)

    def test_beside_others_all_are_priced_by_rdp(self):
        noise = Event(kind="gaussian", noise_multiplier=2.0)
        told = epsilon_of(
            [(noise, 4), (zcdp(0.2), 2), (pure(0.4), 5)], delta=1e-5, relation="add-remove"
        )
        together = zcdp(4 / 8 + 0.4 + 5 * 0.08)
        expected = epsilon(together, 1, delta=1e-5, relation="add-remove").value
        assert (told.accountant, told.rdp) == ("RDP", told.value)
        assert told.value == pytest.approx(expected, rel=1e-9)

    def test_beside_what_rdp_cannot_price_it_is_refused(self):
        capped = cohort_event(
            num_users=400, expected_cohort_size=20, noise_multiplier=1, cohort_cap=60
        )
        with pytest.raises(ValueError):
            epsilon_of([(capped, 1), (zcdp(0.1), 1)], delta=1e-5, relation="add-remove")


@pytest.mark.parametrize("relation", list(Relation))
def test_one_such_charge_makes_everything_infinite(relation):
    noise = Event(kind="gaussian", noise_multiplier=100.0)
    for events in ([(NONPRIVATE, 1)], [(noise, 1), (NONPRIVATE, 1), (pure(0.1), 1)]):
        told = epsilon_of(events, delta=1e-5, relation=relation)
        assert math.isinf(told.value) and told.accountant == "none" and told.rdp is None
        assert told.reason == "no noise is added" and told.to_json()["epsilon"] is None
        assert "∞" in str(told) and told.relation is relation


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
    assert gaussian_delta(sigma, epsilon) <= delta * (1 + 1e-9)
    assert epsilon <= epsilon_bs16(rho, delta)
    orders = 1.0 + np.geomspace(1e-4, 1e7, 2001)
    excess = orders - 1
    every = orders * rho + np.log(excess / orders) - (np.log(delta) + np.log(orders)) / excess
    assert epsilon == pytest.approx(max(0.0, every.min()), rel=1e-4, abs=1e-9)
    theirs = RdpAccountant().compose(dp.ZCDpEvent(rho)).get_epsilon(delta)
    assert epsilon <= theirs * (1 + 1e-12)
