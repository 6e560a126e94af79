"""The best of a random number of trials: its law, and what the choice costs."""

import dataclasses
import itertools
import math
import random
import secrets
from collections import Counter

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from fedpriv.mechanisms.event import Event
from fedpriv.privacy.accounting import epsilon, epsilon_of
from fedpriv.privacy.trials import Trials
from tests.harness.refusals import refuses
from tests.privacy import costing
from tests.privacy.costing import cohort_event

GIVEN = {"num_users": 400, "expected_cohort_size": 20, "noise_multiplier": 1.0}
ROUND = cohort_event(**GIVEN)
#: (mean, shape), ε by dp-accounting 0.6.0: RepeatAndSelectDpEvent of 100 rounds, σ 1, δ 1/400.
GOLDEN = {
    (10.0, 1.0): 5.613404,
    (2.0, 1.0): 3.737762,
    (10.0, 0.5): 5.228082,
    (100.0, 0.01): 6.271696,
    (100.0, 20.0): 26.042767,
    (10.0, math.inf): 5.935009,
}
LAWS = [Trials(mean=mean, shape=shape) for mean, shape in GOLDEN]
DRAWN = [law for law in LAWS if not law.is_poisson]
SLOW = pytest.mark.slow
NUM_DRAWS = 5_000
"""Draws of each law; chi-square over cells of at least 20 expected draws."""
FALSE_ALARM = 1e-6
"""Chance that a right sampler is called wrong, per law. The draws are seeded: it was seen once."""


def changed(**changes):
    return cohort_event(**GIVEN, **changes)


def value(trials, event=ROUND, rounds=100, relation="add-remove"):
    return epsilon(event, rounds, delta=1 / 400, relation=relation, trials=trials).value


@pytest.mark.parametrize(("law", "golden"), list(GOLDEN.items()), ids=str)
def test_epsilon_is_golden(law, golden):
    trials = Trials(mean=law[0], shape=law[1])
    told = epsilon(ROUND, 100, delta=1 / 400, relation="add-remove", trials=trials)
    assert told.value == pytest.approx(golden, rel=1e-6)
    assert (told.accountant, told.rdp) == ("RDP", told.value)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_curves_are_dp_accountings(law):
    one = dp.SelfComposedDpEvent(ROUND.to_dp_event(), 100)
    theirs, single = RdpAccountant(), RdpAccountant()
    theirs.compose(dp.dp_event.RepeatAndSelectDpEvent(one, law.mean, law.shape))
    single.compose(one)
    ours = law.selected(np.asarray(single.orders, float), np.asarray(single.rdp))
    wanted = np.asarray(theirs.rdp)
    known = np.isfinite(wanted)
    assert np.array_equal(known, np.isfinite(ours)) and known.sum() > 100
    assert ours[known] == pytest.approx(wanted[known], rel=1e-8)


def test_more_trials_cost_more_and_each_costs_more_than_one_run():
    one = epsilon(ROUND, 100, delta=1 / 400, relation="add-remove")
    assert one.rdp is not None and one.value <= one.rdp
    for shape in (0.1, 1.0, 5.0, math.inf):
        told = [value(Trials(mean=mean, shape=shape)) for mean in (1.01, 2, 5, 20, 100)]
        assert told == sorted(told) and len(set(told)) == 5
        assert told[0] > one.rdp
    wide = [value(Trials(mean=10, shape=shape)) for shape in (0.1, 0.5, 1.0, 4.0)]
    assert wide == sorted(wide)


def test_what_rdp_does_not_price_is_refused():
    capped, devices = changed(cohort_cap=40), changed(devices=3)
    for event in (capped, devices):
        with refuses(ValueError, event.kind):
            value(LAWS[0], event)
    with refuses(ValueError, "poisson-gaussian"):
        value(LAWS[0], relation="replace-one")
    with refuses(ValueError, "add-remove"):
        value(LAWS[0], changed(sampling="fixed"))
    with refuses(ValueError, "delta", 0.0):
        pure = Event(kind="pure", epsilon=0.1)
        epsilon_of([(pure, 1)], delta=0.0, relation="add-remove", trials=LAWS[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mean", value) for value in (0, 1, 1.0, -3, 1e6, math.inf, math.nan, "10", True, None)),
        *(("shape", value) for value in (0, -1, 1e-3, 1e4, -math.inf, math.nan, "1", True, None)),
    ],
)
def test_numbers_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError):
        Trials(**{"mean": 10, "shape": 1.0, name: value})


