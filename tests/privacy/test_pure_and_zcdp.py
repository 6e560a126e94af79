"""Answers of pure ε, of zCDP and without privacy, alone and beside Gaussian noise."""

import math

import dp_accounting as dp
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from fedpriv.privacy.accounting import epsilon, epsilon_of
from fedpriv.privacy.event import NONPRIVATE, Event, Relation, cohort_event
from tests.harness.refusals import refuses


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


class TestNonprivate:
    @pytest.mark.parametrize("relation", list(Relation))
    def test_one_such_charge_makes_everything_infinite(self, relation):
        noise = Event(kind="gaussian", noise_multiplier=100.0)
        for events in ([(NONPRIVATE, 1)], [(noise, 1), (NONPRIVATE, 1), (pure(0.1), 1)]):
            told = epsilon_of(events, delta=1e-5, relation=relation)
            assert math.isinf(told.value) and told.accountant == "none" and told.rdp is None
            assert told.reason == "no noise is added" and told.to_json()["epsilon"] is None
            assert "∞" in str(told) and told.relation is relation
