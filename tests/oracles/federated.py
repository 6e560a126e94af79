"""Adaptive clipping (Andrew et al. 2021) and FedProx (Li et al. 2020) in plain NumPy.

A model is one flat vector w, and `grad(w, batch)` the mean gradient of a local batch. Batches and
noise are arguments.
"""

import numpy as np


def rate_factors(rounds, *, schedule="constant", warmup=0):
    """Return what the local rate of each round is multiplied by: a rise, then half a cosine."""
    t = np.arange(1, rounds + 1)
    factors = np.ones(rounds)
    if schedule == "cosine":
        factors = 0.5 * (1 + np.cos(np.pi * (t - 1 - warmup) / (rounds - warmup)))
    return np.where(t <= warmup, t / max(warmup, 1), factors)


def local_update(w, grad, batches, *, eta, mu=0.0, momentum=0.0, decay=0.0):
    """FedProx: steps on F_k(w) + μ/2 ‖w - w_t‖², by SGD with weight decay.

    Its momentum begins at zero with each user.
    """
    w_k, v = w, np.zeros_like(w)
    for batch in batches:
        v = momentum * v + grad(w_k, batch) + mu * (w_k - w) + decay * w_k
        w_k = w_k - eta * v
    return w_k - w


def local_adam(w, grad, batches, *, eta, mu=0.0, betas, eps):
    """The same by Adam with bias correction, whose moments begin at zero with each user."""
    w_k, m, v = w, np.zeros_like(w), np.zeros_like(w)
    for t, batch in enumerate(batches, 1):
        g = grad(w_k, batch) + mu * (w_k - w)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        w_k = w_k - eta * m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return w_k - w


def update_noise(z, sigma_b):
    """Return z_Δ, so that update and count together cost a Gaussian of z (Theorem 1)."""
    return (z**-2 - (2 * sigma_b) ** -2) ** -0.5


def adaptively_clipped(w, updates_of, noise, count_noise, *, C, quantile, rate, m, least, most):
    """Algorithm 1: C follows a quantile of the updates' norms; return the model after each round.

    Args:
        updates_of: From w and the round to the cohort's raw updates.
        noise: On the sum of updates, of standard deviation z_Δ: C times as much is added.
        count_noise: On how many are within C, of standard deviation σ_b.
        m: Expected size of a cohort, by which both are divided.
        least, most: Public limits of C.
    """
    iterates = []
    for t, (z, xi) in enumerate(zip(noise, count_noise, strict=True)):
        total, within = C * z, xi
        for delta in updates_of(w, t):
            norm = np.linalg.norm(delta)
            total = total + delta * min(1, C / norm)
            within = within + (0.5 if norm <= C else -0.5)  # half is taken off, of all m
        w = w + total / m
        C = np.clip(C * np.exp(-rate * (0.5 + within / m - quantile)), least, most)
        iterates.append(w)
    return iterates
