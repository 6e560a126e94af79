"""Convergence bounds of the papers' algorithms, as numbers: what a setting is guaranteed to reach.

Each function takes the constants of a problem and the settings of a run and returns values by name:
the `bound`, the parts that it is the sum of (`from_...`, `limit`), and of a bound that depends on
the learning rate the `best_learning_rate` and the `bound_at_best`. None needs data, and none
accounts for privacy: `fedpriv calibrate` says which σ an ε needs.

Formulas of Bolt-on's sensitivities and of `bias` are the paper's. All others were derived here
along the cited proofs: the texts of AdaDPS and DP-NSGD that were used have lost the formulas of
their theorems. Constants need not be the printed ones; where a step can be made tighter it is. The
tests compare each with a brute-force or simulated case.

A bound on the excess risk above that of the start says nothing. Of cross-entropy and a start at
zero that is at most ln of the number of classes.

Common notation: T rounds; σ the noise multiplier, C the clip norm and b the batch, so that the mean
of b clipped gradients has noise of standard deviation s = σC/b in each of d coordinates.

Papers: AdaDPS (Li, Zaheer, Reddi, Smith 2022); DP-NSGD (Yang, Zhang, Chen, Liu 2022); Bolt-on (Wu
et al. 2017); Recycling scraps (Shejwalkar et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting import get_sigma_gaussian
from scipy.optimize import minimize_scalar

from fedpriv.ranges import Range, finite_float, positive_float, positive_int, probability

#: Values of a bound by name.
Values = dict[str, float]


def _noise_variance(noise_multiplier: float, clip_norm: float, batch: int) -> float:
    """Return s² = (σC/b)², of each coordinate of a noisy mean."""
    finite_float("noise_multiplier", noise_multiplier, Range.AT_LEAST_ZERO)
    positive_float("clip_norm", clip_norm)
    return (noise_multiplier * clip_norm / positive_int("batch", batch)) ** 2


def _roots(rounds: int) -> float:
    """Return 2√T - 1, which Σ_{t=1}^T 1/√t is at most, and is at T = 1."""
    return 2.0 * math.sqrt(rounds) - 1.0


def _best(bound: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of a rate is least; it falls and then rises."""
    found: Any = minimize_scalar(
        lambda log: bound(math.exp(log)),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return math.exp(float(found.x))


# AdaDPS, convex.


def adadps_convex_public(
    *,
    rounds: int,
    learning_rate: float,
    distance: float,
    preconditioner_sum: float,
    noise_multiplier: float = 0.0,
    clip_norm: float = 1.0,
    batch: int = 1,
    decay: float = 1.0,
    similarity: float = 1.0,
) -> Values:
    """AdaDPS with public data on a convex F (Theorem 2): mean excess risk of its iterates.

    Of w <- w - (α/√t) (g/A + N), with A = √v + ε_t of v <- (1 - γ/t) v + (γ/t) E[ĝ²] (public
    gradients ĝ, √t ε_t never falling):

        (1/T) Σ_t E F(w_t) - F* <= D²S/(2α√T) + αS/(γa√T) + αs²S(2√T - 1)/(2T),  S >= Σ_j A_j.

    It holds if F is convex, gradients of a batch are unbiased, `|w_j - w*_j| <= D` in every
    coordinate of every iterate (Assumption 1), no preconditioned gradient is longer than C, so that
    clipping never acts (Assumption 2), and E[g_j²] <= E[ĝ_j²]/a (Assumption 3). The preconditioner
    is a function of public gradients and past iterates, not of the private batch that it divides.

    Along equations 7 to 38: √t A never falls, so that the squared distances telescope (18 to 23);
    with U_t = √t A_t of one coordinate and E[g²] <= E[ĝ²]/a, U_t - U_{t-1} >= γ E[ĝ²]/(2U_t), so
    that Σ E[g²]/U_t <= 2U_T/(γa) (24 to 33: 2/γ is the least constant, approached by gradients that
    grow as a high power of t); and E‖N‖²_A = s²S.

    Args:
        rounds: T, how many.
        learning_rate: α of α/√t, which round t has.
        distance: D, largest distance of a coordinate of any iterate from the optimum's.
        preconditioner_sum: S, largest Σ_j A_j of a round, over all coordinates j; A_j is what the
            gradient's coordinate j is divided by.
        noise_multiplier: σ, stddev of the noise on a sum over the clip norm.
        clip_norm: C, which preconditioned gradients are clipped to.
        batch: b, examples (or users) of a round.
        decay: γ, above 0 and at most 1, of v <- (1 - γ/t) v + (γ/t) E[ĝ²] in round t, the moving
            average of public gradients' squares; 1 averages all rounds alike.
        similarity: a, above 0 and at most 1: E[g_j²] <= E[ĝ_j²]/a in every coordinate j, of
            private gradients g and public ones ĝ.

    Raises:
        ValueError: If a number is out of its range.
    """
    rounds = positive_int("rounds", rounds)
    variance = _noise_variance(noise_multiplier, clip_norm, batch)
    total = positive_float("preconditioner_sum", preconditioner_sum)
    for name, value in (("decay", decay), ("similarity", similarity)):
        if not 0 < positive_float(name, value) <= 1:
            raise ValueError(f"{name} {value:g} must be above 0 and at most 1")
    return _convex(
        rounds=rounds,
        learning_rate=learning_rate,
        distance=distance,
        total=total,
        gradients=total / (decay * similarity * math.sqrt(rounds)),
        variance=variance,
    )


def adadps_convex_fixed(
    *,
    rounds: int,
    learning_rate: float,
    distance: float,
    preconditioner_sum: float,
    preconditioner_max: float,
    gradient_energy: float | None = None,
    noise_multiplier: float = 0.0,
    clip_norm: float = 1.0,
    batch: int = 1,
) -> Values:
    """AdaDPS with side information fixed before training, convex F (Theorem 3): mean excess risk.

    Of w <- w - (α/√t) (g/A + N):

        (1/T) Σ_t E F(w_t) - F* <= D²S/(2α√T) + α(Q + s²S)(2√T - 1)/(2T),  S = Σ_j A_j,

    with Q >= Σ_j E[g_j²]/A_j. It holds if F is convex, gradients of a batch are unbiased,
    `|w_j - w*_j| <= D` in every coordinate of every iterate (Assumption 1), and no preconditioned
    gradient is longer than C, so that clipping never acts (Assumption 2). Along equations 40 to
    45; by Assumption 2, Σ_j g_j²/A_j = Σ_j A_j (g_j/A_j)² <= C² max_j A_j. A ≡ 1 (S = d,
    maximum 1) is DP-SGD's.

    Args:
        rounds: T, how many.
        learning_rate: α of α/√t, which round t has.
        distance: D, largest distance of a coordinate of any iterate from the optimum's.
        preconditioner_sum: S = Σ_j A_j, over all coordinates j; A_j is what the gradient's
            coordinate j is divided by. d without preconditioner (A_j = 1).
        preconditioner_max: Largest A_j; 1 without preconditioner.
        gradient_energy: Q, largest Σ_j E[g_j²]/A_j of a round: the expected square of coordinate
            j of the batch's mean gradient over the preconditioner there, summed over coordinates.
            Leave out for C² times the largest A_j, which it cannot exceed.
        noise_multiplier: σ, stddev of the noise on a sum over the clip norm.
        clip_norm: C, which preconditioned gradients are clipped to.
        batch: b, examples (or users) of a round.

    Raises:
        ValueError: If a number is out of its range, or the largest A_j is above their sum.
    """
    rounds = positive_int("rounds", rounds)
    variance = _noise_variance(noise_multiplier, clip_norm, batch)
    total = positive_float("preconditioner_sum", preconditioner_sum)
    if positive_float("preconditioner_max", preconditioner_max) > total:
        raise ValueError(
            f"preconditioner_max {preconditioner_max:g} is above preconditioner_sum {total:g}; the "
            "sum is over all coordinates"
        )
    energy = (
        clip_norm**2 * preconditioner_max
        if gradient_energy is None
        else positive_float("gradient_energy", gradient_energy)
    )
    return _convex(
        rounds=rounds,
        learning_rate=learning_rate,
        distance=distance,
        total=total,
        gradients=0.5 * energy * _roots(rounds) / rounds,
        variance=variance,
    )


def _convex(
    *,
    rounds: int,
    learning_rate: float,
    distance: float,
    total: float,
    gradients: float,
    variance: float,
) -> Values:
    """Return a bound of three terms; `gradients` is the second one's factor of α."""
    rate = positive_float("learning_rate", learning_rate)
    start = positive_float("distance", distance) ** 2 * total / (2.0 * math.sqrt(rounds))
    noise = 0.5 * variance * total * _roots(rounds) / rounds
    terms = (start / rate, rate * gradients, rate * noise)
    return {
        "bound": sum(terms),
        "from_start": terms[0],
        "from_gradients": terms[1],
        "from_noise": terms[2],
        "best_learning_rate": math.sqrt(start / (gradients + noise)),
        "bound_at_best": 2.0 * math.sqrt(start * (gradients + noise)),
    }


# AdaDPS, smooth.


def adadps_smooth(
    *,
    rounds: int,
    learning_rate: float,
    gap: float,
    smoothness: float,
    dimension: int,
    preconditioner_min: float,
    preconditioner_max: float,
    variance: float = 0.0,
    noise_multiplier: float = 0.0,
    clip_norm: float = 1.0,
    batch: int = 1,
) -> Values:
    """AdaDPS on a smooth F that need not be convex (Theorems 4 and 5): mean squared gradient norm.

    Of w <- w - α (g/A + N), with A_min <= A_j <= A_max, Δ the gap, and α < 2A_min/L:

        (1/T) Σ_t E‖∇F(w_t)‖² <= A_max [Δ/(αT) + (αL/2)(τ²/(bA_min²) + ds²)] / (1 - αL/(2A_min)).

    Theorem 5 is of A fixed before training. Theorem 4 is of A = √v + ε, v a moving average of
    squared public gradients: A_min = ε, and A_max = ε + G where no coordinate of one is above G.

    It holds if F is L-smooth, gradients of a batch of independent examples are unbiased
    (Assumption 4), one example's gradient has at most the variance τ² (Assumption 5), and no
    preconditioned gradient is longer than C (Assumption 2). The preconditioner is independent of
    the private batch given past iterates.

    Along equations 46 to 65: of smoothness, E F falls in a round by at least
    α Σ_j (∇_jF)²/A_j - (α²L/2) Σ_j (E[g_j²]/A_j² + s²), and E[g_j²] = (∇_jF)² + τ_j²/b.

    Args:
        rounds: T, how many.
        learning_rate: α, constant.
        gap: Δ, the objective F at the start less its infimum.
        smoothness: L, largest curvature of F.
        dimension: d, number of parameters.
        preconditioner_min: Least A_j, by which coordinate j of the gradient is divided; of public
            data what is added to √v, v the moving average of public gradients' squares.
        preconditioner_max: Largest A_j; of public data the least one plus the largest size of a
            coordinate of a public gradient.
        variance: τ², of one example's gradient, summed over coordinates.
        noise_multiplier: σ, stddev of the noise on a sum over the clip norm.
        clip_norm: C, which preconditioned gradients are clipped to.
        batch: b, examples (or users) of a round.

    Raises:
        ValueError: If a number is out of its range, or the learning rate is not below 2A_min/L.
    """
    rounds, rate = positive_int("rounds", rounds), positive_float("learning_rate", learning_rate)
    least = positive_float("preconditioner_min", preconditioner_min)
    largest = positive_float("preconditioner_max", preconditioner_max)
    if largest < least:
        raise ValueError(
            f"preconditioner_max {largest:g} is below preconditioner_min {least:g}; swap them"
        )
    noise = _noise_variance(noise_multiplier, clip_norm, batch)
    start = largest * positive_float("gap", gap) / rounds
    bend = positive_float("smoothness", smoothness) / (2.0 * least)  # L/(2A_min)
    if rate * bend >= 1:
        raise ValueError(
            f"learning_rate {rate:g} must be below {1 / bend:g}, twice the least preconditioner "
            "over the smoothness; give a smaller one"
        )
    half = 0.5 * largest * smoothness
    sampled = half * finite_float("variance", variance, Range.AT_LEAST_ZERO) / (batch * least**2)
    noised = half * positive_int("dimension", dimension) * noise

    def bound(alpha: float) -> float:
        return (start / alpha + (sampled + noised) * alpha) / (1 - alpha * bend)

    mixed = bend * start + math.sqrt((bend * start) ** 2 + start * (sampled + noised))
    best = start / mixed
    slack = 1 - rate * bend
    return {
        "bound": bound(rate),
        "from_start": start / rate / slack,
        "from_sampling": rate * sampled / slack,
        "from_noise": rate * noised / slack,
        "best_learning_rate": best,
        "bound_at_best": bound(best),
    }


# DP-NSGD and DP-SGD.


def scale_factors(
    lengths: np.ndarray, regulariser: float | None, clip_norm: float | None
) -> np.ndarray:
    """Return h of gradients' lengths: 1/(r + ‖g‖), or min(1, c/‖g‖); exactly one is given.

    Raises:
        ValueError: If neither or both are given, or one is out of its range.
    """
    if (regulariser is None) == (clip_norm is None):
        raise ValueError("give either a regulariser or a clip_norm, and not both")
    if regulariser is not None:
        return 1.0 / (positive_float("regulariser", regulariser) + lengths)
    limit = positive_float("clip_norm", clip_norm)
    return np.minimum(1.0, limit / np.maximum(lengths, 1e-300))


def worst_drift(
    norm: float,
    deviation: float,
    *,
    regulariser: float | None = None,
    clip_norm: float | None = None,
    dimension: int = 2,
) -> float:
    """Return the least E⟨u, h g⟩ over laws of g with mean ∇f and ‖g - ∇f‖ <= e, u = ∇f/‖∇f‖.

    How far a step goes down the gradient at worst; negative where it may go up. The papers' Lemmas
    A.3 and A.5 bound it from below in two cases; here it is found. Of a part a of g along u, the
    least ⟨u, h g⟩ has ‖g‖² = e² - ‖∇f‖² + 2a‖∇f‖ where a > 0 (g as long as it may be) and ‖g‖ = |a|
    otherwise or in one dimension. The mean of a is ‖∇f‖, so that the answer is the lower convex
    envelope of that function there: a least chord, of 282 by 122 points (too high by about 1e-3 of
    itself at most).

    Args:
        norm: ‖∇f‖.
        deviation: e.
        regulariser: r of normalisation, in units of the gradient; or
        clip_norm: c of clipping.
        dimension: 1, or any above, which are all alike.

    Raises:
        ValueError: If a number is out of its range.
    """
    norm = finite_float("norm", norm, Range.AT_LEAST_ZERO)
    e = finite_float("deviation", deviation, Range.AT_LEAST_ZERO)
    crowded = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 60)])
    left = np.concatenate([np.linspace(norm - e, norm, 161), -crowded * e, crowded * e])
    left = np.clip(left, norm - e, norm)[:, None]
    right = np.concatenate([np.linspace(norm, norm + e, 62), norm + e * crowded[1:]])[None]

    def least(a: np.ndarray) -> np.ndarray:
        lengths = np.abs(a)
        if dimension > 1:
            aside = np.sqrt(np.maximum(e**2 - norm**2 + 2 * a * norm, a**2))
            lengths = np.where(a > 0, aside, lengths)
        return a * scale_factors(lengths, regulariser, clip_norm)

    apart = right - left
    weight = np.divide(norm - left, apart, out=np.zeros(apart.shape), where=apart > 0)
    return float((weight * least(right) + (1 - weight) * least(left)).min())


