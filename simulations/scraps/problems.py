"""Synthetic convex problems, and many noisy descents on one at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

#: From iterates `(d, runs)` to one subgradient or gradient each, `(d, runs)`.
Slope = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Rows of length at most 1 and what is said of each.

    Attributes:
        x: float64 `(n, d)`.
        y: Targets, float64 `(n,)`; of classes 0 and 1.
        x_test: Rows that are not trained on.
        y_test: Their targets.
    """

    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    x_test: np.ndarray = field(repr=False)
    y_test: np.ndarray = field(repr=False)


def made(kind: str, *, num: int, width: int, seed: int) -> Linear:
    """Return a synthetic problem.

    Args:
        kind: "logistic" (classes), "squares" or "absolute" (real targets, the latter with heavy
            tails).
        num: Training rows, and as many for testing.
        width: Columns.
        seed: Of everything.

    Raises:
        ValueError: If the kind is unknown.
    """
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(2 * num, width))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    true = rng.normal(size=width) * 4 / math.sqrt(width)
    score = rows @ true
    if kind == "logistic":
        targets = (rng.random(2 * num) < 1 / (1 + np.exp(-2 * score))).astype(np.float64)
    elif kind == "squares":
        targets = score + 0.5 * rng.normal(size=2 * num)
    elif kind == "absolute":
        targets = score + 0.5 * rng.standard_t(2, size=2 * num)
    else:
        raise ValueError(f"kind {kind!r} is not known; use logistic, squares or absolute")
    return Linear(x=rows[:num], y=targets[:num], x_test=rows[num:], y_test=targets[num:])


def noisy_descent(
    slope: Slope,
    *,
    width: int,
    runs: int,
    steps: int,
    rate: Callable[[int], float],
    stddev: float,
    rng: np.random.Generator,
    radius: float = math.inf,
    start: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
    """Yield the iterates of many runs, `(width, runs)`, step for step; the first is after step 1.

    θ <- Π(θ - rate(t) (slope(θ) + stddev · normal)), Π onto the ball of a radius.

    Args:
        slope: Of all runs at once.
        width: Of θ.
        runs: Independent ones: noise is all they differ in.
        steps: How many.
        rate: By the step, from 1.
        stddev: Of the noise on every coordinate of a gradient.
        rng: Draws it.
        radius: Of the ball; infinite for no projection.
        start: θ_0, `(width, 1)` or `(width, runs)`; None for zero.
    """
    theta = np.zeros((width, runs)) if start is None else start + np.zeros((width, runs))
    for step in range(1, steps + 1):
        noise = stddev * rng.normal(size=theta.shape) if stddev else 0.0
        theta = theta - rate(step) * (slope(theta) + noise)
        if math.isfinite(radius):
            theta = theta * np.minimum(1.0, radius / np.linalg.norm(theta, axis=0))
        yield theta


class Averages:
    """The last iterate, UPA of the past k for each of some k, and EMAs, of runs that go by."""

    def __init__(self, ks: tuple[int, ...], decays: tuple[float, ...]) -> None:
        """Start with nothing seen."""
        self._ks, self._decays = ks, decays
        self._past: list[np.ndarray] = []
        self._moving: dict[float, np.ndarray] = {}
        self._last = np.zeros(())

    def see(self, theta: np.ndarray) -> None:
        """Take one more iterate."""
        self._last = theta
        self._past.append(theta)
        del self._past[: -max(self._ks, default=1)]
        for decay in self._decays:
            old = self._moving.get(decay, theta)
            self._moving[decay] = decay * old + (1 - decay) * theta

    def found(self) -> dict[str, np.ndarray]:
        """Return each by its name, such as "upa 10"; of fewer iterates than k, all of them."""
        upa = {f"upa {k}": np.mean(self._past[-k:], axis=0) for k in self._ks}
        ema = {f"ema {decay:g}": self._moving[decay] for decay in self._decays}
        return {"last": self._last, **upa, **ema}
