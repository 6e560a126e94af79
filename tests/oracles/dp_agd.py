"""DP-AGD and its comparators (Lee and Kifer, KDD 2018) in plain NumPy.

A model is one flat vector w. `grad(w, example)` and `loss(w, example)` are of one record: an
example, or a user with the mean over its examples. What is drawn is an argument: the noise z on
each sum of gradients, and `choose`, which answers the sums Ω of clipped losses with an index.
"""

import numpy as np


def clip(v, C):
    """Return v · min(1, C / ‖v‖)."""
    norm = np.linalg.norm(v)
    return v if norm <= C else v * (C / norm)


def rho_of(epsilon, delta):
    """Return the ρ whose zCDP gives (ε, δ)-DP by Bun and Steinke's conversion."""
    return (np.sqrt(np.log(1 / delta) + epsilon) - np.sqrt(np.log(1 / delta))) ** 2


def paper_prices(epsilon, delta, splits=60):
    """Return (ρ_ng, ρ_nmax): ε/(2 splits) for a choice, and for a Gaussian answer (the code)."""
    each = epsilon / (2 * splits)
    return each**2 / (4 * np.log(1.25 / delta)), each**2 / 2


def noisy_max(scores, exponentials, cap, epsilon):
    """Return argmax of -Ω + Exp(C_obj / ε'), whose noise is added and not taken away.

    Args:
        exponentials: Draws of mean 1, one a candidate.
    """
    return int(np.argmax(-np.asarray(scores) + exponentials * cap / epsilon))


def exponential(scores, gumbels, cap, epsilon):
    """Return argmax of -ε' Ω / C_obj + Gumbel: the exponential mechanism of sums of capped losses.

    Args:
        gumbels: Standard draws, one a candidate.
    """
    return int(np.argmax(-np.asarray(scores) * epsilon / cap + gumbels))


def average(old, rho, new, more):
    """Return the estimate of price ρ + more of two estimates."""
    return (rho * old + more * new) / (rho + more)


def dp_agd(w, grad, loss, records, noise, choose, *, rho, prices, gamma, C, C_obj,
           largest=2.0, sizes=20, every=10, reg=0.0):  # fmt: skip
    """Algorithm 2; return each accepted w.

    Args:
        noise: Of each accepted step the draws on its sum of gradients, one more a rejection.
        choose: From Ω (sizes + 1,) to an index; 0 is the step of size zero.
        rho, prices: The budget, and (ρ_ng, ρ_nmax).
        reg: λ, which joins u (the code); in Ω, as n λ/2 ‖w‖², it is ours.
    """
    (ng, nmax), chosen, alpha_max, iterates = prices, [], largest, []
    for draws in noise:
        if rho < ng + nmax:
            break
        g, rho, index, draws = sum(clip(grad(w, r), C) for r in records), rho - ng, 0, list(draws)
        S = g + draws.pop(0)
        alphas = np.linspace(0, alpha_max, sizes + 1)
        while index == 0:
            u = S / np.linalg.norm(S) + reg * w
            steps = [w - alpha * u for alpha in alphas]
            omega = np.array([sum(min(loss(v, r), C_obj) for r in records) for v in steps])
            index, rho = choose(omega + [len(records) * reg / 2 * v @ v for v in steps]), rho - nmax
            if index == 0:
                if rho < gamma * ng + nmax:
                    return iterates
                S = average(S, ng, g + draws.pop(0), gamma * ng)
                rho, ng = rho - gamma * ng, (1 + gamma) * ng
        w = steps[index]
        iterates.append(w)
        chosen.append(alphas[index])
        if len(chosen) == every:
            alpha_max, chosen = min(1.1 * max(chosen), largest), []
    return iterates


# -- comparators ------------------------------------------------------------------------------


def descent(w, grad, records, *, alpha, steps, reg=0.0):
    """T-step descent without privacy, whose result output perturbation adds noise to."""
    for _ in range(steps):
        w = w - alpha * (np.mean([grad(w, r) for r in records], axis=0) + reg * w)
    return w


def noisy_descent(w, grad, records, noise, *, alpha, C, reg=0.0):
    """T steps along noisy sums of clipped gradients, of a number that is fixed beforehand."""
    iterates = []
    for z in noise:
        total = sum(clip(grad(w, r), C) for r in records) + z
        w = w - alpha * (total / len(records) + reg * w)
        iterates.append(w)
    return iterates


def perturbed_minimum(w, grad, records, term, *, strength, smoothness, steps=2000):
    """Objective perturbation: the minimum of Σ ℓ(w) + Λ/2 ‖w‖² + ⟨b, w⟩, by gradient descent.

    Args:
        term: b, spherical or Gaussian, for gradients of length L (Chaudhuri et al. 2011).
        strength, smoothness: Λ, and β of one record's loss.
    """
    for _ in range(steps):
        g = sum(grad(w, r) for r in records) + strength * w + term
        w = w - g / (len(records) * smoothness + strength)
    return w


def descent_sensitivity(L, alpha, steps, n):
    """Return by how much one record moves T-step descent at most: 3 L T η / n."""
    return 3 * L * steps * alpha / n


def moments_epsilon(delta, order=32):
    """Return ε of one step by moments of orders up to 32: the largest order alone (inferred)."""
    return np.log(1 / delta) / order