def dp_nsgd(
    *,
    rounds: int,
    learning_rate: float,
    gap: float,
    smoothness: float,
    dimension: int,
    deviation: float,
    regulariser: float | None = None,
    clip_norm: float | None = None,
    relative_smoothness: float = 0.0,
    relative_deviation: float = 0.0,
    noise_multiplier: float = 0.0,
    batch: int = 1,
) -> Values:
    """DP-NSGD (Theorem 3.2, with r) and DP-SGD (Theorem 3.4, with c): least gradient norm reached.

    Of x <- x - η (mean of h g + N), h of `scale_factors` and G_t = ‖∇f(x_t)‖: a round lowers E f by
    at least η ψ(G_t), ψ(G) = G·drift(G) - (η/2)(L₀ + L₁G)(m(G)² + ds²), where drift is
    `worst_drift` with e = τ₀ + τ₁G and m the longest that h g can be. So for every κ

        E min_t G_t <= [Δ/(ηT) + max_G (κG - ψ(G))] / κ,

    and the least over κ is returned. It holds if f is bounded below, ‖∇f(x) - ∇f(y)‖ <= (L₀ +
    L₁‖∇f(x)‖) ‖x - y‖ (Assumption 2.1), E g = ∇f, and ‖g - ∇f‖ <= τ₀ + τ₁‖∇f‖ of every example
    with τ₁ < 1 (Assumption 2.2). The rate of equation (4), the constants of (5) and Lemma A.5's
    condition on c are lost in the copy used. Maxima are over 401 norms, a factor of 1.06 apart.

    η -> 0 and T -> ∞ leave `limit`. Of normalisation it is the paper's non-vanishing term, at most
    (√(r² + 4τ₀²) - r)/2 <= τ₀²/r where τ₁ = 0; of clipping it is 0 where τ₁ = 0 and c >= τ₀, and
    τ₀ - c below that in one dimension.

    Args:
        rounds: T, how many.
        learning_rate: η, constant.
        gap: Δ, the objective f at the start less its infimum.
        smoothness: L₀ of the generalised smoothness L₀ + L₁‖∇f‖: the largest curvature of f where
            its gradient is ∇f.
        dimension: d, number of parameters.
        deviation: τ₀ of ‖g - ∇f‖ <= τ₀ + τ₁‖∇f‖, which holds of every example's gradient g and the
            mean gradient ∇f.
        regulariser: r of DP-NSGD, whose gradients are multiplied by 1/(r + ‖g‖) and whose mean
            has noise of standard deviation σ/b; give this or the clip norm.
        clip_norm: c of DP-SGD, whose gradients are multiplied by min(1, c/‖g‖) and whose mean has
            noise of standard deviation cσ/b; give this or the regulariser.
        relative_smoothness: L₁ of the smoothness L₀ + L₁‖∇f‖; 0 of an ordinary smooth f.
        relative_deviation: τ₁ of the deviation τ₀ + τ₁‖∇f‖, below 1.
        noise_multiplier: σ, stddev of the noise on a sum over the clip norm.
        batch: b, examples (or users) of a round.

    Raises:
        ValueError: If a number is out of its range, neither or both of r and c are given, or the
            learning rate is so large that nothing follows.
    """
    rounds, rate = positive_int("rounds", rounds), positive_float("learning_rate", learning_rate)
    gap = positive_float("gap", gap)
    flat = finite_float("smoothness", smoothness, Range.AT_LEAST_ZERO)
    steep = finite_float("relative_smoothness", relative_smoothness, Range.AT_LEAST_ZERO)
    apart = finite_float("deviation", deviation, Range.AT_LEAST_ZERO)
    wider = finite_float("relative_deviation", relative_deviation, Range.FRACTION)
    wide = positive_int("dimension", dimension)
    scale_factors(np.zeros(1), regulariser, clip_norm)  # one of the two, and in its range
    noise = _noise_variance(noise_multiplier, clip_norm or 1.0, batch)
    # From far below to far above every length that the problem has.
    length = max(apart / (1 - wider), regulariser or clip_norm or 0.0, math.sqrt(flat * gap))
    norms = np.concatenate([[0.0], length * np.geomspace(1e-5, 1e5, 400)])
    around = apart + wider * norms
    drifts = [
        worst_drift(norm, e, regulariser=regulariser, clip_norm=clip_norm, dimension=wide)
        for norm, e in zip(norms.tolist(), around.tolist(), strict=True)
    ]
    downward = norms * np.array(drifts)
    longest = (norms + around) * scale_factors(norms + around, regulariser, clip_norm)
    upward = 0.5 * (flat + steep * norms) * (longest**2 + wide * noise)

    def bound(eta: float, count: float) -> float:
        falls = downward - eta * upward
        steepest = falls[-1] / norms[-1]
        if steepest <= 0:
            return math.inf
        kappas = steepest * np.concatenate([np.geomspace(1e-4, 0.1, 100), np.linspace(0.1, 1, 200)])
        worst = (kappas[:, None] * norms - falls).max(axis=1)
        return float(((gap / (eta * count) + worst) / kappas).min())

    found = bound(rate, rounds)
    if not math.isfinite(found):
        raise ValueError(
            f"learning_rate {rate:g} is so large that steep places are not shown to be left; give "
            "a smaller one"
        )
    # Where every step goes downhill nothing is left; the least κ tried would leave a little.
    limit = 0.0 if (downward[1:] > 0).all() else bound(1e-300, math.inf)
    steady = bound(rate, math.inf)
    best = _best(lambda eta: min(bound(eta, rounds), 1e300), 1e-8 * rate, 1e4 * rate)
    return {
        "bound": found,
        "limit": limit,
        "from_noise": steady - limit,
        "from_start": found - steady,
        "best_learning_rate": best,
        "bound_at_best": bound(best, rounds),
    }


