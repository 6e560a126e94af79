"""AdaDPS and its baselines (Li, Zaheer, Reddi and Smith, ICML 2022) in plain NumPy.

A model is one flat vector w, and `grad(w, examples)` the mean gradient of some examples. What is
drawn is an argument: batches, cohorts, public batches, and the noise z on each round's sum. A batch
is a list of groups, each bounded as one vector: single examples, or micro-batches (Appendix B).
"""

import numpy as np


def clip(v, C):
    """Return v · min(1, C / ‖v‖)."""
    norm = np.linalg.norm(v)
    return v if norm <= C else v * (C / norm)


def privatised(w, grad, groups, z, C, b, psi=lambda g: g):
    """Return g̃ = (Σ clip(ψ(g_i)) + z) / b, of Algorithm 1."""
    total = z
    for group in groups:
        total = total + clip(psi(grad(w, group)), C)
    return total / b


def dp_sgd(w, grad, batches, noise, *, C, alpha, b, A=1.0):
    """DP-SGD; with A fixed beforehand Algorithm 1, option 2; without noise and bound SGD, AdaS."""
    iterates = []
    for groups, z in zip(batches, noise, strict=True):
        w = w - alpha * privatised(w, grad, groups, z, C, b, lambda g: g / A)
        iterates.append(w)
    return iterates


def adadps(w, grad, public_grad, batches, looks, noise, *, rule, C, alpha, b, eps, beta=0.9):
    """Algorithm 1, option 1: A and m of public gradients, taken at the same w.

    Of clean private gradients in their place it is the "ideal", which no ε covers.

    Args:
        looks: Of each step the public batches that are looked at; none keeps A and m as they are.
            Of several, as the authors' code takes them once an epoch, v is their mean square.
        rule: "rmsprop", "adam" or "adagrad": φ, μ and ψ.
    """
    v, m, iterates = np.zeros_like(w), np.zeros_like(w), []
    for groups, public, z in zip(batches, looks, noise, strict=True):
        seen = [public_grad(w, index) for index in public]
        if seen and rule == "adagrad":
            v = v + sum(g**2 for g in seen)
        elif len(seen) == 1:
            v = beta * v + (1 - beta) * seen[0] ** 2
        elif seen:
            v = np.mean([g**2 for g in seen], axis=0)
        if seen:
            m = beta * m + (1 - beta) * np.mean(seen, axis=0)
        A = np.sqrt(v) + eps
        own = beta if rule == "adam" else 1.0
        g = privatised(w, grad, groups, z, C, b, lambda g: (own * g + (1 - own) * m) / A)  # noqa: B023
        w = w - alpha * g
        iterates.append(w)
    return iterates


def dp_adaptive(w, grad, batches, noise, *, rule, C, alpha, b, eps, betas=(0.9, 0.999)):
    """DP-Adam (Algorithm 2), DP-RMSProp, DP-AdaGrad: moments of the noisy gradient."""
    m, v, iterates = np.zeros_like(w), np.zeros_like(w), []
    for t, (groups, z) in enumerate(zip(batches, noise, strict=True), 1):
        g = privatised(w, grad, groups, z, C, b)
        if rule == "adam":
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g**2
            step = m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        else:
            v = v + g**2 if rule == "adagrad" else 0.9 * v + 0.1 * g**2
            step = g / (np.sqrt(v) + eps)
        w = w - alpha * step
        iterates.append(w)
    return iterates


def dp_public(w, grad, public_grad, batches, looks, noise, *, C, alpha, b, eps, momentum=0.0):
    """DP-R-Pub; with momentum 0.9 DP-Adam-Pub: the noisy step is divided by a public A."""
    v, m, iterates = np.zeros_like(w), np.zeros_like(w), []
    for groups, (index,), z in zip(batches, looks, noise, strict=True):
        v = 0.9 * v + 0.1 * public_grad(w, index) ** 2
        m = momentum * m + (1 - momentum) * privatised(w, grad, groups, z, C, b)
        w = w - alpha * m / (np.sqrt(v) + eps)
        iterates.append(w)
    return iterates


def pda_dpmd(w, grad, public_grad, batches, looks, noise, *, C, alpha, b):
    """PDA-DPMD (Amid et al. 2022), first-order: a_t g̃ + (1 - a_t) ĝ with a_t = cos(π t / 2T)."""
    iterates, T = [], len(noise)
    for t, (groups, (index,), z) in enumerate(zip(batches, looks, noise, strict=True)):
        share = np.cos(np.pi * t / (2 * T))
        g = privatised(w, grad, groups, z, C, b)
        w = w - alpha * (share * g + (1 - share) * public_grad(w, index))
        iterates.append(w)
    return iterates


def warm_start(w, public_grad, public, *, alpha):
    """SGD on public batches, before private training."""
    for batch in public:
        w = w - alpha * public_grad(w, batch)
    return w


