"""Variance and intervals of a model's statistics from its last k checkpoints, and mixing times.

Post-processing of released checkpoints: pure functions of numbers, at no ε. A statistic f (such as
an accuracy on public examples, the score of one class for one example, or a parameter) is taken of
checkpoints θ_1, ..., θ_k of one run, after a burn-in of t_1 rounds and t_2 rounds apart. With
S = Σ (f_i - f̄)² / (k - 1):

* S estimates the variance of f over draws of one checkpoint; Σ w_i² · S that of Σ w_i f(θ_i), "a
  rescaling of the sample variance", which is exact for independent checkpoints alone;
* f̄ ± t_{.975, k-1} √(S/k) is an interval for the mean of f over such draws, and
  f̄ ± t_{.975, k-1} √S is as wide as one draw varies.

What it is not: the checkpoints share their data, so nothing of it covers *sampling error*: which
users took part in the study, which examples f is measured on. Neighbouring checkpoints are
correlated, and then S is too small: with autocorrelation a^h at lag h its mean is `variance_ratio`
times the variance. So the lag-1 autocorrelation is given with every figure, and a correction by it.

Source: Shejwalkar et al., "Recycling Scraps" (PoPETs 2025): variance and intervals from
checkpoints, and their rescaling. Its remark that they are a lower bound is not relied on: scores
of checkpoints have come out wider than those of runs, too (`docs/methods/checkpoints.md`). The
t-interval and the mixing of noisy SGD on strongly convex losses are remembered of it; the ratio and
the correction are ours.

How long to wait before, and between, checkpoints that are to count as independent draws
(`waiting`): for noisy gradient descent θ <- θ - η (∇F(θ) + noise) on a loss that is μ-strongly
convex and L-smooth, with independent noise each round, two runs with the same noise come closer by

    ρ = max(|1 - η μ|, |1 - η L|)

a round (below 1 for η < 2/L; 1 - η μ for η <= 2/(μ + L)). So the law of θ_t is within ρ^t of the
stationary one, in Wasserstein distance and in units of how far the start was, and the correlation
of θ_t and θ_{t+s} is at most ρ^s; for a quadratic loss along its flattest direction it is ρ^s.

Assumptions, which are the user's to hold: full participation or noise that does not depend on θ,
no clipping that acts, one step a round with the rate η (of federated averaging the *effective* one:
server rate times what the local steps make of it), no momentum. That checkpoints of noisy SGD mix
so is the kind of bound that Shejwalkar et al. prove; its constants are not at hand, and what is
here is the textbook contraction.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedpriv.ranges import Range, finite_float, positive_float

# An autocorrelation above leaves k checkpoints with no variance to speak of.
_MOST_CORRELATED = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Mean, variance and autocorrelation of statistics over the last k checkpoints.

    Every array has the shape of one statistic: `()` for one, `(n,)` of n examples' scores.

    Attributes:
        k: How many checkpoints.
        mean: Over them, f̄.
        variance: S, of one draw, by k - 1.
        autocorrelation: Of neighbours, corrected for the bias that few values give it, and within
            0 and 0.99; one number for all statistics, which share the chain. NaN below 4.
        confidence: Of the intervals.
    """

    k: int
    mean: np.ndarray = field(repr=False)
    variance: np.ndarray = field(repr=False)
    autocorrelation: float
    confidence: float = 0.95

    @property
    def stddev(self) -> np.ndarray:
        """√S, of one draw."""
        return np.sqrt(self.variance)

    @property
    def half_width(self) -> np.ndarray:
        """Of the t-interval of the mean over draws."""
        return self._quantile * np.sqrt(self.variance / self.k)

    @property
    def draw_half_width(self) -> np.ndarray:
        """T · √S: how far one draw lies from the mean."""
        return self._quantile * self.stddev

    @property
    def variance_interval(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the variance, by χ²: exact for independent normal draws, and wide for few."""
        from scipy.special import chdtri

        tail, free = (1 - self.confidence) / 2, self.k - 1
        scaled = free * self.variance
        return scaled / chdtri(free, tail), scaled / chdtri(free, 1 - tail)

    @property
    def corrected_variance(self) -> np.ndarray:
        """S over `variance_ratio`: what it would be of checkpoints that are not correlated.

        S itself where the autocorrelation is not known. It supposes that correlation falls off
        geometrically, and is rough for small k.
        """
        if math.isnan(self.autocorrelation):
            return self.variance
        return self.variance / variance_ratio(self.autocorrelation, self.k)

    @property
    def corrected_half_width(self) -> np.ndarray:
        """Of the interval of the mean, with the corrected variance and correlated draws."""
        a = 0.0 if math.isnan(self.autocorrelation) else self.autocorrelation
        return self._quantile * np.sqrt(self.corrected_variance * mean_factor(a, self.k))

    @property
    def _quantile(self) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.k - 1, (1 + self.confidence) / 2))


def uncertainty(values: Sequence[float] | np.ndarray, confidence: float = 0.95) -> Uncertainty:
    """Return mean, variance and autocorrelation of a statistic over the last k checkpoints.

    Args:
        values: Of each checkpoint, the oldest first: `(k,)`, or `(k, n)` for n statistics. After
            the burn-in, at equal spacing: who gives them has chosen both.
        confidence: Of the intervals, between 0 and 1.

    Raises:
        ValueError: If there are fewer than two, they are not finite, or the confidence is none.

    >>> found = uncertainty([0.62, 0.58, 0.65, 0.60, 0.55])
    >>> round(float(found.variance), 5), round(float(found.half_width), 6)
    (0.00145, 0.047281)
    """
    confidence = finite_float("confidence", confidence, Range.BETWEEN)
    array = np.asarray(values, np.float64)
    if array.ndim == 0 or len(array) < 2:
        raise ValueError(
            "a variance needs a statistic of at least 2 checkpoints; give more of them"
        )
    if not np.isfinite(array).all():
        raise ValueError("a statistic of a checkpoint is not finite; leave out what diverged")
    return Uncertainty(
        k=len(array),
        mean=array.mean(axis=0),
        variance=array.var(axis=0, ddof=1),
        autocorrelation=lag_autocorrelation(array),
        confidence=confidence,
    )


def lag_autocorrelation(values: Sequence[float] | np.ndarray) -> float:
    """Return the lag-1 autocorrelation of a chain, pooled over its statistics.

    r = Σ d_i d_{i+1} / Σ d_i², d_i = f_i - f̄, is too small by about (1 + 3a)/k (Marriott and Pope,
    1954), which is undone: (r + 1/k)/(1 - 3/k), kept within 0 and 0.99.

    Args:
        values: `(k,)` or `(k, n)`; statistics of the same chain, in the same units.

    Returns:
        The estimate; NaN for fewer than 4 values, or ones that do not move.
    """
    array = np.asarray(values, np.float64).reshape(len(values), -1)
    k = len(array)
    d = array - array.mean(axis=0)
    total = float(np.square(d).sum())
    if k < 4 or total == 0.0:
        return math.nan
    found = float((d[1:] * d[:-1]).sum()) / total
    return min(max((found + 1 / k) / (1 - 3 / k), 0.0), _MOST_CORRELATED)


def variance_ratio(autocorrelation: float, k: int) -> float:
    """Return E[S] over the variance, of k draws with autocorrelation a^h at lag h.

    1 - 2/(k-1) · Σ_{h=1}^{k-1} (1 - h/k) a^h: always below 1 for a above 0.

    Raises:
        ValueError: If `k` is below 2, or the autocorrelation is not within 0 and below 1.

    >>> [round(variance_ratio(0.9**spacing, 5), 3) for spacing in (1, 10, 50)]
    [0.186, 0.814, 0.998]
    """
    falling = _falling(autocorrelation, k)
    return 1 - 2 / (k - 1) * falling


def mean_factor(autocorrelation: float, k: int) -> float:
    """Return the variance of a mean of k such draws over that of one; 1/k for independent ones.

    Raises:
        ValueError: As `variance_ratio`.
    """
    return (1 + 2 * _falling(autocorrelation, k)) / k


def _falling(autocorrelation: float, k: int) -> float:
    if k < 2:
        raise ValueError(f"{k} checkpoints have no variance; give at least 2")
    a = finite_float("autocorrelation", autocorrelation, Range.FRACTION)
    lags = np.arange(1, k)
    return float(((1 - lags / k) * a**lags).sum())


def steady_square_sum(decay: float) -> float:
    """Return Σ w² of an EMA that has forgotten its start: (1 - decay)/(1 + decay).

    >>> round(steady_square_sum(0.9), 6)
    0.052632
    """
    decay = finite_float("ema decay, the weight of the past,", decay, Range.FRACTION)
    return (1 - decay) / (1 + decay)


def warmed_square_sum(decay: float, rounds: int) -> float:
    """Return Σ w² over the released rounds of an EMA with warm-up, which weighs few of them more.

    The params before round 1 hold what is left, and are no draw.

    Raises:
        ValueError: If the decay is not in [0, 1), or rounds below 1.

    >>> round(warmed_square_sum(0.99, 12), 4)
    0.2656
    """
    decay = finite_float("ema decay, the weight of the past,", decay, Range.FRACTION)
    if rounds < 1:
        raise ValueError(f"an average over {rounds} rounds; give at least 1")
    found = 0.0
    for t in range(1, rounds + 1):
        keep = min(decay, (1 + t) / (10 + t))
        found = keep**2 * found + (1 - keep) ** 2
    return found


def spaced_rounds(
    kept: Sequence[int], k: int, *, spacing: int, burn_in: int = 0
) -> tuple[int, ...]:
    """Return the newest k rounds, equally spaced, of which checkpoints are kept; () if none fit.

    Args:
        kept: Rounds that have a checkpoint.
        k: How many.
        spacing: Rounds between neighbours, t_2.
        burn_in: Rounds that are left out at the start, t_1: all returned ones are later.

    Raises:
        ValueError: If k or the spacing is below 1, or the burn-in below 0.
    """
    for name, value, least in (("k", k, 1), ("spacing", spacing, 1), ("burn-in", burn_in, 0)):
        if value < least:
            raise ValueError(f"{name} {value} must be at least {least}")
    there = {number for number in kept if number > burn_in}
    for newest in sorted(there, reverse=True):
        rounds = range(newest - (k - 1) * spacing, newest + 1, spacing)
        if there.issuperset(rounds):
            return tuple(rounds)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Burn-in and spacing for k checkpoints.

    Attributes:
        contraction: ρ, a round.
        k: How many checkpoints.
        burn_in: t_1, rounds before the first spacing begins.
        spacing: t_2, rounds between neighbours.
        bias: Of the mean after the burn-in, at most, in stationary standard deviations.
        shortfall: How much smaller than the variance of the mean over the k checkpoints S/k is
            expected to be at that spacing, as a share, at most; S itself is short by less.
    """

    contraction: float
    k: int
    burn_in: int
    spacing: int
    bias: float
    shortfall: float

    @property
    def rounds(self) -> int:
        """T = t_1 + k t_2: with checkpoints at t_1 + t_2, t_1 + 2 t_2, ..., T."""
        return self.burn_in + self.k * self.spacing


def contraction(learning_rate: float, strong_convexity: float, smoothness: float) -> float:
    """Return ρ = max(|1 - η μ|, |1 - η L|).

    Args:
        learning_rate: η, of one round's step along the mean gradient.
        strong_convexity: μ, such as an l2 regulariser's.
        smoothness: L.

    Raises:
        ValueError: If a number is not above 0, L is below μ, or η is so large that nothing
            contracts.

    >>> contraction(0.5, 0.1, 1.0)
    0.95
    """
    rate = positive_float("learning-rate", learning_rate)
    least = positive_float("strong-convexity", strong_convexity)
    most = positive_float("smoothness", smoothness)
    if most < least:
        raise ValueError(f"smoothness {most:g} is below strong-convexity {least:g}; exchange them?")
    found = max(abs(1 - rate * least), abs(1 - rate * most))
    if found >= 1:
        raise ValueError(
            f"learning-rate {rate:g} with smoothness {most:g} does not contract; it must be below "
            f"2 / smoothness = {2 / most:g}"
        )
    return found


def waiting(
    rho: float, k: int, *, shortfall: float = 0.05, distance: float = 10.0, bias: float = 0.1
) -> Waiting:
    """Return the shortest burn-in and spacing under which k checkpoints are nearly independent.

    Args:
        rho: The contraction a round.
        k: How many checkpoints, at least 2.
        shortfall: How much smaller than the variance of the mean S/k may be expected to be, as a
            share. It is the stricter of two: correlation makes S too small, and the mean vary more.
        distance: Of the start from the stationary mean, in stationary standard deviations.
        bias: Of the mean after the burn-in, at most, in the same.

    Raises:
        ValueError: If a number is out of range.

    >>> found = waiting(0.95, 5, shortfall=0.05, distance=10.0, bias=0.1)
    >>> found.burn_in, found.spacing, found.rounds
    (90, 72, 450)
    """
    rho = finite_float("contraction", rho, Range.FRACTION)
    shortfall = finite_float("shortfall", shortfall, Range.BETWEEN)
    distance, bias = positive_float("distance", distance), positive_float("bias", bias)
    spacings = range(1, 1 << 60)
    found = bisect_left(spacings, -shortfall, key=lambda spacing: -_short(rho, k, spacing))
    spacing = spacings[found]  # the first that is short by no more: it falls with the spacing
    burn_in = 0
    if rho > 0 and distance > bias:
        burn_in = math.ceil(math.log(bias / distance) / math.log(rho) - 1e-9)
    elif distance > bias:
        burn_in = 1
    return Waiting(
        contraction=rho,
        k=k,
        burn_in=burn_in,
        spacing=spacing,
        bias=distance * rho**burn_in,
        shortfall=_short(rho, k, spacing),
    )


def _short(rho: float, k: int, spacing: int) -> float:
    """Return how much smaller than the variance of the mean S/k is expected to be, as a share."""
    a = rho**spacing
    return 1 - variance_ratio(a, k) / (k * mean_factor(a, k))
