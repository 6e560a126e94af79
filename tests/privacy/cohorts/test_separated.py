"""Cohorts whose users come back after a while: the limit holds in every run, and for every cost."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.noise import Correlated
from fedpriv.mechanisms.correlated.optimise import square_root_bands
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.mechanisms.gaussian import Gaussian, Unprotected
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.privacy.accounting import epsilon
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import (
    CyclicSampler,
    Everybody,
    FixedSizeSampler,
    PoissonSampler,
    SeparatedSampler,
)
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from tests.harness.refusals import refuses
from tests.privacy import costing

USERS = tuple(f"u{n:03d}" for n in range(60))
SAMPLERS = {
    "separated": SeparatedSampler(num_users=60, size=6, min_separation=7, max_participations=4),
    "separated to the last": SeparatedSampler(
        num_users=60, size=6, min_separation=10, max_participations=3
    ),
    "groups": CyclicSampler(num_users=60, groups=7, max_participations=4),
    "draws within groups": CyclicSampler(num_users=60, groups=7, max_participations=4, mean=5.0),
    "a group each": CyclicSampler(num_users=60, groups=60, max_participations=1),
}
EVERY = pytest.mark.parametrize("name", SAMPLERS)
KEYS = {"simulation": Key.simulation(3), "secure": Key.from_bytes(bytes(range(32)), "secure")}
MODES = pytest.mark.parametrize("mode", KEYS)


def drawn(sampler, key, rows, again=()):
    """Draw so many cohorts; before those in `again` the memory is what was written down."""
    memory, found = sampler.init(), []
    for row in range(1, rows + 1):
        if row in again:
            memory = {name: np.array(array) for name, array in memory.items()}
        cohort, memory = sampler.next(memory, key.fold("cohort").fold(row), USERS)
        found.append(cohort)
    return found


@EVERY
@MODES
@pytest.mark.parametrize("seed", range(5))
def test_no_user_comes_back_too_soon_or_too_often(name, mode, seed):
    sampler = SAMPLERS[name]
    cohorts = drawn(sampler, KEYS[mode].fold(seed), 70, again=(3, 20))
    rows = {user: [t for t, cohort in enumerate(cohorts) if user in cohort] for user in USERS}
    limit = sampler.participation
    assert max(len(own) for own in rows.values()) <= limit.most
    for own in rows.values():
        assert all(late - early >= limit.min_separation for early, late in pairwise(own))
    for cohort in cohorts:
        assert list(cohort) == sorted(cohort) and len(set(cohort)) == len(cohort)
    if "separated" in name:
        full = sampler.num_users * sampler.max_participations // sampler.size
        assert [len(cohort) for cohort in cohorts[:8]] == [6] * 8
        assert sum(map(len, cohorts)) <= full * sampler.size


@EVERY
def test_cohorts_hang_on_keys_alone(name):
    sampler = SAMPLERS[name]
    one, same = (drawn(sampler, KEYS["simulation"], 9) for _ in range(2))
    assert one == same
    if name != "a group each":
        assert one != drawn(sampler, KEYS["simulation"].fold(1), 9)


@pytest.mark.slow
@MODES
def test_first_cohorts_are_uniform(mode):
    """4,000 first cohorts of 6 of 60: each user's count is Binomial(4000, 0.1); α = 1e-6 in all."""
    sampler = SAMPLERS["separated"]
    count = Counter()
    for n in range(4_000):
        cohort, _ = sampler.next(sampler.init(), KEYS[mode].fold(n), USERS)
        count.update(cohort)
    low, high = stats.binom.interval(1 - 1e-6 / 60, 4_000, 0.1)
    assert low <= min(count[user] for user in USERS) and max(count.values()) <= high


