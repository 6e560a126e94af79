"""What a membership attack reaches: true positives at few false ones, and AUC, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv.audit.bounds import highest_share, lowest_share

REPLICATES = 2_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure with its 95 % interval.

    Attributes:
        value: As measured.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_json(self) -> dict[str, float]:
        """Return plain JSON values."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackScores:
    """What an attack scored users; a high score says "member".

    Attributes:
        members: float64 (n,).
        nonmembers: float64 (m,).

    Raises:
        ValueError: If there are fewer than 20 of either, or a score is NaN.
    """

    members: np.ndarray = field(repr=False)
    nonmembers: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("members", "nonmembers"):
            scores = getattr(self, name)
            if scores.ndim != 1 or len(scores) < 20 or np.isnan(scores).any():
                raise ValueError(
                    f"{name}: {scores.size} scores say nothing of five in a hundred; give at least "
                    "20 users of either kind, and no NaN"
                )


def allowed_share(false_positives: float, epsilon: float, delta: float) -> float:
    """Return the largest share of true positives that (ε, δ)-DP allows.

    >>> round(allowed_share(0.05, 1.0, 0.0), 4), allowed_share(0.05, math.inf, 1e-5)
    (0.1359, 1.0)
    """
    if math.isinf(epsilon):
        return 1.0
    upward = math.exp(min(epsilon, 700.0)) * false_positives + delta
    downward = 1.0 - math.exp(-epsilon) * max(1.0 - delta - false_positives, 0.0)
    return min(upward, downward, 1.0)


def auc(scores: AttackScores) -> float:
    """Return the probability that a member scores above a non-member, ties counted half."""
    ordered = np.sort(scores.nonmembers)
    below = np.searchsorted(ordered, scores.members, side="left")
    level = np.searchsorted(ordered, scores.members, side="right") - below
    return float((below + 0.5 * level).mean() / len(ordered))


def true_positives_at(scores: AttackScores, false_positives: float) -> float:
    """Return the share of members above all but so many of the non-members.

    The threshold is the smallest score with at most that share of non-members above it.
    """
    allowed = math.floor(false_positives * len(scores.nonmembers) + 1e-9)
    threshold = np.sort(scores.nonmembers)[::-1][allowed]
    return float((scores.members > threshold).mean())


def with_interval(
    scores: AttackScores, figure: Callable[[AttackScores], float], *, seed: int = 0
) -> Figure:
    """Return a figure with its interval: members and non-members drawn anew, users each."""
    generator = np.random.default_rng(seed)
    draws = np.empty(REPLICATES)
    for number in range(REPLICATES):
        members = generator.choice(scores.members, len(scores.members))
        others = generator.choice(scores.nonmembers, len(scores.nonmembers))
        draws[number] = figure(AttackScores(members=members, nonmembers=others))
    edge = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [edge, 1.0 - edge])
    return Figure(value=figure(scores), low=float(low), high=float(high))


def exact_interval(scores: AttackScores, false_positives: float) -> Figure:
    """Return the true positives with Clopper and Pearson's interval, the threshold taken as given.

    It leaves out that few non-members place the threshold, which `with_interval` has.
    """
    value, number = true_positives_at(scores, false_positives), len(scores.members)
    count, edge = round(value * number), (1.0 - CONFIDENCE) / 2
    low, high = lowest_share(count, number, edge), highest_share(count, number, edge)
    return Figure(value=value, low=low, high=high)


def matched(members: np.ndarray, nonmembers: np.ndarray, *, seed: int = 0) -> tuple[Any, Any]:
    """Return places of members and of non-members with like amounts of text, as many of each.

    Amounts are put into classes, each half as large again as the one before, and of the larger side
    of a class a random part is left out.

    Args:
        members: int (n,), examples of each.
        nonmembers: int (m,), likewise.
        seed: Of what is left out.

    Returns:
        Two int64 arrays of one length, sorted.
    """
    generator = np.random.default_rng(seed)
    classes = [np.floor(np.log(np.maximum(a, 1)) / math.log(1.5)) for a in (members, nonmembers)]
    kept: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for one in np.intersect1d(classes[0], classes[1]):
        places = [np.flatnonzero(found == one) for found in classes]
        number = min(map(len, places))
        for side, own in zip(kept, places, strict=True):
            side.append(generator.permutation(own)[:number])
    empty = np.empty(0, np.int64)
    first, second = (np.sort(np.concatenate([empty, *side])) for side in kept)
    return first, second
