"""Theorem 3.2 as far as it can be measured: the last iterate against averages of the past.

The paper's theorem says that noisy SGD's last iterate has an excess empirical risk log(n) times
that of a weighted average of the past k checkpoints. A theorem about bounds is not one about every
problem, so both are measured: a hard function on which the last iterate of subgradient descent is
known to be log T worse (Harvey, Liaw, Plan and Randhawa, 2019, its construction remembered), and
noisy descent on an ordinary problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from simulations.scraps.problems import Averages, Slope, made, noisy_descent

STEPS = tuple(2**power for power in range(6, 13))


def hard_ratio(steps: int) -> float:
    """Return the last iterate's excess over that of the mean of the last half, on a hard function.

    f(x) = max_i <h_i, x> in `steps` dimensions, h_ij = a_j for j < i, -b_j for j = i, 0 beyond,
    a_j = 1/(8 (T - j + 1)), b_j = √j / (2 √T); its least value is 0. Steps 1/√t along the first
    row that attains the maximum, from 0, which row t does in step t.
    """
    place = np.arange(1, steps + 1, dtype=np.float64)
    a, b = 1 / (8 * (steps - place + 1)), np.sqrt(place) / (2 * math.sqrt(steps))

    def value(x: np.ndarray) -> float:
        before = np.concatenate([[0.0], np.cumsum(a * x)])  # Σ_{j<i} a_j x_j, of i = 1, ..., T+1
        return float(max((before[:-1] - b * x).max(), before[-1]))

    x, half = np.zeros(steps), np.zeros(steps)
    for step in range(1, steps + 1):
        rate = 1 / math.sqrt(step)
        x[: step - 1] -= rate * a[: step - 1]
        x[step - 1] += rate * b[step - 1]
        norm = float(np.linalg.norm(x))
        if norm > 1:
            x /= norm
        if step > steps // 2:
            half += x / (steps - steps // 2)
    return value(x) / value(half)


def ordinary_ratios(
    steps: int, *, runs: int = 50, stddev: float = 1.0, seed: int = 1
) -> Mapping[str, list[float]]:
    """Return excess risks on a synthetic absolute-error regression, by aggregate, run by run.

    Steps R/(G √t), within a ball of radius R = 6, G² = 1 + d stddev²; the least risk is found by
    long descent without noise.
    """
    width, radius = 10, 6.0
    data = made("absolute", num=500, width=width, seed=seed)

    def slope(theta: np.ndarray) -> np.ndarray:
        return data.x.T @ np.sign(data.x @ theta - data.y[:, None]) / len(data.y)

    def risk(theta: np.ndarray) -> np.ndarray:
        return np.abs(data.x @ theta - data.y[:, None]).mean(axis=0)

    scale = radius / math.sqrt(1 + width * stddev**2)
    seen = Averages((10, max(1, steps // 10), max(1, steps // 2)), (0.9,))
    descent = noisy_descent(
        slope,
        width=width,
        runs=runs,
        steps=steps,
        rate=lambda step: scale / math.sqrt(step),
        stddev=stddev,
        rng=np.random.default_rng([seed, steps]),
        radius=radius,
    )
    for theta in descent:
        seen.see(theta)
    least = _least(slope, risk, width)
    names = ("last", "upa 10", "upa T/10", "upa T/2", "ema 0.9")
    return {
        name: list(risk(theta) - least)
        for name, theta in zip(names, seen.found().values(), strict=False)
    }


_KNOWN: dict[int, float] = {}


def _least(slope: Slope, risk: Slope, width: int) -> float:
    """Return the least risk, by descent whose steps shrink, from zero, and its running average."""
    if width not in _KNOWN:
        best = math.inf
        for scale in (3.0, 0.3, 0.03):
            theta = np.zeros((width, 1))
            for step in range(1, 6001):
                theta = theta - scale / math.sqrt(step) * slope(theta)
                best = min(best, float(risk(theta)[0]))
        _KNOWN[width] = best
    return _KNOWN[width]
