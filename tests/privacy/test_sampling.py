"""Samplers draw what their events claim; a broken twin is caught by the same tests.

All keys are fixed, so nothing here flakes; with free keys each test would raise a false alarm once
in a million times (α = 1e-6).
"""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from scipy import stats

from fedpriv.mechanisms.event import NONPRIVATE, Event
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.sampling import Everybody, FixedSizeSampler, Partition, PoissonSampler, Sampler
from fedpriv.rng import Key
from tests.harness.refusals import refuses
from tests.privacy.costing import Costing

ALPHA = 1e-6
ROSTER = tuple(f"u{number:03d}" for number in range(400))
INDEX = {user: number for number, user in enumerate(ROSTER)}
ROUNDS = 4000  # 1.6 million coins: a rate off by 1 % of 0.05 moves the total by 3 sd


def coins(prob: float, users: int = 400, **cap) -> PoissonSampler:
    """Return a sampler of a rate."""
    return PoissonSampler(num_users=users, expected_cohort_size=prob * users, **cap)


MODES = ("simulation", "secure")


def draws(sampler: Sampler, rounds: int = ROUNDS, roster=ROSTER, mode="simulation") -> np.ndarray:
    """Return who was drawn, bool (rounds, users)."""
    index = {user: number for number, user in enumerate(roster)}
    table = np.zeros((rounds, len(roster)), bool)
    key = Key.from_bytes(Key.simulation(20).to_bytes(), mode).fold("cohort")
    for round_num in range(rounds):
        cohort, memory = sampler.next(sampler.init(), key.fold(round_num).fold(1), roster)
        assert memory == sampler.init()
        table[round_num, [index[user] for user in cohort]] = True
    return table


def sizes_p(table: np.ndarray, prob: float) -> float:
    """P-value of the cohort sizes against Binomial(n, q), chi-squared with cells of >= 8."""
    rounds, users = table.shape
    sizes = table.sum(axis=1)
    edges = [0]
    for size in range(users + 1):
        here = stats.binom.cdf(size, users, prob) - stats.binom.cdf(edges[-1] - 1, users, prob)
        rest = 1.0 - stats.binom.cdf(size, users, prob)
        if here * rounds >= 8 and rest * rounds >= 8:
            edges.append(size + 1)
    expected = rounds * np.diff(
        [0.0, *(stats.binom.cdf(edge - 1, users, prob) for edge in edges[1:]), 1.0]
    )
    observed = np.histogram(sizes, [*edges, users + 1])[0]
    return float(stats.chisquare(observed, expected).pvalue)


def inclusion_p(table: np.ndarray, prob: float) -> float:
    """P-value of how often each user was drawn, chi-squared over users."""
    rounds, users = table.shape
    score = (table.sum(axis=0) - rounds * prob) ** 2 / (rounds * prob * (1.0 - prob))
    return float(stats.chi2.sf(score.sum(), users))


def pairs_p(table: np.ndarray, prob: float) -> float:
    """P-value of the number of drawn pairs, per round q² n (n - 1) / 2 if coins are independent.

    The score is centred by the cohort's size, so that it sees dependence and not the rate: with
    independent coins sum over pairs of (x - q)(y - q) has mean 0 and variance
    n (n - 1) / 2 (q (1 - q))² a round.
    """
    rounds, users = table.shape
    centred = table.sum(axis=1) - users * prob
    squares = ((table - prob) ** 2).sum(axis=1)
    score = ((centred**2 - squares) / 2.0).sum()
    spread = np.sqrt(rounds * users * (users - 1) / 2.0) * prob * (1.0 - prob)
    return float(2.0 * stats.norm.sf(abs(score) / spread))


@pytest.fixture(scope="module", params=MODES)
def poisson(request):
    return draws(coins(0.05), mode=request.param)


@pytest.mark.parametrize("test", [sizes_p, inclusion_p, pairs_p])
def test_poisson_cohorts_are_independent_coins(poisson, test):
    assert test(poisson, 0.05) > ALPHA


@pytest.mark.parametrize("test", [sizes_p, inclusion_p])
def test_a_rate_off_by_a_tenth_is_caught(poisson, test):
    assert test(draws(coins(0.055)), 0.05) < ALPHA


