"""Lower bounds on ε from canaries: some were in, some were out, and each was given a score.

A mechanism that is (ε, δ)-DP lets no rule tell the two apart better than
`true positives <= e^ε · false positives + δ`, nor the other way round. So rates that are known
with confidence bound ε from below. Rules here are "in, if the score is above a threshold" and
"out, if it is below one".

`simultaneous` takes all thresholds at once, by order statistics; `clopper_pearson` chooses one on
every second canary and tests it on the others. Both hold if canaries' scores are independent.

References: Clopper and Pearson 1934; Jagielski, Ullman and Oprea, "Auditing Differentially Private
Machine Learning" (2020); Nasr et al., "Tight Auditing of Differentially Private Machine Learning"
(2023), sections 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy import special

from fedpriv.ranges import Range, finite_float

_MOST_EPSILON = 200.0  # beyond it a bound is printed as this much
_RANKS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of canaries, or of users, by one rule; a high score says "in".

    Attributes:
        inside: float64 (n,), of canaries whose records were in.
        outside: float64 (m,), of the others.

    Raises:
        ValueError: If there are fewer than `least` of either, or a score is NaN.
    """

    least: ClassVar[int] = 2
    inside: np.ndarray = field(repr=False)
    outside: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("inside", "outside"):
            scores = np.asarray(getattr(self, name), np.float64)
            if scores.ndim != 1 or len(scores) < self.least or np.isnan(scores).any():
                raise ValueError(
                    f"{name} scores of shape {scores.shape} bound nothing; give at least "
                    f"{self.least} that were in and {self.least} that were out, and no NaN"
                )
            object.__setattr__(self, name, scores)

    def __len__(self) -> int:
        return len(self.inside) + len(self.outside)

    def turned(self) -> Scores:
        """Return the same with "in" and "out", and the sign of scores, swapped."""
        return Scores(inside=-self.outside, outside=-self.inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """An ε that is exceeded with confidence; 0 if nothing is shown.

    Attributes:
        epsilon: The bound.
        confidence: That the true ε is not below it.
        true_positives: Share of true guesses of the rule that gave it, as counted.
        false_positives: Share of wrong ones.
        rule: What was guessed, in words.
    """

    epsilon: float
    confidence: float
    true_positives: float = math.nan
    false_positives: float = math.nan
    rule: str = ""

    def to_json(self) -> dict[str, float | str | None]:
        """Return plain JSON values; rates that no rule gave are null."""
        shares = {"true_positives": self.true_positives, "false_positives": self.false_positives}
        return {
            "epsilon": self.epsilon,
            "confidence": self.confidence,
            **{name: None if math.isnan(share) else share for name, share in shares.items()},
            "rule": self.rule,
        }


def highest_share(count: int, trials: int, alpha: float) -> float:
    """Return the share that is exceeded with probability at most alpha, after `count` of `trials`.

    The upper end of Clopper and Pearson's exact interval, one-sided.

    >>> round(highest_share(0, 100, 0.05), 5), highest_share(7, 7, 0.05)
    (0.02951, 1.0)
    """
    return 1.0 if count >= trials else float(special.betainccinv(count + 1, trials - count, alpha))


def lowest_share(count: int, trials: int, alpha: float) -> float:
    """Return the lower end: the share below which the true one lies with probability alpha.

    >>> round(lowest_share(100, 100, 0.05), 5), lowest_share(0, 7, 0.05)
    (0.97049, 0.0)
    """
    return 0.0 if count <= 0 else float(special.betaincinv(count, trials - count + 1, alpha))


def epsilon_of_shares(true_positives: float, false_positives: float, delta: float) -> float:
    """Return the least ε at which these shares are possible; 0 if they are at every ε.

    >>> round(epsilon_of_shares(0.5, 0.1, 0.0), 4), epsilon_of_shares(0.1, 0.5, 0.0)
    (1.6094, 0.0)
    """
    if true_positives - delta <= false_positives:
        return 0.0
    if false_positives <= 0.0:
        return _MOST_EPSILON
    return min(math.log((true_positives - delta) / false_positives), _MOST_EPSILON)


def simultaneous(kinds: Sequence[Scores], *, delta: float, alpha: float) -> LowerBound:
    """Return the best bound over many thresholds, kinds of scores and both directions.

    The thresholds are order statistics of the arm whose errors they are to bound. The share of it
    beyond its k-th largest is Beta(k, n + 1 - k) exactly, and given the threshold the other arm's
    count is binomial; so a union over ranks, directions and kinds is all that choosing costs.

    Args:
        kinds: The same canaries by several scores.
        delta: Of the claim.
        alpha: Probability that the bound is above the true ε, if scores are independent.
    """
    _check(delta, alpha)
    tried = [
        (scores, turned, rank)
        for kind in kinds
        for scores, turned in ((kind, False), (kind.turned(), True))
        for rank in _ranks(len(scores.outside))
    ]
    each = alpha / (2 * len(tried))
    best = LowerBound(epsilon=0.0, confidence=1.0 - alpha)
    ordered = {id(scores): np.sort(scores.outside) for scores, _, _ in tried}
    for scores, turned, rank in tried:
        threshold = ordered[id(scores)][-rank]
        n, m = len(scores.inside), len(scores.outside)
        right = int(np.count_nonzero(scores.inside > threshold))
        wrong = int(np.count_nonzero(scores.outside > threshold))
        most = highest_share(rank - 1, m, each)
        found = epsilon_of_shares(lowest_share(right, n, each), most, delta)
        if found > best.epsilon:
            best = LowerBound(
                epsilon=found,
                confidence=1.0 - alpha,
                true_positives=right / n,
                false_positives=wrong / m,
                rule=_rule(threshold, turned),
            )
    return best


def clopper_pearson(kinds: Sequence[Scores], *, delta: float, alpha: float) -> LowerBound:
    """Return the bound of one threshold, chosen on half of the canaries and tested on the others.

    Args:
        kinds: As `simultaneous`.
        delta: As `simultaneous`.
        alpha: As `simultaneous`.
    """
    _check(delta, alpha)
    best, chosen = 0.0, None
    for kind in kinds:
        for turned in (False, True):
            for threshold, found in _in_sample(_half(kind, 0, turned), delta, alpha):
                if found > best:
                    best, chosen = found, (kind, turned, threshold)
    if chosen is None:
        return LowerBound(epsilon=0.0, confidence=1.0 - alpha)
    kind, turned, threshold = chosen
    rest = _half(kind, 1, turned)
    right = int(np.count_nonzero(rest.inside > threshold))
    wrong = int(np.count_nonzero(rest.outside > threshold))
    n, m = len(rest.inside), len(rest.outside)
    low, high = lowest_share(right, n, alpha / 2), highest_share(wrong, m, alpha / 2)
    return LowerBound(
        epsilon=epsilon_of_shares(low, high, delta),
        confidence=1.0 - alpha,
        true_positives=right / n,
        false_positives=wrong / m,
        rule=_rule(threshold, turned),
    )


def _half(kind: Scores, first: int, turned: bool) -> Scores:
    # Every second one: neighbours are canaries of one run, and both halves have some of each.
    half = Scores(inside=kind.inside[first::2], outside=kind.outside[first::2])
    return half.turned() if turned else half


def _in_sample(scores: Scores, delta: float, alpha: float) -> Iterator[tuple[float, float]]:
    ordered = np.sort(scores.outside)
    for rank in _ranks(len(ordered)):
        threshold = float(ordered[-rank])
        right = int(np.count_nonzero(scores.inside > threshold))
        low = lowest_share(right, len(scores.inside), alpha / 2)
        high = highest_share(rank - 1, len(ordered), alpha / 2)
        yield threshold, epsilon_of_shares(low, high, delta)


def _ranks(number: int) -> list[int]:
    """Return ranks from the largest down to the middle, evenly on a logarithmic scale."""
    spaced = np.geomspace(1, max(number // 2, 1), _RANKS)
    return sorted({int(rank) for rank in np.rint(spaced)})


def _rule(threshold: float, turned: bool) -> str:
    where = -threshold if turned else threshold
    return f"out if the score is below {where:.4g}" if turned else f"in if above {where:.4g}"


def _check(delta: float, alpha: float) -> None:
    finite_float("delta", delta, Range.AT_LEAST_ZERO)
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha {alpha!r} must lie between 0 and 1; give such as 0.001")
