"""The noisy minimum: exactly drawn, of the right sign, and nothing but an index."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedpriv.mechanisms import Capped
from fedpriv.mechanisms.selection import ExactDraws, NoisyMin, choose
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.sampling import Everybody
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, RunningSum, most_each
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import bounded

KEY = Key.simulation(11)
FORMS = ("permute-and-flip", "exponential")


def by_orders(heads):
    """What permute-and-flip draws each index with, over all orders, if its coin's heads are so."""
    found = [0 * share for share in heads]
    for order in itertools.permutations(range(len(heads))):
        left = Fraction(1, math.factorial(len(heads)))
        for index in order:
            found[index] += left * heads[index]
            left *= 1 - heads[index]
    return found


def probabilities(scores, rate, form):
    """What each index is drawn with, float64."""
    accepted = [math.exp(-rate * (score - min(scores))) for score in scores]
    exponential = np.array(accepted) / sum(accepted)
    return exponential if form == "exponential" else np.array(by_orders(accepted))


def drawn(scores, rate, form, times, key=KEY):
    counts = Counter(
        choose(scores, rate, form, ExactDraws(key.fold(number))) for number in range(times)
    )
    return np.array([counts[index] for index in range(len(scores))])


@pytest.mark.parametrize("form", FORMS)
def test_indices_are_drawn_with_their_probabilities(form):
    """χ² of 6,000 draws each; a false alarm once in 10⁵."""
    for scores in ([0, 40, 80, 5, 300], [7, 7, 7], [0, 1000]):
        rate = Fraction(1, 50)
        expected = probabilities(scores, float(rate), form) * 6000
        kept = expected > 5
        found = drawn(scores, rate, form, 6000)
        assert found[~kept].sum() <= 5 * (~kept).sum() + 20
        low = [expected[~kept].sum()] if (~kept).any() and expected[~kept].sum() > 5 else []
        seen = [*found[kept], *([found[~kept].sum()] if low else [])]
        want = np.array([*expected[kept], *low])
        statistic = float(((np.array(seen) - want) ** 2 / want).sum())
        assert stats.chi2.sf(statistic, max(len(want) - 1, 1)) > 1e-5


class Scripted:
    """Draws that go a given way, with its probability; beyond its end, which ways there are."""

    def __init__(self, way):
        self.way, self.at, self.probability, self.sizes = way, 0, Fraction(1), []

    def _one_of(self, probabilities):
        if self.at == len(self.way):
            raise Fork(index for index, share in enumerate(probabilities) if share)
        found = self.way[self.at]
        self.at += 1
        self.probability *= probabilities[found]
        return found

    def below(self, number):
        self.sizes.append(number)
        return self._one_of([Fraction(1, number)] * number)

    def heads(self, exponent):
        return bool(self._one_of([1 - coin(exponent), coin(exponent)]))


class Fork(Exception):
    pass


def coin(exponent):
    """A fraction in the place of exp(-exponent)."""
    return 1 / (1 + exponent)


@pytest.mark.parametrize("scores", list(itertools.permutations([0, 3, 7, 0])), ids=str)
def test_indices_have_their_probabilities_exactly(scores):
    """Every way that permute-and-flip can go, in fractions, against the law over all orders."""
    rate, number = Fraction(1, 2), len(scores)
    found, ways = [Fraction(0)] * number, [()]
    while ways:
        way = ways.pop()
        draws = Scripted(way)
        try:
            index = choose(scores, rate, "permute-and-flip", draws)
        except Fork as fork:
            (options,) = fork.args
            ways += [(*way, option) for option in options]
        else:
            found[index] += draws.probability
        assert draws.sizes == list(range(number, number - len(draws.sizes), -1))
    expected = by_orders([coin(rate * (score - min(scores))) for score in scores])
    assert found == expected and sum(found) == 1


def worst_ratio(pick, number, cap, times):
    """ln of one index's frequency where all scores are equal, over that where its own is C more."""
    level = sum(pick([0] * number, n) == number - 1 for n in range(times))
    raised = sum(pick([0] * (number - 1) + [cap], n + times) == number - 1 for n in range(times))
    return math.log(max(level, 1) / max(raised, 1))


@pytest.mark.parametrize("form", FORMS)
def test_one_user_moves_no_probability_by_more_than_epsilon(form):
    """21 candidates, ε' = 0.25, 4,000 draws each: the ratio's standard error is about 0.1.

    With the noise's sign turned, as in the reference code, it is (n - 1) ε' = 5.
    """
    rate, cap = Fraction(1, 4) / 1000, 1000

    def ours(scores, number):
        return choose(scores, rate, form, ExactDraws(KEY.fold("ratio").fold(number)))

    def turned(scores, number):
        noise = np.random.default_rng(number).exponential(1 / float(rate), len(scores))
        return int(np.argmin(np.array(scores) + noise))

    assert worst_ratio(ours, 21, cap, 4000) < 0.25 + 5 * 0.1
    assert worst_ratio(turned, 21, cap, 4000) > 2.5