def test_rounds_are_independent(poisson):
    # Pairs of consecutive rounds: 400 x 3999 pairs, each both-drawn with probability q².
    both = int((poisson[1:] & poisson[:-1]).sum())
    assert stats.binomtest(both, 400 * (ROUNDS - 1), 0.05**2).pvalue > ALPHA


def test_fixed_size_cohorts_fail_as_poisson():
    """The broken twin: a fixed-size sampler sold as Poisson fails on sizes and on pairs."""
    table = draws(FixedSizeSampler(num_users=400, size=20))
    assert sizes_p(table, 0.05) < ALPHA
    assert pairs_p(table, 0.05) < ALPHA
    assert inclusion_p(table, 0.05) > ALPHA  # on averages alone it looks the same


@pytest.mark.parametrize("mode", MODES)
def test_fixed_size_cohorts_are_uniform(mode):
    table = draws(FixedSizeSampler(num_users=400, size=20), mode=mode)
    assert (table.sum(axis=1) == 20).all()
    # Without replacement the counts sum to a constant: n - 1 degrees, variance shrunk by that.
    counts = table.sum(axis=0)
    score = ((counts - ROUNDS * 0.05) ** 2).sum() / (ROUNDS * 0.05 * 0.95) * (399 / 400)
    assert ALPHA / 2 < stats.chi2.cdf(score, 399) < 1 - ALPHA / 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_cap_drops_a_uniform_subset(mode):
    roster = ROSTER[:40]
    capped, free = (draws(coins(0.05, 40, cap=cap), 20_000, roster, mode) for cap in (4, None))
    sizes = free.sum(axis=1)
    assert np.array_equal(capped.sum(axis=1), np.minimum(sizes, 4))
    assert not (capped & ~free).any()
    # Among rounds that were cut every user survives equally often: 40 cells, expectation equal.
    cut = sizes > 4
    survived, drawn = capped[cut].sum(axis=0), free[cut].sum(axis=0)
    rate = survived.sum() / drawn.sum()
    assert (
        stats.chisquare(survived, drawn * rate * survived.sum() / (drawn * rate).sum()).pvalue
        > ALPHA
    )


@pytest.mark.parametrize("mode", MODES)
def test_whom_a_cap_drops_is_not_a_matter_of_places(mode):
    """Of 1,500 cohorts some 50 are cut: in one the last user stays, in one the first goes."""
    roster = ROSTER[:12]
    capped, free = (draws(coins(1 / 6, 12, cap=cap), 1500, roster, mode) for cap in (4, None))
    cut = free.sum(axis=1) > 4
    assert capped[cut & free[:, -1], -1].any()
    assert not capped[cut & free[:, 0], 0].all()


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_a_pass_do_not_meet(mode):
    sampler, roster = Partition(num_users=20, size=6, passes=2), ROSTER[:20]
    key = Key.from_bytes(Key.simulation(21).to_bytes(), mode)
    memory, batches = sampler.init(), []
    for number in range(sampler.num_batches):
        batch, memory = sampler.next(memory, key.fold(number), roster)
        batches.append(batch)
    assert [len(batch) for batch in batches] == [6] * 6
    first, second = batches[:3], batches[3:]
    for one_pass in (first, second):
        assert len({user for batch in one_pass for user in batch}) == 18
    assert set(first) != set(second)
    with refuses(ValueError, 6, 2):
        sampler.next(memory, key.fold("more"), roster)


def test_cohorts_depend_on_the_key_alone():
    sampler = coins(0.05)
    key = Key.simulation(3).fold("cohort")
    np.random.seed(0)  # the global state must not matter
    first = sampler.cohort(key.fold(1).fold(1), ROSTER)
    np.random.seed(1)
    assert sampler.cohort(key.fold(1).fold(1), ROSTER) == first
    assert sampler.cohort(key.fold(1).fold(2), ROSTER) != first
    assert list(first) == sorted(first, key=INDEX.__getitem__)
    secure = [sampler.cohort(Key.secure(), ROSTER) for _ in range(3)]
    assert len(set(secure)) == 3