@MODES
def test_draws_within_groups_are_independent(mode):
    """Of 2,000 runs of 7 rows: a user's count is Binomial(2000, 5/8), pairs' (5/8)²; α = 1e-6."""
    sampler = SAMPLERS["draws within groups"]
    assert sampler.sampling_prob == pytest.approx(5 / 8)
    found = np.zeros((2_000, 60), bool)
    for n in range(2_000):
        for cohort in drawn(sampler, KEYS[mode].fold(n), 7):
            found[n, [int(user[1:]) for user in cohort]] = True
    low, high = stats.binom.interval(1 - 1e-6 / 60, 2_000, 5 / 8)
    sums = found.sum(0)
    assert low <= sums.min() and sums.max() <= high
    both = (found[:, :-1] & found[:, 1:]).sum(0)
    low, high = stats.binom.interval(1 - 1e-6 / 59, 2_000, (5 / 8) ** 2)
    assert low <= both.min() and both.max() <= high


def test_groups_are_a_partition_whose_sizes_differ_by_one():
    cohorts = drawn(SAMPLERS["groups"], KEYS["simulation"], 14)
    assert sorted(sum(cohorts[:7], ())) == list(USERS)
    assert {len(cohort) for cohort in cohorts} == {8, 9}
    assert cohorts[:7] == cohorts[7:]


ROWS = 24
LIMIT = Participation(most=4, min_separation=7, num_rows=ROWS)


def bands(count=7, limit=LIMIT, z=3.0):
    strategy = square_root_bands(count, ROWS)
    return Correlated(noise_multiplier=z, strategy=strategy, participation=limit)


def mechanism(sampler, privatizer):
    return costing.mechanism(sampler=sampler, privatizer=privatizer)


class TestPrices:
    def test_a_run_costs_what_its_worst_user_moves(self):
        noise = bands()
        made = mechanism(SAMPLERS["separated"], noise)
        assert made.charged_once and made.event.kind == "gaussian"
        assert made.event.sigma == pytest.approx(3.0 / noise.sensitivity)

    @pytest.mark.parametrize(
        "sampler",
        [
            SeparatedSampler(num_users=60, size=6, min_separation=6, max_participations=4),
            CyclicSampler(num_users=60, groups=6, max_participations=4),
        ],
        ids=["separated", "cyclic"],
    )
    def test_noise_that_was_made_for_less_is_refused(self, sampler):
        """A limit that is not enforced is no limit: each of these would be under-priced."""
        for limit in (LIMIT, Participation(most=1, min_separation=1, num_rows=ROWS)):
            with refuses(ValueError, limit):
                mechanism(sampler, bands(limit=limit))

    @pytest.mark.parametrize(
        "sampler",
        [
            PoissonSampler(num_users=60, expected_cohort_size=6),
            FixedSizeSampler(num_users=60, size=6),
            Everybody(num_users=60),
        ],
        ids=["poisson", "fixed", "everybody"],
    )
    def test_cohorts_that_limit_no_one_are_refused(self, sampler):
        with pytest.raises(ValueError):
            mechanism(sampler, bands())

    def test_everybody_may_be_in_every_row_if_noise_is_made_for_that(self):
        every = Participation(most=ROWS, num_rows=ROWS)
        tree = BinaryTree(num_rows=ROWS)
        noise = Correlated(noise_multiplier=3.0, strategy=tree, participation=every)
        event = mechanism(Everybody(num_users=60), noise).event
        assert event.sigma == pytest.approx(3.0 / noise.sensitivity)

    def test_draws_within_groups_are_amplified_for_bands_alone(self):
        sampler = SAMPLERS["draws within groups"]
        event = mechanism(sampler, bands()).event
        column = float(np.linalg.norm(square_root_bands(7, ROWS).coefficients))
        assert event == Event(
            kind="cyclic-poisson-gaussian",
            noise_multiplier=3.0 / column,
            sampling_prob=5 / 8,
            rows=4,
        )
        tree = Correlated(
            noise_multiplier=3.0, strategy=BinaryTree(num_rows=ROWS), participation=LIMIT
        )
        assert mechanism(sampler, tree).event.kind == "gaussian"
        overlapping = mechanism(sampler, bands(8)).event
        assert overlapping.kind == "gaussian"  # eight bands add up where rows are seven apart
        assert mechanism(SAMPLERS["groups"], bands()).event.kind == "gaussian"

    @pytest.mark.slow
    def test_amplified_rows_cost_what_as_many_poisson_rounds_do(self):
        event = Event(
            kind="cyclic-poisson-gaussian", noise_multiplier=1.5, sampling_prob=0.2, rows=5
        )
        drawn = Event(kind="poisson-gaussian", noise_multiplier=1.5, sampling_prob=0.2)
        one = epsilon(event, 1, delta=1e-3, relation="zero-out")
        five = epsilon(drawn, 5, delta=1e-3, relation="add-remove")
        assert one.value == pytest.approx(five.value, rel=1e-9)
        assert one.rdp == pytest.approx(five.rdp, rel=1e-9)
        plain = Event(kind="gaussian", noise_multiplier=1.5 / math.sqrt(5))
        assert one.value < epsilon(plain, 1, delta=1e-3, relation="zero-out").value
        assert Event.from_json(event.to_json()) == event

    @EVERY
    def test_noise_that_is_drawn_anew_earns_nothing(self, name):
        with pytest.raises(ValueError):
            SAMPLERS[name].event(Gaussian(noise_multiplier=1.0))
        assert not SAMPLERS[name].event(Unprotected()).is_private