def bias(
    *,
    upper: float = 1.3,
    lower: float = -0.5,
    chance: float = 1 / 3,
    regulariser: float | None = None,
    clip_norm: float | None = None,
) -> Values:
    """Bias of normalising or clipping single gradients, of two gradients in one dimension.

    A gradient is `upper` with a chance, else `lower`; the expected `step` is E[g/(r + |g|)], or E[g
    min(1, c/|g|)]. `along` is its product with the `mean`: f rises along the step where it is
    negative. `worst` is the least step along the gradient of any law as far from it. The defaults
    have a mean of 0.1, of which a small r turns the sign, and c = 1.3 keeps it.

    Args:
        upper: One gradient.
        lower: The other gradient.
        chance: Probability of the first, above 0 and below 1.
        regulariser: r of 1/(r + |g|), by which a gradient g is multiplied; give this or the clip
            norm.
        clip_norm: c of min(1, c/|g|), by which a gradient g is multiplied; give this or the
            regulariser.

    Raises:
        ValueError: If a number is out of its range, or neither or both of r and c are given.
    """
    share = probability("chance", chance)
    values = np.array([finite_float("upper", upper), finite_float("lower", lower)])
    weights = np.array([share, 1 - share])
    mean = float(weights @ values)
    step = float(weights @ (values * scale_factors(np.abs(values), regulariser, clip_norm)))
    apart = float(np.abs(values - mean).max())
    worst = worst_drift(abs(mean), apart, regulariser=regulariser, clip_norm=clip_norm, dimension=1)
    return {"step": step, "mean": mean, "along": step * mean, "worst": worst}


