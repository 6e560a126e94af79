"""Bolt-on differential privacy (Wu et al., SIGMOD 2017) in plain NumPy.

A model is one flat vector w. `grad(w, i)` is the gradient of one example's data term, or of one
user's mean. The order of each pass is an argument, as is what is added to the result.
"""

from statistics import NormalDist

import numpy as np


def rates(name, updates, *, m, beta=None, gamma=None, eta=None, c=0.5):
    """Return η_1, η_2, ...: Algorithms 1 and 2; the two in between are unverified."""
    t = np.arange(1, updates + 1)
    if name == "constant":
        return np.full(updates, eta)
    if name == "decreasing":
        return 2 / (beta * (t + m**c))
    if name == "square-root":
        return 2 / (beta * (np.sqrt(t) + m**c))
    return np.minimum(1 / beta, 1 / (gamma * t))  # strongly convex


def project(w, R):
    """Return the nearest point of the ball of radius R."""
    norm = np.linalg.norm(w)
    return w if norm <= R else w * (R / norm)


def permutation_sgd(w, grad, orders, etas, *, b, reg=0.0, R=np.inf, K=1, server=1.0, average=False):
    """Algorithms 1 and 2 without their noise; what does not fill a last batch sits out.

    Over users: K full gradient steps of each, whose mean moves w by a share `server`.
    """
    etas, iterates = iter(etas), []
    for order in orders:
        for start in range(0, len(order) - b + 1, b):
            eta, step = next(etas), 0.0
            for i in order[start : start + b]:
                w_k = w
                for _ in range(K):
                    w_k = w_k - eta * grad(w_k, i)
                step = step + (w_k - w) / b
            w = project((1 - eta * reg) * w + server * step, R)
            iterates.append(w)
    return np.mean(iterates, axis=0) if average else w


def convex_sensitivity(L, etas, *, passes, b, K=1, average=False):
    """Return Δ₂ for a replaced example: 2 L Σ_j max η of pass j / b; 2kLη/b of a constant step.

    Of the mean of all iterates it is the mean of what each one is apart at most.
    """
    reached, apart = 0.0, []
    for part in np.split(np.asarray(etas), passes):
        apart += [reached + max(part[: t + 1]) for t in range(len(part))]
        reached = apart[-1]
    return 2 * L * K / b * (np.mean(apart) if average else reached)


def strongly_convex_sensitivity(L, gamma, m):
    """Return Δ₂ of η_t = min(1/β, 1/γt): 2L/(γm), whatever the passes and batches."""
    return 2 * L / (gamma * m)


def spherical_noise(direction, gamma_draw, sensitivity, epsilon):
    """Return κ of density ∝ exp(-ε‖κ‖/Δ₂): a length of Gamma(d, Δ₂/ε) in a uniform direction."""
    return direction / np.linalg.norm(direction) * gamma_draw * sensitivity / epsilon


def gaussian_delta(sigma, epsilon):
    """Return δ of Gaussian noise of σ times the sensitivity (Balle and Wang 2018)."""
    phi = NormalDist().cdf
    at = 1 / (2 * sigma)
    return phi(at - epsilon * sigma) - np.exp(epsilon) * phi(-at - epsilon * sigma)


def private_tuning(w, trainings, parts, noise, mistakes, choose):
    """Algorithm 3: each candidate is trained on a part and perturbed; the last part judges.

    Args:
        trainings: From w and a part to each candidate's end.
        parts: l + 1 of one size that do not meet, l candidates.
        mistakes: From w and an example to 1 if w answers wrongly.
        choose: From the candidates' mistakes to an index, by `tuning_probabilities`.
    """
    *parts, judges = parts
    models = [t(w, part) + z for t, part, z in zip(trainings, parts, noise, strict=True)]
    return models[choose([sum(mistakes(v, j) for j in judges) for v in models])]


def tuning_probabilities(mistakes, epsilon):
    """Return how likely private tuning releases each candidate: ∝ exp(-ε χ/2)."""
    weights = np.exp(-0.5 * epsilon * (np.asarray(mistakes) - min(mistakes)))
    return weights / weights.sum()


def random_projection(x, P):
    """Return inputs in fewer dimensions, shortened to ‖x‖ ≤ 1 again."""
    y = x @ P
    return y / np.maximum(1, np.linalg.norm(y, axis=1, keepdims=True))


# -- comparators ------------------------------------------------------------------------------


def scs13(w, grad, order, noise, *, eta, b, reg=0.0):
    """SCS13: each batch's mean gradient is noised, one pass (Song, Chaudhuri, Sarwate 2013).

    Args:
        noise: One vector an update on its mean gradient: spherical, of sensitivity L/b, or 2L/b
            for a replaced example. Of k passes each has ε/k.
    """
    for t, z in enumerate(noise, 1):
        batch = order[(t - 1) * b : t * b]
        g = np.mean([grad(w, i) for i in batch], axis=0) + reg * w
        w = w - eta(t) * (g + z)
    return w


def bst14(w, grad, picks, noise, *, L, R, sigma, b, reg=0.0):
    """BST14 (Bassily, Smith, Thakurta 2014): random examples each step, and η_t = 2R/(G√t).

    Args:
        picks: The batch of each step, of b examples in expectation.
        noise: One vector a step on its sum of gradients, of standard deviation σ.
    """
    G = np.sqrt(L**2 + len(w) * (sigma / b) ** 2)  # bounds the noisy mean gradient's mean square
    for t, (batch, z) in enumerate(zip(picks, noise, strict=True), 1):
        g = (sum((grad(w, i) for i in batch), np.zeros_like(w)) + z) / b + reg * w
        w = project(w - 2 * R / (G * np.sqrt(t)) * g, R)
    return w


def strong_composition(each, steps, delta):
    """Return ε of so many answers of ε each (Dwork, Rothblum and Vadhan 2010)."""
    return steps * each * np.expm1(each) + np.sqrt(2 * steps * np.log(1 / delta)) * each


def bst14_sigma(each, delta, q):
    """Return σ of one step of BST14, whose sampling with probability q is to leave ε of `each`."""
    return np.sqrt(2 * np.log(1.25 / delta)) / min(1, each / (2 * q))
