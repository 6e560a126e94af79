"""What the five papers' theorems state, as short functions of numbers.

The texts at hand of AdaDPS and DP-NSGD have lost the formulas of their theorems. These are what the
proofs' own steps give; a docstring names the steps. A bound may be tighter than the printed one.
Bolt-on's two sensitivities are in `bolt_on`.

s2 is the variance of the noise on each coordinate of a mean gradient, (σC/b)².
"""

import math

import numpy as np

# -- AdaDPS: T rounds of rate α/√t (convex) or α (smooth) ---------------------------------------


def rmsprop_sum(g, gamma, eps):
    """AdaDPS, (24) to (33): return Σ g_t²/U_t and U_T, which it is at most 2/γ times.

    U_t = √t (√v_t + ε_t) of one coordinate, v_t = (1 - γ/t) v_(t-1) + (γ/t) g_t², ε_t = ε/√t.
    """
    v = total = 0.0
    for t, value in enumerate(g, 1):
        v = (1 - gamma / t) * v + gamma / t * value**2
        u = math.sqrt(t * v) + eps
        total += value**2 / u
    return total, u


def adadps_public(T, alpha, D, S, s2, *, gamma=1.0, a=1.0):
    """AdaDPS, Theorem 2 ((7) to (38)): excess risk under A of public gradients, Σ A_j <= S.

    The start, gradients (by `rmsprop_sum`, of private ones at most 1/a of public ones), and noise.
    """
    noise = s2 * S * (2 * math.sqrt(T) - 1) / (2 * T)
    return D**2 * S / (2 * alpha * math.sqrt(T)) + alpha * (S / (gamma * a * math.sqrt(T)) + noise)


def adadps_fixed(T, alpha, D, A, energy, s2):
    """AdaDPS, Theorem 3 ((40) to (45)): excess risk under a fixed A, Σ E[g_j²]/A_j <= energy."""
    roots = (2 * math.sqrt(T) - 1) / (2 * T)  # Σ 1/√t is at most 2 √T - 1
    return D**2 * sum(A) / (2 * alpha * math.sqrt(T)) + alpha * roots * (energy + s2 * sum(A))


def glm(p, A, R=1.0):
    """AdaDPS, 5.1.1: Σ E[g_j²]/A_j and Σ A_j of gradients c x, |c| <= R, x_j one with chance p_j.

    A = p has energy R² d and a noise of Σ p in the place of d; A = √p has R² Σ √p and Σ √p.
    """
    return R**2 * float(np.sum(np.divide(p, A))), float(np.sum(A))


def adadps_smooth(T, alpha, gap, L, d, A_min, A_max, s2, *, variance=0.0, b=1):
    """AdaDPS, Theorems 4 and 5 ((46) to (65)): mean ‖∇F‖² of a smooth F at a constant rate.

    Of public data A_min = ε and A_max = ε + G, |ĝ_j| <= G.
    """
    bent = alpha * L / 2 * (variance / (b * A_min**2) + d * s2)
    return A_max * (gap / (alpha * T) + bent) / (1 - alpha * L / (2 * A_min))


# -- DP-NSGD: h = 1/(r + ‖g‖), or min(1, c/‖g‖); ‖g - ∇f‖ <= e ----------------------------------


def drift_normalised(G, e, r):
    """DP-NSGD, Lemma A.3: E⟨∇f, h g⟩/‖∇f‖ is at least this, of ‖∇f‖ = G.

    No gradient points back where G >= e. Elsewhere h varies by 1/r - 1/(r + G + e) about its
    middle, and what it weighs, ⟨∇f, g - ∇f⟩, has mean zero. No g lies further back than e - G,
    which caps it (ours). It is of use for r >= e; `least_drift` is the least itself.
    """
    level = G / (r + G + e)
    back = np.maximum(e - G, 0.0)
    lemma = level - 0.5 * e * (1 / r - 1 / (r + G + e))
    return np.where(e <= G, level, np.maximum(lemma, -back / (r + back)))


def drift_clipped(G, e, c):
    """DP-NSGD, Lemma A.5, c >= 2 e: nothing is clipped, or all is forward, h >= c/(G + e)."""
    return G * c / np.maximum(c, G + e)


def least_drift(G, e, h):
    """Least E⟨u, h g⟩ of all laws of g with mean ∇f and ‖g - ∇f‖ <= e, u = ∇f/‖∇f‖, d >= 2.

    Of g with ⟨u, g⟩ = a the least is φ(a): of the longest g if a > 0, of the shortest if a <= 0.
    E a = G, so that min (φ(a) - λ (a - G)) over a is at most the answer for every λ. It is concave
    in λ, and its greatest value is the answer.

    Args:
        G, e: Vectors, of one size.
        h: From lengths ‖g‖ to factors.
    """
    near = np.concatenate([-np.geomspace(1e-6, 1, 60), [0.0], np.geomspace(1e-6, 1, 60)])
    a = G[:, None] + e[:, None] * np.concatenate([np.linspace(-1, 1, 321), near])
    a = np.hstack([a, e[:, None] * near])  # about zero too
    a = np.clip(a, (G - e)[:, None], (G + e)[:, None])
    longest = np.sqrt(np.maximum((e**2 - G**2)[:, None] + 2 * a * G[:, None], a**2))
    phi = a * h(np.where(a > 0, longest, -a))
    low, high = -h(np.zeros_like(G)), h(np.zeros_like(G))
    for _ in range(80):
        third = (high - low) / 3
        one, two = (np.min(phi - lam[:, None] * (a - G[:, None]), axis=1)
                    for lam in (low + third, high - third))  # fmt: skip
        low, high = np.where(one < two, low + third, low), np.where(one < two, high, high - third)
    return np.maximum(one, two)