def federated(w, grad, cohorts, noise, *, A, where, C, eta, m, server, normalise=None):
    """Algorithm 3 (`where` "local"), and with the whole update divided (6.2: "update", "both").

    "scale-then-privatise" multiplies the released mean by A again (not of the paper). With A = 1
    DP-FedAvg; DP-FedAdam and momentum by the server's rule; DP-NormFedAvg with `normalise` r. A
    cohort is a list of users, a user the list of its local batches, all epochs.
    """
    local = A if where in ("local", "both") else 1.0
    back = A if where == "scale-then-privatise" else 1.0
    whole = A if where in ("update", "both") else back
    iterates, memory = [], None
    for users, z in zip(cohorts, noise, strict=True):
        total = z
        for batches in users:
            w_k = w
            for batch in batches:
                w_k = w_k - eta * grad(w_k, batch) / local
            delta = (w_k - w) / whole
            if normalise is None:
                total = total + clip(delta, C)
            else:
                total = total + C * delta / (normalise + np.linalg.norm(delta))
        step, memory = server(back * total / m, memory)
        w = w + step
        iterates.append(w)
    return iterates


def ema_momentum(mean, u, beta=0.9):
    """Server momentum, u ← β u + (1 - β) mean; β = 0 adds the mean."""
    u = (1 - beta) * mean if u is None else beta * u + (1 - beta) * mean
    return u, u


def server_adam(mean, memory, *, alpha, betas=(0.9, 0.999), eps=1e-8):
    """Adam on the noisy mean (DP-FedAdam), with bias correction."""
    t, m, v = (0, 0.0, 0.0) if memory is None else memory
    t, m = t + 1, betas[0] * m + (1 - betas[0]) * mean
    v = betas[1] * v + (1 - betas[1]) * mean**2
    step = alpha * m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return step, (t, m, v)


def toy(uniform, errors):
    """Return x, y and A of Section 4.1: frequent features hardly matter, rare ones do.

    One feature in ten is there nine times in ten and weighs 0.01, the others once in a hundred
    and 1. The numbers are of the authors' code: the text at hand has lost them.

    Args:
        uniform: (examples, features), of [0, 1).
        errors: Of the labels, one an example.
    """
    frequent = np.arange(uniform.shape[1]) < uniform.shape[1] // 10
    x = (uniform >= 1 - np.where(frequent, 0.9, 0.01)).astype(float)
    return x, x @ np.where(frequent, 0.01, 1.0) + errors, np.where(frequent, 1.0, 0.01)


def scale_then_privatise(w, updates_of, noise, *, C, m, server, beta=0.9, eps=1e-3):
    """A of past releases, of mean square 1, taken back after the noise (Ganesh et al. 2025).

    `updates_of(w, t)` are the raw updates of round t's cohort at w.
    """
    v, memory, iterates = np.zeros_like(w), None, []
    for t, z in enumerate(noise):
        A = np.sqrt(v) + eps
        A = A / np.sqrt(np.mean(A**2))
        total = z
        for delta in updates_of(w, t):
            total = total + clip(delta / A, C)
        mean = A * total / m
        v = beta * v + (1 - beta) * mean**2
        step, memory = server(mean, memory)
        w = w + step
        iterates.append(w)
    return iterates


def dp2(w, updates_of, noise, *, C, m, plain, preconditioned, beta=0.9, eps=1e-3,
        clip_ratio=1.0, rate_ratio=1.0):  # fmt: skip
    """DP² (Li et al. 2023), Algorithm 1: `plain` rounds gather the mean that then preconditions.

    Args:
        clip_ratio, rate_ratio: C and the rate of preconditioned rounds over those of plain ones.
        noise: On each sum of updates bounded to C; one bounded to a C' has C'/C times as much.
    """
    v, gathered, iterates = np.zeros_like(w), np.zeros_like(w), []
    for t, z in enumerate(noise):
        place = t % (plain + preconditioned)
        if place == 0:
            gathered = np.zeros_like(w)
        if place == plain:
            v = beta * v + (1 - beta) * (gathered / plain) ** 2
        A, wider, rate = 1.0, 1.0, 1.0
        if place >= plain:
            A, wider, rate = np.sqrt(v) + eps, clip_ratio, rate_ratio
        total = wider * z
        for delta in updates_of(w, t):
            total = total + clip(delta / A, wider * C)
        mean = rate * total / m
        if place < plain:
            gathered = gathered + mean
        w = w + mean
        iterates.append(w)
    return iterates


# -- side information (Section 4) -------------------------------------------------------------


def frequency(counts, documents, *, cap, power=1.0):
    """Return 1/A, A proportional to a power of the token's frequency, at most `cap`."""
    f = (counts + 0.1) / documents + 1e-10
    return np.minimum(cap, (f.max() / f) ** power)


def tf_idf(counts, containing, documents, *, gain, floor=1e-3):
    """Return 1/A proportional to total TF-IDF: A inversely proportional to it (Section 6.1.2)."""
    idf = np.log10(documents / np.maximum(containing, 0.1))
    weight = counts * np.maximum(idf, 0.0)
    return gain * np.maximum(weight / weight.max(), floor)


def magnitude(features, *, cap):
    """Return 1/A, A proportional to mean |x|: of TF-IDF features as Section 4 has it.

    Args:
        features: x, (examples, features).
    """
    mean = np.mean(np.abs(features), axis=0)
    return np.minimum(cap, mean.max() / np.maximum(mean, 1e-300))


def tf_idf_mass(counts, containing, documents):
    """Return 1/A = 10 Σ TF-IDF, A inversely proportional to it, as the authors' code has it.

    There the first three tokens are no words and have 0.01, which is left out.
    """
    return 10 * (counts * np.log10(documents / np.maximum(containing, 0.1)) + 1e-10)


def rank(words, *, top, gain):
    """Return 1/A: 1 for the commonest words, `gain` for the others (of the authors' code)."""
    return np.where(np.arange(words) < top, 1.0, gain)