class TestSecureCoins:
    """Cohorts of a secure run are drawn by whole words of a ChaCha20 key stream."""

    def key(self):
        return Key.from_bytes(b"k" * 32, "secure")

    @pytest.mark.parametrize("expected", [1 / 3, 0.1, 20.0, 133.333, 399.9999999999999])
    def test_the_threshold_is_whole_and_rounded_down(self, monkeypatch, expected):
        """A coin is heads with probability ⌊q 2^64⌋ 2^-64, never above q, in exact arithmetic."""
        threshold = math.floor(Fraction(expected) / 400 * 2**64)
        around = [threshold - 1, threshold, 0, threshold + 1] * 100
        words = np.array(around, np.uint64)
        monkeypatch.setattr(Key, "words", lambda self, count, stream=0: words[:count])
        sampler = PoissonSampler(num_users=400, expected_cohort_size=expected)
        found = sampler.cohort(self.key(), ROSTER)
        assert found == tuple(
            user for user, word in zip(ROSTER, around, strict=True) if word < threshold
        )

    def test_everybody_is_everybody_even_by_the_largest_word(self, monkeypatch):
        top = np.full(400, 2**64 - 1, np.uint64)
        monkeypatch.setattr(Key, "words", lambda self, count, stream=0: top[:count])
        assert coins(1.0).cohort(self.key(), ROSTER) == ROSTER

    @pytest.mark.parametrize(
        "sampler",
        [coins(0.5), coins(0.05, cap=40), FixedSizeSampler(num_users=400, size=20)],
        ids=["poisson", "capped", "fixed"],
    )
    def test_no_generator_of_numpy_is_made(self, monkeypatch, sampler):
        def refused(self):
            raise AssertionError("a secure cohort was drawn by a generator that can be foretold")

        monkeypatch.setattr(Key, "generator", refused)
        for round_num in range(50):
            sampler.next({}, self.key().fold(round_num), ROSTER)
        with pytest.raises(AssertionError):
            sampler.next({}, Key.simulation(0), ROSTER)

    def test_equal_words_are_drawn_again(self, monkeypatch):
        streams = {0: [1, 1, 1, 1], 1: [3, 9, 3, 0], 2: [9, 8, 7, 6]}
        monkeypatch.setattr(
            Key, "words", lambda self, count, stream=0: np.array(streams[stream], np.uint64)
        )
        sampler = FixedSizeSampler(num_users=4, size=2)
        assert sampler.cohort(self.key(), ("a", "b", "c", "d")) == ("c", "d")


def test_edges():
    key = Key.simulation(1)
    assert coins(1.0).cohort(key, ROSTER) == ROSTER
    assert coins(1e-12).cohort(key, ROSTER) == ()
    assert FixedSizeSampler(num_users=400, size=400).cohort(key, ROSTER) == ROSTER
    assert Everybody(num_users=400).next({}, key, list(ROSTER)) == (ROSTER, {})
    for kind in (FixedSizeSampler, Partition):
        with refuses(ValueError, 401, 400):
            kind(num_users=400, size=401)


EACH_OF_TWO = (coins(0.5, 2), FixedSizeSampler(num_users=2, size=1), Everybody(num_users=2))
EACH_OF_TWO += (Partition(num_users=2, size=1),)
#: Rosters and what a refusal of each names: they would be drawn with another probability.
NOT_OF_TWO = [((), []), ("ab", []), (("a", "a"), [2, 1])]
NOT_OF_TWO += [(kind("abc"[:size]), [size, 2]) for kind in (tuple, list) for size in (1, 3)]


