"""How long to wait before, and between, checkpoints that are to count as independent draws.

For noisy gradient descent θ <- θ - η (∇F(θ) + noise) on a loss that is μ-strongly convex and
L-smooth, with noise drawn anew each round, two runs with the same noise come closer by

    ρ = max(|1 - η μ|, |1 - η L|)

a round (below 1 for η < 2/L; 1 - η μ for η <= 2/(μ + L)). So the law of θ_t is within ρ^t of the
stationary one, in Wasserstein distance and in units of how far the start was, and the correlation
of θ_t and θ_{t+s} is at most ρ^s; for a quadratic loss along its flattest direction it is ρ^s.

Assumptions, which are the user's to hold: full participation or noise that does not depend on θ,
no clipping that acts, one step a round with the rate η (of federated averaging the *effective* one:
server rate times what the local steps make of it), no momentum. That checkpoints of noisy SGD mix
so is the kind of bound that Shejwalkar et al., "Recycling Scraps" (PoPETs 2025) prove; its
constants are not at hand, and what is here is the textbook contraction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.checkpoints.uncertainty import mean_factor, variance_ratio
from fedpriv.ranges import Range, finite_float, positive_float


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
    spacing = 1
    while _short(rho, k, spacing) > shortfall:
        spacing *= 2
    too_short = spacing // 2
    while spacing - too_short > 1:  # it falls with the spacing
        middle = (spacing + too_short) // 2
        if _short(rho, k, middle) > shortfall:
            too_short = middle
        else:
            spacing = middle
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