# Bolt-on.

#: Parts of the excess risk: optimisation as of independent draws, drawing without replacement in
#: several passes, and noise for privacy.
_OF_EXCESS = ("from_steps", "from_order", "from_noise")


def _perturbed(
    sensitivity: float,
    dimension: int,
    epsilon: float,
    delta: float | None,
    lipschitz: float,
    smoothness: float,
) -> float:
    """Return what noise on the output adds to the risk, at most: the lesser of two bounds.

    L E‖κ‖, and (β/2) E‖κ‖² because noise has mean zero. Of density exp(-ε‖κ‖/Δ), ‖κ‖ has a Gamma
    law: means dΔ/ε and d(d + 1)Δ²/ε². A Gaussian of the least stddev s for (ε, δ) (Balle and Wang
    2018) has E‖κ‖² = ds².
    """
    if delta is None:
        length = dimension * sensitivity / epsilon
        square = dimension * (dimension + 1) * (sensitivity / epsilon) ** 2
    else:
        stddev = sensitivity * get_sigma_gaussian(epsilon, delta)
        square = dimension * stddev**2
        length = math.sqrt(square)
    return min(lipschitz * length, 0.5 * smoothness * square)


def bolt_on_convex(
    *,
    examples: int,
    passes: int,
    learning_rate: float,
    distance: float,
    lipschitz: float,
    smoothness: float,
    dimension: int,
    epsilon: float,
    delta: float | None = None,
    batch: int = 1,
    reshuffled: bool = False,
) -> Values:
    """Bolt-on, Algorithm 1: excess empirical risk of permutation SGD perturbed once, convex.

    Of the average of all iterates of k passes over a random permutation of m examples, in batches
    of b, at a constant η <= 2/β, plus noise for Δ₂ = 2kLη/b (replace-one):

        E F(w̄ + κ) - F* <= R²b/(2ηmk) + ηL²/2 + (1 - b/m) c L²η/b + noise,

    It holds if every example's loss is convex, L-Lipschitz and β-smooth, and the order is uniform
    and independent of the data. The average is of all iterates, before each step; the paper's
    slides release the last one, and name the excess risk without constants. Δ₂ is the paper's
    (theorem 'Convex': 2kLη), divided by the batch.

    c = 2k - 1 of one permutation for all passes, and 1 of a new one for each. The first two terms
    are the regret of the steps, against the batches that they take. A batch is not F: the iterate
    before it depends on what came before. Exchanging an example of that batch for one that has been
    seen in this pass moves the iterate by at most 2Lη/b, and by twice that for each earlier pass of
    the same permutation, which is the paper's own sensitivity argument; so E F exceeds the
    batches' by at most the third term. The last is the lesser of L E‖κ‖ and (β/2) E‖κ‖².

    Args:
        examples: m, how many; a multiple of the batch.
        passes: k, over all examples.
        learning_rate: η, constant, at most 2/β, β the smoothness.
        distance: R, Euclidean, of the start from the optimum.
        lipschitz: L, largest gradient norm of an example's loss.
        smoothness: β, largest curvature of an example's loss.
        dimension: d, number of parameters.
        epsilon: ε, replace-one, per example, of one release.
        delta: δ of Gaussian noise; leave out for pure ε-DP (δ = 0), whose noise κ has density
            proportional to exp(-ε‖κ‖/Δ₂), Δ₂ the sensitivity.
        batch: b, examples of an update.
        reshuffled: Whether each pass has a permutation of its own.

    Raises:
        ValueError: If a number is out of its range, or the learning rate is above 2/β.
    """
    m, k, b = _passes(examples, passes, batch)
    rate = positive_float("learning_rate", learning_rate)
    slope, beta = positive_float("lipschitz", lipschitz), positive_float("smoothness", smoothness)
    epsilon, d = positive_float("epsilon", epsilon), positive_int("dimension", dimension)
    delta = None if delta is None else probability("delta", delta)
    start = positive_float("distance", distance) ** 2 * b / (2.0 * m * k)
    if rate > 2 / beta:
        raise ValueError(f"learning_rate {rate:g} is above 2/β = {2 / beta:g}; give a smaller one")
    order = (1 - b / m) * (1 if reshuffled else 2 * k - 1) * slope**2 / b

    def terms(eta: float) -> tuple[float, float, float]:
        noise = _perturbed(2 * k * slope * eta / b, d, epsilon, delta, slope, beta)
        return start / eta + 0.5 * eta * slope**2, eta * order, noise

    best = min(_best(lambda eta: sum(terms(eta)), 1e-9 * 2 / beta, 2 / beta), 2 / beta)
    return {
        "bound": sum(terms(rate)),
        **dict(zip(_OF_EXCESS, terms(rate), strict=True)),
        "best_learning_rate": best,
        "bound_at_best": sum(terms(best)),
        "sensitivity": 2 * k * slope * rate / b,
    }