@pytest.mark.parametrize("sampler", EACH_OF_TWO, ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize(("roster", "named"), NOT_OF_TWO, ids=str)
def test_a_roster_of_another_size_is_refused(sampler, roster, named):
    memory, key = sampler.init(), Key.simulation(1)
    assert set(sampler.next(memory, key, ("a", "b"))[0]) <= {"a", "b"}
    with refuses(ValueError, *named):
        sampler.next(memory, key, roster)


GAUSSIAN = Costing("gaussian", 2.0)


def test_what_sampling_earns():
    """Poisson and fixed-size cohorts amplify Gaussian noise; nobody prices anything else drawn."""
    assert coins(0.05).event(GAUSSIAN).to_json() == {
        "kind": "poisson-gaussian", "noise_multiplier": 2.0, "sampling_prob": 0.05,
    }  # fmt: skip
    assert coins(0.05, cap=60).event(GAUSSIAN).kind == "truncated-poisson-gaussian"
    assert FixedSizeSampler(num_users=400, size=20).event(GAUSSIAN).kind == "fixed-size-gaussian"
    everybody = (Everybody(num_users=400), coins(1.0), FixedSizeSampler(num_users=400, size=400))
    for sampler in everybody:
        assert sampler.event(GAUSSIAN) == Event(kind="gaussian", noise_multiplier=2.0)
        assert sampler.event(Costing("pure", 0.5)) == Event(kind="pure", epsilon=0.5)
        assert sampler.event(Costing("zcdp", 0.5)) == Event(kind="zcdp", rho=0.5)
    for sampler in (*everybody, coins(0.05), FixedSizeSampler(num_users=400, size=20)):
        assert sampler.event(Costing("nonprivate")) == NONPRIVATE
    for sampler in (coins(0.05), coins(0.05, cap=60), FixedSizeSampler(num_users=400, size=20)):
        for kind in ("pure", "zcdp"):
            with refuses(ValueError, kind):
                sampler.event(Costing(kind, 0.5))
        with pytest.raises(ValueError):
            sampler.event(Costing("gaussian", 2.0, whole_run=True))
    assert Everybody(num_users=400).event(Costing("gaussian", 2.0, whole_run=True)) == (
        Event(kind="gaussian", noise_multiplier=2.0)
    )


def test_where_everybody_takes_part_every_time_noise_for_fewer_rows_is_refused():
    everybody = Everybody(num_users=400)

    def event(kind="gaussian", **limit):
        noise = Costing(kind, 2.0, whole_run=True, participation=Participation(**limit))
        return everybody.event(noise)

    expected = Event(kind="gaussian", noise_multiplier=2.0)
    assert event(most=8, num_rows=8) == event(most=9, num_rows=8) == expected
    for fewer in ({"most": 7, "num_rows": 8}, {"most": 8}, {"most": 8, "min_separation": 2,
                  "num_rows": 8}):  # fmt: skip
        with refuses(ValueError, Participation(**fewer)):
            event(**fewer)
    for kind in ("pure", "zcdp"):
        with pytest.raises(ValueError):
            event(kind, most=8, num_rows=8)


def test_an_objective_s_noise_is_charged_with_its_shift():
    noise = Costing("objective-gaussian", 2.0, 0.25)
    assert Everybody(num_users=400).event(noise) == Event(
        kind="objective-gaussian", noise_multiplier=2.0, shift=0.25
    )


def test_a_list_is_looked_through_every_time():
    sampler, growing = coins(0.5, 50), [f"u{number}" for number in range(50)]
    frozen = tuple(growing)
    cohorts = [sampler.cohort(Key.simulation(seed), frozen) for seed in range(5)]
    assert [sampler.cohort(Key.simulation(seed), growing) for seed in range(5)] == cohorts
    growing[-1] = growing[0]
    with refuses(ValueError, 50, 49):
        sampler.cohort(Key.simulation(0), growing)


def test_a_roster_with_a_user_twice_is_refused_wherever_it_lies_in_memory():
    key = Key.simulation(0)
    for size in (2, 3, 40):
        for sampler in (coins(0.5, size), FixedSizeSampler(num_users=size, size=1)):
            for _ in range(20):  # an address that is free again is soon given to the next tuple
                sampler.cohort(key, tuple(str(number) for number in range(size)))
                twice = tuple(str(number % (size - 1)) for number in range(size))
                for _ in range(2):
                    with refuses(ValueError, size, size - 1):
                        sampler.cohort(key, twice)
                del twice


@pytest.mark.parametrize("bad", [0, -1, 2.0, float("nan"), "2", None, True])
def test_bad_sizes_are_refused(bad):
    with refuses(ValueError, "size", bad):
        FixedSizeSampler(num_users=400, size=bad)
    for make in (
        Everybody,
        partial(FixedSizeSampler, size=1),
        partial(PoissonSampler, expected_cohort_size=1),
    ):
        with refuses(ValueError, "num_users", bad):
            make(num_users=bad)
    if bad is not None:
        with refuses(ValueError, "cap", bad):
            coins(0.1, cap=bad)
