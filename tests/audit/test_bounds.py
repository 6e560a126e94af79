"""The statistics of audits: golden values by other means, and how often they are wrong.

Coverage is simulated at alpha = 0.1, so that errors are seen: 500 audits of 400 canaries each, of
mechanisms whose ε is known. A bound that errs with probability 0.1 is above ε in more than 80 of
them once in 90,000 suites (a binomial tail); the seed is fixed.
"""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy import stats

from fedpriv.audit import bounds
from fedpriv.audit.bounds import (
    Scores,
    clopper_pearson,
    epsilon_of_shares,
    highest_share,
    lowest_share,
    simultaneous,
)

AUDITS, MOST_WRONG, ALPHA = 500, 80, 0.1


@pytest.mark.parametrize(
    ("count", "trials"), [(0, 10), (3, 10), (10, 10), (17, 5_000), (999, 1_000)]
)
@pytest.mark.parametrize("alpha", [0.05, 1e-6])
def test_shares_are_the_ends_of_the_exact_interval(count, trials, alpha):
    both = stats.binomtest(count, trials).proportion_ci(1 - 2 * alpha, method="exact")
    assert lowest_share(count, trials, alpha) == pytest.approx(both.low, rel=1e-9, abs=1e-15)
    assert highest_share(count, trials, alpha) == pytest.approx(both.high, rel=1e-9)


def test_shares_of_no_use_bound_nothing():
    assert epsilon_of_shares(0.5, 0.5, 0.0) == 0.0
    assert epsilon_of_shares(1e-4, 1e-6, 1e-3) == 0.0  # δ explains it
    assert epsilon_of_shares(0.9, 0.1, 0.1) == pytest.approx(math.log(8))


def pairs_of_normals(generator: np.random.Generator, mu: float) -> Scores:
    """400 canaries of a Gaussian mechanism of μ, each in by a fair coin."""
    scores, inside = generator.normal(size=400), generator.random(400) < 0.5
    scores[inside] += mu
    return Scores(inside=scores[inside], outside=scores[~inside])


def randomised_response(generator: np.random.Generator, epsilon: float) -> Scores:
    """400 canaries whose coins are guessed right with e^ε / (1 + e^ε): no bound can be tighter."""
    inside = generator.random(400) < 0.5
    right = generator.random(400) < 1 / (1 + math.exp(-epsilon))
    scores = np.where(inside == right, 1.0, 0.0)
    return Scores(inside=scores[inside], outside=scores[~inside])


FORMS = {
    "simultaneous": lambda scores, delta: simultaneous([scores], delta=delta, alpha=ALPHA),
    "clopper_pearson": lambda scores, delta: clopper_pearson([scores], delta=delta, alpha=ALPHA),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_bounds_of_a_gaussian_mechanism_cover(form):
    generator, mu, delta = np.random.default_rng(5), 1.0, 1e-3
    true = get_epsilon_gaussian(1 / mu, delta)
    found = [FORMS[form](pairs_of_normals(generator, mu), delta) for _ in range(AUDITS)]
    assert sum(one.epsilon > true for one in found) <= MOST_WRONG


@pytest.mark.parametrize("form", FORMS)
def test_bounds_of_randomised_response_cover_and_nothing_less_would(form):
    """ε = 1 at δ = 0, which a rule reaches: at half of it most audits refute."""
    generator, true = np.random.default_rng(6), 1.0
    found = [FORMS[form](randomised_response(generator, true), 0.0).epsilon for _ in range(AUDITS)]
    assert sum(epsilon > true for epsilon in found) <= MOST_WRONG
    if form != "simultaneous":  # whose union over thresholds a score of two values has no use for
        assert sum(epsilon > true / 2 for epsilon in found) > AUDITS / 2


def test_shares_taken_as_they_are_counted_would_be_seen(monkeypatch):
    """The coverage test can fail: without confidence in the shares nearly every bound errs."""
    generator, true = np.random.default_rng(5), get_epsilon_gaussian(1.0, 1e-3)
    monkeypatch.setattr(bounds, "lowest_share", lambda count, trials, alpha: count / trials)
    monkeypatch.setattr(bounds, "highest_share", lambda count, trials, alpha: count / trials)
    drawn = (pairs_of_normals(generator, 1.0) for _ in range(AUDITS))
    assert sum(FORMS["simultaneous"](one, 1e-3).epsilon > true for one in drawn) > MOST_WRONG


def test_coins_that_say_nothing_are_right_with_any_bound():
    generator = np.random.default_rng(7)
    for form in FORMS.values():
        found = [form(pairs_of_normals(generator, 0.0), 0.0).epsilon for _ in range(AUDITS)]
        assert sum(epsilon > 0 for epsilon in found) <= MOST_WRONG


def test_both_directions_are_tried():
    """Half of those with records stand out, above everybody else or below."""
    scores = np.linspace(0.0, 1.0, 500)
    low = Scores(inside=np.concatenate([scores, scores + 5]), outside=scores)
    high = low.turned()
    for form in (simultaneous, clopper_pearson):
        for kind in (low, high):
            assert form([kind], delta=0.0, alpha=0.01).epsilon > 2.0


@pytest.mark.parametrize(
    ("inside", "outside"), [([1.0], [0.0, 1.0]), ([1.0, 2.0], [math.nan, 0.0]), ([[1.0]], [[0.0]])]
)
def test_scores_that_bound_nothing_are_refused(inside, outside):
    with pytest.raises(ValueError, match="bound nothing"):
        Scores(inside=np.array(inside), outside=np.array(outside))


@pytest.mark.parametrize("delta", [-0.1, math.nan])
def test_numbers_out_of_range_are_refused(delta):
    kind = Scores(inside=np.arange(3.0), outside=np.arange(3.0))
    with pytest.raises(ValueError, match="delta"):
        simultaneous([kind], delta=delta, alpha=0.05)
    with pytest.raises(ValueError, match="alpha"):
        clopper_pearson([kind], delta=0.0, alpha=1.0)