class TestPlans:
    def plan(self, noise=None, **rest):
        made = mechanism(SAMPLERS["separated"], noise or bands())
        given = {"num_rounds": ROWS, "relation": "zero-out", "delta": 1e-3}
        return Plan(mechanism=made, **given | rest)

    def test_add_remove_is_refused_and_replacing_costs_more(self):
        with refuses(ValueError, "zero-out"):
            self.plan(relation="add-remove")
        twice = self.plan(relation="replace-one").total().value
        assert twice > 1.9 * self.plan().total().value

    def test_more_rounds_than_rows_are_refused(self):
        with refuses(ValueError, 25, 24):
            self.plan(num_rounds=25)
        assert self.plan(num_rounds=20).total() == self.plan().total()

    def test_the_plan_of_a_file_says_what_it_was_and_costs_the_same(self):
        plan = self.plan()
        again = Plan.from_json(plan.to_json())
        assert again.total() == plan.total() and again.charged_once
        assert str(LIMIT) in again.mechanism.recorded.description
        assert again.live_mechanism == plan.mechanism
        assert again.relation is Relation.ZERO_OUT

    @pytest.mark.slow
    def test_trials_of_what_has_no_curve_are_refused(self):
        sampler = CyclicSampler(num_users=60, groups=7, max_participations=4, mean=2.0)
        given = {"num_rounds": ROWS, "delta": 1e-3, "trials": Trials(mean=5.0)}
        made = mechanism(sampler, bands())
        assert Plan(mechanism=made, relation="zero-out", **given).total().accountant == "RDP"
        with refuses(ValueError, "cyclic-poisson-gaussian", "replace-one"):
            Plan(mechanism=made, relation="replace-one", **given)


SEPARATED = {"num_users": 60, "size": 6, "min_separation": 1, "max_participations": 1}
CYCLIC = {"num_users": 60, "groups": 7, "max_participations": 1}


@pytest.mark.parametrize(
    ("make", "given", "named"),
    [
        (SeparatedSampler, SEPARATED | {"min_separation": 11}, [6, 11, 66, 60]),
        (SeparatedSampler, SEPARATED | {"size": 0}, ["size", 0]),
        (SeparatedSampler, SEPARATED | {"max_participations": 0}, ["max_participations", 0]),
        (CyclicSampler, CYCLIC | {"groups": 61}, [61, 60]),
        (CyclicSampler, CYCLIC | {"mean": 8.5}, [8.5, 8]),
        (CyclicSampler, CYCLIC | {"mean": math.nan}, ["mean", math.nan]),
    ],
)
def test_numbers_that_do_not_fit_are_named(make, given, named):
    with refuses(ValueError, *named):
        make(**given)


@EVERY
def test_another_roster_is_refused(name):
    with refuses(ValueError, 59, 60):
        SAMPLERS[name].next(SAMPLERS[name].init(), KEYS["simulation"], USERS[:-1])