def least_gradient(drift, longest, *, gap, eta, T, L0, noise, L1=0.0, top=1e3):
    """DP-NSGD, Theorems 3.2 and 3.4: E min ‖∇f(x_t)‖ is at most this.

    A step lowers E f by ψ(G) η at least (Lemma A.2), G = ‖∇f‖ and
    ψ = G drift(G) - (η/2) (L₀ + L₁ G) (longest² + noise).
    So κ E min G <= Δ/(ηT) + max (κ G - ψ) for every κ.

    Args:
        drift: From G to `least_drift`, or to a lemma's bound on it.
        longest: From G to the longest that h g can be.
        noise: d times the variance of a coordinate's noise.
    """
    G = np.concatenate([[0.0], np.geomspace(1e-7, top, 1500)])
    psi = G * drift(G) - eta / 2 * (L0 + L1 * G) * (longest(G) ** 2 + noise)
    kappas = psi[-1] / top * np.geomspace(1e-5, 1, 400)
    return min((gap / (eta * T) + np.max(k * G - psi)) / k for k in kappas)


def privacy_lemma(epsilon, delta, B, N, T):
    """DP-NSGD, Lemma 3.1, derived: σ = c₂ (B/N) √(T log(1/δ))/ε; see `within_lemma` for its range.

    The paper's text says that constants exist, and has lost formula and range: this shape is that
    of Abadi et al. (2016), Theorem 1, to which it refers. By Proposition E.3,
    ρ + 2 √(ρ log(1/δ)) <= ε of ρ = 26 T (B/N)²/σ² makes c₂ = √26/(√2 - 1).
    """
    c2 = math.sqrt(26) / (math.sqrt(2) - 1)
    return c2 * B / N * math.sqrt(T * math.log(1 / delta)) / epsilon


def within_lemma(epsilon, delta, B, N, sigma):
    """Return whether Lemma 3.1 holds of a σ: (1 + √2) log(1/δ)/ε + 1 is an order that it has."""
    s, rho = B / N, 2 / sigma**2
    sampled = max(s, rho) <= 0.1 and math.log(1 / s) >= 3 * rho * (2 + math.log2(1 / rho))
    order = 1 + (1 + math.sqrt(2)) * math.log(1 / delta) / epsilon
    return epsilon <= math.log(1 / delta) and sampled and order < subsampled_tcdp(s, sigma)[1]


def subsampled_tcdp(s, sigma):
    """DP-NSGD, Proposition E.3 (46): (ρ', ω') of a sampled Gaussian, replace-one, s = B/N.

    A replaced example moves the sum by 2, so that the Gaussian alone is ρ-zCDP, ρ = 2/σ². It holds
    for orders from 1 to ω' if s <= 0.1, ρ <= 0.1 and log(1/s) >= 3 ρ (2 + log2(1/ρ)): Bun et al.
    (2018), Theorem 11.
    """
    rho = 2 / sigma**2
    return 13 * s**2 * rho, math.log(1 / s) / (4 * rho)


def private_rate(N, epsilon, delta, d):
    """Rate that `corollary` falls at without deviation, derived: (d log(1/δ)/(N²ε²))^(1/4).

    DP-NSGD's own, in Corollaries 3.3 and 3.5 and Table 1, is lost in the text at hand.
    """
    return (d * math.log(1 / delta) / (N * epsilon) ** 2) ** 0.25


def corollary(drift, *, gap, L0, N, epsilon, delta, d, c=1.0, top=1e3):
    """DP-NSGD, Corollaries 3.3 and 3.5, τ₁ = L₁ = 0: `least_gradient` at Lemma 3.1's σ, T → ∞.

    The step size's own part vanishes, Δ/x + (x/2) L₀ d c₂² log(1/δ)/(Nε)² at the best x = ηT is
    left, and what normalising leaves for ever.

    Args:
        c: What the noise is a multiple of: the clipping threshold, or 1 of normalised gradients.
    """
    noise = d * (c * privacy_lemma(epsilon, delta, 1, N, 1)) ** 2  # of T steps, over T
    left = math.sqrt(2 * gap * L0 * noise)
    G = np.concatenate([[0.0], np.geomspace(1e-7, top, 1500)])
    level = drift(G)
    kappas = level[-1] * np.geomspace(1e-5, 1, 400)
    return min((left + np.max(k * G - G * level)) / k for k in kappas)


def public_rate(T):
    """Rate of SGD without noise, T^(-1/4): derived; in Table 1 of DP-NSGD it is lost."""
    return T**-0.25


# -- Recycling Scraps --------------------------------------------------------------------------


def average_of_last(T, eta, D, square, k):
    """Recycling, Theorem 3.2: excess risk of the mean of the last k of T + 1 models, convex F.

    Args:
        square: Mean square of a noisy gradient, at most. k = 1 is the last, k = T + 1 all.
    """
    back = sum(1 / i for i in range(k, T + 1))
    return D**2 / (2 * eta * (T + 1)) + eta * square / 2 * (1 + back)