def bolt_on_strongly_convex(
    *,
    examples: int,
    passes: int,
    distance: float,
    lipschitz: float,
    smoothness: float,
    convexity: float,
    dimension: int,
    epsilon: float,
    delta: float | None = None,
    batch: int = 1,
    reshuffled: bool = False,
) -> Values:
    """Bolt-on, Algorithm 2: excess empirical risk with steps min(1/β, 1/γt), strongly convex.

    Of the average of T = km/b iterates plus noise for Δ₂ = 2L/(γm) (replace-one):

        E F(w̄ + κ) - F* <= [(β - γ)R²/2 + (L²/2) Σ_t η_t]/T + 2L²c/(γm) + noise,

    c = 2 - 1/k of one permutation for all passes, and (1 + 1/2 + ... + 1/k)/k of a new one for
    each. It holds as `bolt_on_convex`, of γ-strongly convex losses that are L-Lipschitz where
    iterates and noise lead; Δ₂ is the paper's (theorem 'Strongly Convex'). An example that differs
    has moved the iterate after n updates by at most 2L/(bγn) for each time that it was taken.

    Args:
        examples: m, how many; a multiple of the batch.
        passes: k, over all examples.
        distance: R, Euclidean, of the start from the optimum.
        lipschitz: L, largest gradient norm of an example's loss, its regulariser included, where
            iterates and noise lead.
        smoothness: β, largest curvature of an example's loss, its regulariser included.
        convexity: γ, least curvature of an example's loss: the weight λ of a regulariser λ/2 ‖w‖².
        dimension: d, number of parameters.
        epsilon: ε, replace-one, per example, of one release.
        delta: δ of Gaussian noise; leave out for pure ε-DP (δ = 0), whose noise κ has density
            proportional to exp(-ε‖κ‖/Δ₂), Δ₂ the sensitivity.
        batch: b, examples of an update.
        reshuffled: Whether each pass has a permutation of its own.

    Raises:
        ValueError: If a number is out of its range, or the convexity is above the smoothness.
    """
    m, k, b = _passes(examples, passes, batch)
    slope, beta = positive_float("lipschitz", lipschitz), positive_float("smoothness", smoothness)
    gamma, d = positive_float("convexity", convexity), positive_int("dimension", dimension)
    if gamma > beta:
        raise ValueError(f"convexity {gamma:g} is above smoothness {beta:g}; no loss is so")
    epsilon = positive_float("epsilon", epsilon)
    delta = None if delta is None else probability("delta", delta)
    updates = k * m // b
    steady = min(updates, math.floor(beta / gamma))  # of step 1/β
    steps = steady / beta + (_harmonic(updates) - _harmonic(steady)) / gamma
    start = 0.5 * (beta - gamma) * positive_float("distance", distance) ** 2
    again = _harmonic(k) / k if reshuffled else 2 - 1 / k
    sensitivity = 2 * slope / (gamma * m)
    terms = (
        (start + 0.5 * slope**2 * steps) / updates,
        2 * slope**2 * again / (gamma * m),
        _perturbed(sensitivity, d, epsilon, delta, slope, beta),
    )
    return {
        "bound": sum(terms),
        **dict(zip(_OF_EXCESS, terms, strict=True)),
        "sensitivity": sensitivity,
    }


