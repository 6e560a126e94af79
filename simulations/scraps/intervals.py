"""Intervals from checkpoints: their coverage, and their widths against independent runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.checkpoints.uncertainty import contraction, uncertainty, waiting
from simulations.scraps.control import (
    BATCH,
    NUM,
    REGULARISER,
    WIDTH,
    mean_gradients,
    noise_multiplier,
    problem,
)
from simulations.scraps.problems import made, noisy_descent

KS = (3, 5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often intervals for a parameter of linear regression held its least-squares value.

    Attributes:
        k: Checkpoints.
        spacing: Rounds between them.
        plain: Share of t-intervals.
        corrected: The same with the lag-1 correction.
        error: Standard error of either, runs and parameters taken as independent.
    """

    k: int
    spacing: int
    plain: float
    corrected: float
    error: float


def coverage(
    shares: Sequence[float] = (0.02, 0.1, 0.3, 1.0), *, runs: int = 400, ks: Sequence[int] = KS
) -> list[Coverage]:
    """Return the coverage of 95 % intervals from noisy gradient descent on least squares.

    All rows in every step, so that noise is the only thing that varies, and the stationary mean is
    the least-squares solution of *these* rows: that is what is covered, and not the parameters
    that the rows were made by, whose sampling error no checkpoint knows.

    Args:
        shares: Spacings, as shares of the one that `waiting` gives for each k.
        runs: Independent ones, of five parameters each.
        ks: Numbers of checkpoints.
    """
    width, stddev = 5, 0.2
    data = made("squares", num=400, width=width, seed=7)
    second = data.x.T @ data.x / len(data.y)
    values = np.linalg.eigvalsh(second)
    rate = 0.05 / float(values[-1])
    rho = contraction(rate, float(values[0]), float(values[-1]))
    best = np.linalg.solve(second, data.x.T @ data.y / len(data.y))[:, None]
    found = []
    for k in ks:
        wait = waiting(rho, k)
        for share in shares:
            spacing = max(1, round(share * wait.spacing))
            descent = noisy_descent(
                lambda theta: second @ (theta - best),
                width=width,
                runs=runs,
                steps=wait.burn_in + k * spacing,
                rate=lambda step: rate,
                stddev=stddev,
                rng=np.random.default_rng([k, spacing]),
            )
            kept = [
                theta
                for step, theta in enumerate(descent, 1)
                if step > wait.burn_in and (step - wait.burn_in) % spacing == 0
            ]
            found.append(_covered(np.array(kept), best, k, spacing))
    return found


def _covered(kept: np.ndarray, best: np.ndarray, k: int, spacing: int) -> Coverage:
    plain, corrected = [], []
    for run in range(kept.shape[2]):
        one = uncertainty(kept[:, :, run])
        off = np.abs(one.mean - best[:, 0])
        plain.append(off <= one.half_width)
        corrected.append(off <= one.corrected_half_width)
    share = float(np.mean(plain))
    return Coverage(
        k=k,
        spacing=spacing,
        plain=share,
        corrected=float(np.mean(corrected)),
        error=math.sqrt(max(share * (1 - share), 1e-9) / np.size(plain)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Standard deviations of test examples' scores, by checkpoints and by independent runs.

    Attributes:
        epsilon: Of each single run, at δ = 1e-5.
        k: Checkpoints, and runs.
        burn_in: t_1.
        spacing: t_2, measured: where the scores' correlation has fallen to .05.
        steps: T = t_1 + k t_2, of every run of either arm.
        sigma: The noise multiplier of either arm.
        within_two: Share of examples and repeats where the two are within a factor 2.
        below: Share where checkpoints have the smaller one.
        ratio: Median of checkpoints' over runs'.
        chance: `within_two` of two samples of k independent normal draws of one law.
        medians: Median over examples and repeats of the whole 95 % width of one draw, of both.
    """

    epsilon: float
    k: int
    burn_in: int
    spacing: int
    steps: int
    sigma: float
    within_two: float
    below: float
    ratio: float
    chance: float
    medians: Mapping[str, float]


def widths(epsilon: float, *, k: int = 10, repeats: int = 20, burn_in: int = 200) -> Widths:
    """Return how wide scores' intervals are by k checkpoints of one run, and by k runs.

    Both arms have the same σ, calibrated to T steps, and the same number of steps: an independent
    run costs ε each, and checkpoints cost nothing. Scores are of the predicted class of test
    examples, for DP-SGD on the synthetic classes of the control.

    Args:
        epsilon: At δ = 1e-5.
        k: Checkpoints, and runs.
        repeats: Of the comparison, each with k runs of its own.
        burn_in: t_1.
    """
    spacing = _spacing(noise_multiplier(epsilon, burn_in + 20 * k), burn_in)
    steps = burn_in + k * spacing
    sigma = noise_multiplier(epsilon, steps)
    chain = _scores(sigma, steps, k * repeats, [*range(burn_in + spacing, steps + 1, spacing)], 21)
    found: dict[str, list[np.ndarray]] = {"checkpoints": [], "runs": []}
    for repeat in range(repeats):
        one = uncertainty(chain[:, :, repeat * k])
        many = uncertainty(chain[-1, :, repeat * k : (repeat + 1) * k].T)
        found["checkpoints"].append(one.draw_half_width)
        found["runs"].append(many.draw_half_width)
    by, of = (np.concatenate(found[name]) for name in ("checkpoints", "runs"))
    ratio = by / of
    rng = np.random.default_rng(3)
    drawn = [rng.normal(size=(k, 100_000)).std(axis=0, ddof=1) for _ in range(2)]
    chance = drawn[0] / drawn[1]
    return Widths(
        epsilon=epsilon,
        k=k,
        burn_in=burn_in,
        spacing=spacing,
        steps=steps,
        sigma=sigma,
        within_two=float(((ratio > 0.5) & (ratio < 2)).mean()),
        below=float((ratio < 1).mean()),
        ratio=float(np.median(ratio)),
        chance=float(((chance > 0.5) & (chance < 2)).mean()),
        medians={"checkpoints": float(np.median(2 * by)), "runs": float(np.median(2 * of))},
    )


def _spacing(sigma: float, burn_in: int, runs: int = 40, longest: int = 200) -> int:
    """Return the shortest lag at which the scores of test examples correlate by at most .05."""
    steps = burn_in + 2 * longest
    seen = _scores(sigma, steps, runs, [*range(burn_in + 1, steps + 1)], 22)
    away = seen - seen.mean(axis=(0, 2), keepdims=True)
    total = float(np.square(away).mean())
    for lag in range(1, longest):
        if float((away[lag:] * away[:-lag]).mean()) <= 0.05 * total:
            return lag
    return longest


_SCORED, _RATE = 200, 5.0


def _scores(sigma: float, steps: int, runs: int, at: Sequence[int], seed: int) -> np.ndarray:
    """Return probabilities of class 1 of test examples, `(len(at), examples, runs)`."""
    data, wanted = problem(), set(at)
    batches = np.random.default_rng([seed, 1])

    def slope(theta: np.ndarray) -> np.ndarray:
        drawn = batches.random((NUM, runs)) < BATCH / NUM
        return mean_gradients(data, theta, drawn) + REGULARISER * theta

    descent = noisy_descent(
        slope,
        width=WIDTH,
        runs=runs,
        steps=steps,
        rate=lambda step: _RATE,
        stddev=sigma / BATCH,
        rng=np.random.default_rng([seed, 2]),
    )
    rows = data.x_test[:_SCORED]
    seen = [1 / (1 + np.exp(-(rows @ w))) for step, w in enumerate(descent, 1) if step in wanted]
    return np.array(seen)