class TestBits:
    def test_heads_fall_with_their_probability(self):
        """20,000 draws each, within five standard errors."""
        for exponent in (Fraction(0), Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(40)):
            draws = ExactDraws(KEY.fold(str(exponent)))
            found = sum(draws.heads(exponent) for _ in range(20_000)) / 20_000
            p = math.exp(-exponent)
            assert abs(found - p) <= 5 * math.sqrt(p * (1 - p) / 20_000) + 1e-12

    @pytest.mark.parametrize("number", [1, 2, 3, 7, 2**64, 2**64 + 1, 3**90])
    def test_whole_numbers_are_within_range_and_spread(self, number):
        draws = ExactDraws(KEY.fold(str(number)))
        found = [draws.below(number) for _ in range(4000)]
        assert min(found) >= 0 and max(found) < number
        mean = float(Fraction(sum(found), 4000 * number))
        expected = 0.5 - 0.5 / number
        assert abs(mean - expected) <= 5 * 0.29 / math.sqrt(4000)


class TestPrivatizer:
    bound = Capped(cap=3.0, num_coordinates=4)

    def mechanism(self, **noise):
        return Mechanism(
            sampler=Everybody(num_users=5), bound=self.bound, privatizer=NoisyMin(**noise)
        )

    def test_costs(self):
        assert self.mechanism(epsilon=0.2).event.epsilon == 0.2
        found = self.mechanism(epsilon=0.2, form="exponential").event.rho
        assert found == pytest.approx(0.2**2 / 8)
        assert self.mechanism(epsilon=0.2).is_exact

    def test_only_an_index_leaves(self):
        made = self.mechanism(epsilon=50.0)
        unit = most_each(4) // 3
        total = PartialSum(
            total={"losses": np.array([9, 7, 0, 5], np.int64) * unit},
            num_users=5,
            granularity=self.bound.granularity,
            l2_bound=self.bound.l2_bound,
        )
        template = {"losses": np.zeros(4, np.float32)}
        for mode in (KEY, Key.secure()):
            answer = made.release(total, made.draw(template, mode.fold("own")))
            assert type(answer) is int and answer == 2
        # What is public of the scores joins them: the third is no longer the least.
        raised = self.mechanism(epsilon=50.0, offset=(0.0, 0.0, 9.0, 0.0))
        assert raised.release(total, raised.draw(template, KEY)) == 3

    def test_one_user_moves_an_answer_by_epsilon_and_not_by_more(self):
        """Two candidates, ε' = 1, permute-and-flip: ln of the ratio is 1 itself, 2 with half a cap.

        The neighbour's contribution is what the bound makes of a boundless loss; 4,000 answers
        each. The standard error is 0.037: outside five of them once
        in 1.7 million keys.
        """
        bound = Capped(cap=3.0, num_coordinates=2)
        made = Mechanism(
            sampler=Everybody(num_users=5), bound=bound, privatizer=NoisyMin(epsilon=1.0)
        )
        template = {"losses": np.zeros(2, np.float32)}

        def wins(key, *users):
            running = RunningSum(template, bound.granularity)
            for losses in users:
                running.add(bounded(bound, {"losses": np.array(losses)}), 1.0)
            total = PartialSum(
                total=running.result(),
                num_users=len(users),
                granularity=bound.granularity,
                l2_bound=bound.l2_bound,
            )
            keys = (key.fold(number) for number in range(4000))
            return sum(made.release(total, made.draw(template, own)) == 0 for own in keys)

        others = ([1.0, 2.0], [2.0, 1.0])
        without = wins(KEY.fold("without"), *others)
        found = math.log(without / wins(KEY.fold("with"), *others, [1e30, 0.0]))
        assert abs(found - 1.0) < 5 * 0.037

    def test_floats_have_no_minimum_here(self):
        total = PartialSum(total={"losses": np.zeros(4)}, num_users=5)
        with pytest.raises(ValueError):
            NoisyMin(epsilon=1.0).release(total, ExactDraws(KEY), 1.0)


def test_a_cap_of_other_losses_than_there_are_is_refused():
    """Its index is priced by how many there are: under a cap of one, 16 would cost four times."""
    losses = {"losses": np.zeros(16, np.float32)}
    assert bounded(Capped(cap=1.0, num_coordinates=16), losses)["losses"].size == 16
    for number in (1, 15, 17):
        with refuses(ValueError, 16, number):
            bounded(Capped(cap=1.0, num_coordinates=number), losses)