def _passes(examples: int, passes: int, batch: int) -> tuple[int, int, int]:
    m, k = positive_int("examples", examples), positive_int("passes", passes)
    b = positive_int("batch", batch)
    if m % b:
        raise ValueError(f"batch {b} does not divide examples {m}; give one that does")
    return m, k, b


# Last iterate and averages.


def last_iterate(
    *,
    rounds: int,
    learning_rate: float,
    distance: float,
    dimension: int,
    clip_norm: float = 1.0,
    noise_multiplier: float = 0.0,
    batch: int = 1,
    last: int = 1,
) -> Values:
    """Excess risk of DP-SGD's last iterate against averages, convex F (Recycling, Theorem 3.2).

    At a constant η, with G² = C² + ds² and n = T + 1 models, the start among them, the average of
    the last k has

        E F(w̄_k) - F* <= D²/(2ηn) + (ηG²/2)(1 + Σ_{i=k}^{n-1} 1/i).

    if F is convex, gradients of a batch are unbiased and none is longer than C, so that clipping
    never acts. k = n is the average of all, without the sum; k = 1 the last iterate, whose sum is
    about ln T. Proof (Shamir and Zhang 2013): the steps from the j-th last model on, compared with
    that model itself, give S_{k-1} <= S_k + ηG²/(2k) of averages S of the last k + 1 models' risks.
    So at one rate the last iterate's second term is 1 + ln T times the average's, and at each one's
    best rate the bounds differ by the root of that.

    Args:
        rounds: T, how many.
        learning_rate: η, constant.
        distance: D, Euclidean, of the start from the optimum.
        dimension: d, number of parameters.
        clip_norm: C, which no gradient is longer than.
        noise_multiplier: σ, stddev of the noise on a sum over the clip norm.
        batch: b, examples (or users) of a round.
        last: k, how many last models are averaged, as the aggregate `upa` does.

    Raises:
        ValueError: If a number is out of its range, or more models are averaged than there are.
    """
    rounds, rate = positive_int("rounds", rounds), positive_float("learning_rate", learning_rate)
    models, k = rounds + 1, positive_int("last", last)
    if k > models:
        raise ValueError(f"last {k} is more than the {models} models of {rounds} rounds")
    start = positive_float("distance", distance) ** 2 / (2.0 * models)
    square = clip_norm**2 + positive_int("dimension", dimension) * _noise_variance(
        noise_multiplier, clip_norm, batch
    )

    def factor(kept: int) -> float:
        return 1.0 + _harmonic(models - 1) - _harmonic(kept - 1)

    def bound(kept: int) -> float:
        return start / rate + 0.5 * rate * square * factor(kept)

    def at_best(kept: int) -> float:
        return math.sqrt(2.0 * start * square * factor(kept))

    return {
        "last": bound(1),
        "average_of_last": bound(k),
        "average": bound(models),
        "last_at_best": at_best(1),
        "average_at_best": at_best(models),
        "ratio": bound(1) / bound(models),
        "ratio_at_best": at_best(1) / at_best(models),
    }