@pytest.mark.parametrize("law", DRAWN, ids=str)
def test_the_law_is_the_papers(law):
    numbers = np.arange(0, 30_000)
    ours = [float(prob) for _, prob in itertools.islice(law.probabilities(), 39)]
    # scipy's counts failures before `shape` successes of probability γ, from 0 on
    theirs = stats.nbinom.pmf(numbers, law.shape, law.gamma)
    theirs[0] = 0.0
    theirs /= 1.0 - law.gamma**law.shape
    assert float(theirs @ numbers) == pytest.approx(law.mean, rel=1e-3)
    assert ours == pytest.approx(theirs[1:40], rel=1e-9, abs=1e-15)


def test_the_poisson_law_is_priced_and_never_drawn():
    law = Trials(mean=10.0, shape=math.inf)
    for draw in (lambda: law.number(secrets.randbits), lambda: next(law.probabilities())):
        with refuses(ValueError, "Poisson"):
            draw()


def p_value(drawn, law):
    """Chi-square of drawn numbers against a law, in cells of at least 20 expected."""
    counts = np.bincount(drawn)
    expected, observed, cells = 0.0, counts[0], []
    for count, (_, prob) in zip(counts[1:], law.probabilities(), strict=False):
        expected, observed = expected + len(drawn) * float(prob), observed + count
        if expected >= 20.0:
            cells.append((observed, expected))
            expected, observed = 0.0, 0
    rest = len(drawn) - sum(cell[1] for cell in cells)
    cells.append((len(drawn) - sum(cell[0] for cell in cells), rest))
    observed, wanted = map(np.array, zip(*cells, strict=True))
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


def drawn_of(law, seed=7):
    bits = random.Random(seed).getrandbits
    return [law.number(bits) for _ in range(NUM_DRAWS)]


SMALL = [law for law in DRAWN if law.mean <= 10]


@pytest.mark.slow
@pytest.mark.parametrize("law", SMALL, ids=str)
def test_numbers_follow_the_law(law):
    drawn = drawn_of(law)
    assert p_value(drawn, law) > FALSE_ALARM
    assert min(drawn) >= 1


@pytest.mark.parametrize(
    "twin",
    [
        Trials(mean=8.0),
        pytest.param(Trials(mean=10.0, shape=0.5), marks=SLOW),
        Trials(mean=10.0, shape=4.0),
    ],
)
def test_a_broken_twin_is_red(twin):
    """A geometric law of mean 8, and laws of another shape, in place of the geometric of 10."""
    assert p_value(drawn_of(twin), Trials(mean=10.0)) < FALSE_ALARM


def test_the_ends_of_the_uniform_number_are_numbers_too():
    for law in SMALL:
        assert law.number(lambda bits: 0) == 1
        assert 50 < law.number(lambda bits: 2**bits - 1) < 5000
    assert law.number(secrets.randbits) >= 0


def plan(**changes):
    given = {"num_rounds": 100, "delta": 1 / 400, "trials": Trials(mean=10.0)}
    return costing.plan(**GIVEN | given | changes)


def test_every_round_of_the_best_trial_costs_the_whole_study():
    one = plan()
    assert one.epsilon(0).value == 0.0
    for charges in (1, 50, 100):
        assert one.epsilon(charges).value == pytest.approx(5.613404, rel=1e-6)
        assert one.epsilon_of({one.event: charges}) == one.epsilon(charges)
    assert one.total().accountant == "RDP"


def test_a_plan_calibrates_to_the_whole_study_and_stops_before_its_target():
    tuned = plan().calibrated(2.0)
    assert 1.99 <= tuned.total().value <= 2.0
    alone = dataclasses.replace(tuned, trials=None).calibrated(2.0)
    assert tuned.noise_multiplier > alone.noise_multiplier
    short = plan(target_epsilon=5.0)
    assert 0 < short.affordable_rounds < 100
    assert short.epsilon(1).value == short.guaranteed().value <= 5.0
    assert short.refusal(Counter({short.event: short.affordable_rounds}), short.event) != ""
