"""DP-NSGD and DP-NAdam (Yang, Zhang, Chen and Liu 2022) in plain NumPy.

A model is one flat vector w, and `grad(w, example)` the gradient of one example. Batches and the
noise z on each sum of gradients are arguments.
"""

import numpy as np


def normalise(g, r):
    """Return g / (r + ‖g‖), shorter than 1."""
    return g / (r + np.linalg.norm(g))


def clip(g, c):
    """Return g · min(1, c / ‖g‖): equation 2."""
    norm = np.linalg.norm(g)
    return g if norm <= c else g * (c / norm)


def schedule(name, steps):
    """Return what each step's rate is multiplied by."""
    t = np.arange(1, steps + 1)
    if name == "step":  # a tenth from half, a hundredth from three quarters
        return 0.1 ** ((t > 0.5 * steps).astype(int) + (t > 0.75 * steps))
    if name == "cyclic":  # one triangle, from a twentieth and back
        return 0.05 + 0.95 * (1 - abs(2 * (t - 1) / (steps - 1) - 1))
    return np.ones(steps)


def train(w, grad, batches, noise, *, bound, eta, B, factors, adam=None):
    """DP-SGD or DP-NSGD by `bound`; with adam = (β₁, β₂, ε) DP-NAdam."""
    m, v, iterates = np.zeros_like(w), np.zeros_like(w), []
    for t, (batch, z, factor) in enumerate(zip(batches, noise, factors, strict=True), 1):
        step = (sum((bound(grad(w, i)) for i in batch), np.zeros_like(w)) + z) / B
        if adam is not None:
            b1, b2, eps = adam
            m, v = b1 * m + (1 - b1) * step, b2 * v + (1 - b2) * step**2
            step = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        w = w - eta * factor * step
        iterates.append(w)
    return iterates


def sensitivity(bound, relation):
    """Return how far one example moves the sum: replaced (Definition 2.1), twice its bound."""
    return 2 * bound if relation == "replace-one" else bound


def norm_fedavg(w, full_gradient, cohorts, noise, *, eta, E, C, r, m):
    """DP-NormFedAvg, as the paper's footnote has it: E steps of full gradient descent a client."""
    iterates = []
    for users, z in zip(cohorts, noise, strict=True):
        total = z
        for user in users:
            w_k = w
            for _ in range(E):
                w_k = w_k - eta * full_gradient(w_k, user)
            total = total + C * normalise(w_k - w, r)
        w = w + total / m
        iterates.append(w)
    return iterates


# -- the toy of A.1: gradients of two values --------------------------------------------------


def expected(bound, values, shares):
    """Return the mean of bounded gradients of a random one-dimensional gradient."""
    bounded = [bound(np.array([value]))[0] for value in values]
    return float(np.dot(bounded, shares))