def _harmonic(number: int) -> float:
    """Return 1 + 1/2 + ... + 1/n; 0 of 0."""
    if number < 10_000:
        return math.fsum(1 / i for i in range(1, number + 1))
    return math.log(number) + 0.5772156649015329 + 1 / (2 * number) - 1 / (12 * number**2)


#: Bounds by the names that commands have for them, with their theorems.
FORMULAS: dict[str, tuple[str, Callable[..., Values]]] = {
    "adadps-convex-public": ("AdaDPS, Theorem 2, convex with public data", adadps_convex_public),
    "adadps-convex-fixed": ("AdaDPS, Theorem 3, convex with fixed A", adadps_convex_fixed),
    "adadps-smooth": ("AdaDPS, Theorems 4 and 5, smooth", adadps_smooth),
    "dp-nsgd": ("DP-NSGD, Theorems 3.2 and 3.4", dp_nsgd),
    "bias": ("DP-NSGD, Appendix A.1, bias of single gradients' scaling", bias),
    "bolt-on-convex": ("Bolt-on, Algorithm 1, excess risk", bolt_on_convex),
    "bolt-on-strongly-convex": ("Bolt-on, Algorithm 2, excess risk", bolt_on_strongly_convex),
    "last-iterate": ("Recycling, Theorem 3.2, last iterate against averages", last_iterate),
}
