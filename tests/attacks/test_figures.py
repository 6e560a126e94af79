"""Figures of a membership attack against plain counting, and what their intervals hold."""

import math

import numpy as np
import pytest
from scipy import special

from fedpriv.attacks import outcome as figures
from fedpriv.attacks.outcome import (
    UserScores,
    allowed_share,
    auc,
    exact_interval,
    matched,
    true_positives_at,
    with_interval,
)


def drawn(seed: int, shift: float, members: int = 60, others: int = 40) -> UserScores:
    generator = np.random.default_rng(seed)
    return UserScores(
        inside=generator.normal(size=members) + shift, outside=generator.normal(size=others)
    )


def test_auc_is_the_share_of_pairs_in_order():
    scores = UserScores(
        inside=np.round(drawn(1, 0.8).inside, 1), outside=np.round(drawn(2, 0.0).outside, 1)
    )
    pairs = [
        1.0 if own > other else 0.5 if own == other else 0.0
        for own in scores.inside
        for other in scores.outside
    ]
    assert auc(scores) == pytest.approx(float(np.mean(pairs)))
    assert auc(UserScores(inside=np.ones(20), outside=np.ones(20))) == 0.5


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.5])
def test_the_threshold_leaves_no_more_false_positives_than_asked_for(share):
    scores = drawn(3, 1.0)
    best = max(
        float((scores.inside > threshold).mean())
        for threshold in scores.outside
        if (scores.outside > threshold).mean() <= share
    )
    assert true_positives_at(scores, share) == best


@pytest.mark.slow
def test_intervals_cover_and_are_no_wider_than_they_should_be(monkeypatch):
    """Normals of known AUC, 200 attacks on 60 and 40 users, 200 replicates each.

    At 95 % fewer than 170 of 200 would come once in 1e8 suites; the bootstrap is a little short, so
    the seed is fixed.
    """
    monkeypatch.setattr(figures, "REPLICATES", 200)
    true = float(special.ndtr(0.8 / math.sqrt(2)))
    found = [with_interval(drawn(seed, 0.8), auc, seed=seed) for seed in range(200)]
    assert sum(one.low <= true <= one.high for one in found) >= 170
    assert 0.1 < np.mean([one.high - one.low for one in found]) < 0.3


def test_the_exact_interval_holds_the_share():
    scores = drawn(4, 1.0)
    found = exact_interval(scores, 0.1)
    assert found.low < found.value == true_positives_at(scores, 0.1) < found.high


def test_what_epsilon_allows():
    assert allowed_share(0.1, 1.0, 0.01) == pytest.approx(0.1 * math.e + 0.01)
    assert allowed_share(0.05, 8.0, 0.0) == pytest.approx(1 - math.exp(-8.0) * 0.95)
    assert allowed_share(0.05, 0.0, 0.0) == 0.05
    assert allowed_share(0.05, 5000.0, 0.0) == allowed_share(0.05, math.inf, 0.0) == 1.0


def test_matched_users_have_like_amounts_of_text():
    generator = np.random.default_rng(9)
    members = generator.integers(100, 1000, 300)
    others = np.concatenate([generator.integers(1, 100, 500), generator.integers(100, 400, 80)])
    first, second = matched(members, others)
    assert len(first) == len(second) > 50 and len(set(second)) == len(second)
    assert others[second].min() >= 75  # the class that begins below the least active member
    ratio = np.median(members[first]) / np.median(others[second])
    assert 0.8 < ratio < 1.25 < np.median(members) / np.median(others)
    none = matched(np.array([1000]), np.array([1]))
    assert [len(side) for side in none] == [0, 0]


@pytest.mark.parametrize("bad", [np.ones(19), np.full(30, math.nan), np.ones((30, 1))])
def test_too_few_scores_are_refused(bad):
    with pytest.raises(ValueError):
        UserScores(inside=np.ones(30), outside=bad)
