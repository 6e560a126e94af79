"""Lower bounds on ε from canaries: some were in, some were out, and each was given a score.

A mechanism that is (ε, δ)-DP lets no rule tell the two apart better than
`true positives <= e^ε · false positives + δ`, nor the other way round. So rates that are known
with confidence bound ε from below. Rules here are "in, if the score is above a threshold" and
"out, if it is below one".

=================  ============================================  ==================================
form               holds if the mechanism is (ε, δ)-DP and       threshold
=================  ============================================  ==================================
`simultaneous`     canaries' scores are independent              all at once, by order statistics
`clopper_pearson`  canaries' scores are independent              chosen on every second canary
`one_run`          fair inclusion; scores may depend             guesses at fixed ranks
`gaussian`         *an estimate*: the trade-off is a Gaussian's  as `clopper_pearson`
=================  ============================================  ==================================

References: Clopper and Pearson 1934; Jagielski, Ullman and Oprea, "Auditing Differentially Private
Machine Learning" (2020); Nasr et al., "Tight Auditing of Differentially Private Machine Learning"
(2023), sections 3 and 4; Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run"
(2023), Theorem 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy import optimize, special

from fedpriv.ranges import Range, finite_float

_MOST_EPSILON = 200.0  # beyond it a bound is printed as this much
_RANKS = 12
#: Canaries that are guessed at, as shares of all (half of them from each end of the order), and how
#: much of alpha each has. Where δ is not small, only guesses at all of them show anything.
_GUESSED = {0.05: 0.25, 0.25: 0.25, 1.0: 0.5}


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
        epsilon: The bound, or the estimate.
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
    return _tested(kinds, delta, alpha, epsilon_of_shares)


def gaussian(kinds: Sequence[Scores], *, delta: float, alpha: float) -> LowerBound:
    """Return an *estimate*: the ε of the Gaussian mechanism that the shares would be of.

    The rates of the rule of `clopper_pearson` bound μ of a trade-off Φ(Φ⁻¹(1 - α) - μ) from below.
    That the mechanism has such a trade-off is assumed: one with drawn cohorts has not, and the
    number may then be above the true ε. No verdict rests on it.
    """

    def of_shares(low: float, high: float, delta: float) -> float:
        mu = float(special.ndtri(low) - special.ndtri(high))
        return gaussian_epsilon(mu, delta) if mu > 0 else 0.0

    return _tested(kinds, delta, alpha, of_shares)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε of μ-Gaussian DP at a δ (Dong, Roth and Su 2019, Corollary 2.13).

    >>> round(gaussian_epsilon(1.0, 1e-3), 4)
    3.1387
    """

    def excess(epsilon: float) -> float:
        first = special.log_ndtr(-epsilon / mu + mu / 2)
        second = epsilon + special.log_ndtr(-epsilon / mu - mu / 2)
        return float(np.exp(first) - np.exp(second)) - delta

    if excess(0.0) <= 0:
        return 0.0
    if excess(_MOST_EPSILON) > 0:
        return _MOST_EPSILON
    root: Any = optimize.brentq(excess, 0.0, _MOST_EPSILON)
    return float(root)


def one_run(scores: Scores, *, delta: float, alpha: float) -> LowerBound:
    """Return the bound of guesses at canaries, each included independently with probability 1/2.

    Nothing is assumed of how scores depend on each other. It costs: the term 2mδ leaves little
    where δ is not far below alpha.

    Args:
        scores: Of all canaries whose inclusion was drawn.
        delta: As `simultaneous`.
        alpha: Probability that the bound is above the true ε.
    """
    _check(delta, alpha)
    best = LowerBound(epsilon=0.0, confidence=1.0 - alpha)
    total = len(scores)
    values = np.concatenate([scores.inside, scores.outside])
    inside = np.arange(total) < len(scores.inside)
    # Ties must not be broken by what is to be guessed.
    shuffled = np.random.default_rng(total).permutation(total)
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    for share, part in _GUESSED.items():
        ends = max(int(total * share / 2), 1)
        right = int(inside[order[-ends:]].sum() + (~inside[order[:ends]]).sum())
        found = one_run_epsilon(total, 2 * ends, right, delta=delta, alpha=alpha * part)
        if found > best.epsilon:
            correct = right / (2 * ends)
            best = LowerBound(
                epsilon=found,
                confidence=1.0 - alpha,
                true_positives=correct,
                false_positives=1.0 - correct,
                rule=f"the {ends:,} highest scores are in, the {ends:,} lowest out",
            )
    return best


def one_run_epsilon(
    canaries: int, guesses: int, right: int, *, delta: float, alpha: float
) -> float:
    """Return the largest ε that so many right guesses refute at level alpha; 0 for none."""
    if one_run_p_value(canaries, guesses, right, epsilon=0.0, delta=delta) > alpha:
        return 0.0
    low, high = 0.0, _MOST_EPSILON
    for _ in range(60):
        middle = (low + high) / 2
        if one_run_p_value(canaries, guesses, right, epsilon=middle, delta=delta) <= alpha:
            low = middle
        else:
            high = middle
    return low


def one_run_p_value(
    canaries: int, guesses: int, right: int, *, epsilon: float, delta: float
) -> float:
    """Return the probability of so many right guesses or more, at most, under (ε, δ)-DP.

    With W binomial of e^ε / (1 + e^ε): P[W >= v] + 2 m δ max over i of P[v > W >= v - i] / i.

    Args:
        canaries: m, with those that were not guessed at.
        guesses: r, fixed beforehand.
        right: v.
        epsilon: Of the claim.
        delta: Of the claim.
    """
    share = special.expit(epsilon)
    probability = 1.0 if right <= 0 else float(special.bdtrc(right - 1, guesses, share))
    if delta > 0 and right > 0:
        below = np.cumsum(_binomial(guesses, epsilon)[right - 1 :: -1])
        probability += 2 * canaries * delta * float((below / np.arange(1, right + 1)).max())
    return min(probability, 1.0)


def _binomial(trials: int, log_odds: float) -> np.ndarray:
    """Return the probabilities of 0 to `trials` successes, float64."""
    counts = np.arange(trials + 1)
    return np.exp(
        _log_choices(trials)
        + counts * special.log_expit(log_odds)
        + (trials - counts) * special.log_expit(-log_odds)
    )


@lru_cache(maxsize=8)
def _log_choices(trials: int) -> np.ndarray:
    counts = np.arange(trials + 1)
    whole = special.gammaln(counts + 1)
    return special.gammaln(trials + 1) - whole - whole[::-1]


def _tested(
    kinds: Sequence[Scores],
    delta: float,
    alpha: float,
    epsilon_of: Callable[[float, float, float], float],
) -> LowerBound:
    """Return the bound by a rule that one half of the scores chose, tested on the other half.

    Args:
        kinds: As `simultaneous`.
        delta: Likewise.
        alpha: Likewise.
        epsilon_of: ε of the least share of true positives, the largest of false ones, and δ.
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
        epsilon=epsilon_of(low, high, delta),
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
