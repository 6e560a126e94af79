"""Synthetic convex problems, and many noisy descents on one at once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import minimize

import fedpriv as fp
from fedpriv.checkpoints.aggregates import (
    Average,
    Last,
    MeanOutputs,
    ParamsAggregate,
    Uniform,
    answers,
    last_checkpoints,
)
from fedpriv.checkpoints.uncertainty import contraction, uncertainty, waiting
from fedpriv.optimizers import Sgd
from fedpriv.training.algorithm import ArrayState
from fedpriv.training.federated_averaging import FederatedAveraging
from simulations.checkpoint_recycling.checkpoints import (
    chance_within_two,
    decorrelated,
    within_two,
)

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


def synthetic(kind: str, *, num: int, width: int, seed: int) -> Linear:
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


NUM, WIDTH, BATCH, STEPS, REGULARISER, DELTA = 1000, 20, 100, 400, 1e-3, 1e-5
RATES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)

AGGREGATES: Mapping[str, ParamsAggregate] = {
    "EMA 0.9": Average(ema_decay=0.9),
    "EMA 0.97": Average(ema_decay=0.97),
    "UPA 10": Uniform(k=10),
    "UPA 50": Uniform(k=50),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one method, a value a seed.

    Attributes:
        accuracy: On test.
        excess: Regularised training loss above its least value; empty for aggregates of outputs.
    """

    accuracy: Sequence[float]
    excess: Sequence[float]


@cache
def noise_multiplier(epsilon: float | None, steps: int = STEPS) -> float:
    """Return σ of so many steps at an ε (add-remove, per example, PLD); 0 for no noise."""
    if epsilon is None:
        return 0.0
    asked = fp.Rounds(users=NUM, cohort=BATCH, rounds=steps, delta=DELTA)
    plan = asked.plan(l2_clip_norm=1.0, target_epsilon=epsilon)
    privatizer: Any = plan.live_mechanism.privatizer
    return float(privatizer.noise_multiplier)


def control(
    epsilon: float | None, *, faster: float = 1.0, seeds: int = 100, steps: int = STEPS
) -> dict[str, Figures]:
    """Return the figures of every method, by its name.

    Args:
        epsilon: At δ = 1e-5; None for the control, without noise.
        faster: What the last iterate's best rate is multiplied by.
        seeds: How many.
        steps: How many.
    """
    data, sigma = problem(), noise_multiplier(epsilon, steps)
    rate = faster * best_rate(epsilon, steps=steps)
    found: dict[str, Figures] = {}
    for name, aggregate in {"last": Last(), **AGGREGATES}.items():
        method = FederatedAveraging(optimizer=Sgd(learning_rate=rate), aggregate=aggregate)
        found[name] = _figures(data, _trained(data, method, sigma, seeds, steps)[0])
    kept = FederatedAveraging(optimizer=Sgd(learning_rate=rate), aggregate=MeanOutputs(k=10))
    _, state = _trained(data, kept, sigma, seeds, steps)
    models = last_checkpoints(state.memory["aggregate"])
    for rule in ("opa", "omv"):
        found[f"{rule.upper()} 10"] = Figures(accuracy=_outputs(data, rule, models), excess=())
    readings: tuple[str, ...] = ("replace", "gradient-only")
    for reading in readings:
        for name in ("EMA 0.9", "UPA 10"):
            over = replace(AGGREGATES[name], training=reading, start=steps // 2)
            method = FederatedAveraging(optimizer=Sgd(learning_rate=rate), aggregate=over)
            end = _trained(data, method, sigma, seeds, steps)[0]
            found[f"{name}, trained at, {reading}"] = _figures(data, end)
    return found


@cache
def best_rate(epsilon: float | None, *, steps: int = STEPS, seeds: int = 20) -> float:
    """Return the rate whose last iterate has the least mean training loss, over other seeds.

    It is the one that the last iterate would choose: aggregates are given no rate of their own.
    """
    data, sigma = problem(), noise_multiplier(epsilon, steps)

    def reached(rate: float) -> float:
        method = FederatedAveraging(optimizer=Sgd(learning_rate=rate), aggregate=Last())
        return float(loss(data, _trained(data, method, sigma, seeds, steps, first=31)[0]).mean())

    return min(RATES, key=reached)


@cache
def problem() -> Linear:
    """Return the synthetic classes that are learnt."""
    return synthetic("logistic", num=NUM, width=WIDTH, seed=5)


def mean_gradients(data: Linear, theta: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the sum of drawn rows' gradients over the expected batch, `(d, seeds)`.

    Rows have at most length 1, and so have gradients: clipping to 1 changes none.
    """
    shares = 1 / (1 + np.exp(-(data.x @ theta)))
    return data.x.T @ (drawn * (shares - data.y[:, None])) / BATCH


def _trained(
    data: Linear,
    method: FederatedAveraging,
    sigma: float,
    seeds: int,
    steps: int,
    first: int = 11,
) -> tuple[np.ndarray, ArrayState]:
    batches, noise = np.random.default_rng(first), np.random.default_rng(first + 1)
    state = method.init({"w": np.zeros((WIDTH, seeds), np.float32)})
    for _ in range(steps):
        at = method.asked_at(state)["w"].astype(np.float64)
        drawn = batches.random((NUM, seeds)) < BATCH / NUM
        slope = mean_gradients(data, at, drawn) + REGULARISER * at
        slope += sigma / BATCH * noise.normal(size=slope.shape)
        state = method.next(state, {"w": -slope.astype(np.float32)})
    return method.result(state)["w"].astype(np.float64), state


def _figures(data: Linear, theta: np.ndarray) -> Figures:
    right = ((data.x_test @ theta > 0) == (data.y_test[:, None] == 1)).mean(axis=0)
    return Figures(accuracy=list(right), excess=list(loss(data, theta) - _least()))


def loss(data: Linear, theta: np.ndarray) -> np.ndarray:
    """Return the regularised mean loss of each column."""
    logits, truth = data.x @ theta, data.y[:, None]
    cross = np.logaddexp(0, logits) - truth * logits
    return cross.mean(axis=0) + 0.5 * REGULARISER * np.square(theta).sum(axis=0)


@cache
def _least() -> float:
    data = problem()
    found = minimize(lambda w: float(loss(data, w[:, None])[0]), np.zeros(WIDTH), method="L-BFGS-B",
                     options={"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-9})  # fmt: skip
    return float(found.fun)


def _outputs(data: Linear, rule: str, models: Sequence[Mapping[str, np.ndarray]]) -> list[float]:
    shares = [1 / (1 + np.exp(-(data.x_test @ m["w"].astype(np.float64)))) for m in models]
    right = []
    for seed in range(shares[0].shape[1]):
        one = [np.stack([1 - s[:, seed], s[:, seed]], axis=1) for s in shares]
        answer = answers("opa" if rule == "opa" else "omv", one)
        right.append(float((answer == data.y_test).mean()))
    return right


KS = (3, 5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of intervals for a parameter of linear regression: share that hold its value.

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
    data = synthetic("squares", num=400, width=width, seed=7)
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
    return Widths(
        epsilon=epsilon,
        k=k,
        burn_in=burn_in,
        spacing=spacing,
        steps=steps,
        sigma=sigma,
        within_two=within_two(ratio),
        below=float((ratio < 1).mean()),
        ratio=float(np.median(ratio)),
        chance=chance_within_two(k, k),
        medians={"checkpoints": float(np.median(2 * by)), "runs": float(np.median(2 * of))},
    )


def _spacing(sigma: float, burn_in: int, runs: int = 40, longest: int = 200) -> int:
    """Return the shortest lag at which the scores of test examples correlate by at most .05."""
    steps = burn_in + 2 * longest
    seen = _scores(sigma, steps, runs, [*range(burn_in + 1, steps + 1)], 22)
    return decorrelated(seen.swapaxes(1, 2), longest)[0]


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


LENGTHS = tuple(2**power for power in range(6, 13))


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
    data = synthetic("absolute", num=500, width=width, seed=seed)

    def slope(theta: np.ndarray) -> np.ndarray:
        return data.x.T @ np.sign(data.x @ theta - data.y[:, None]) / len(data.y)

    def risk(theta: np.ndarray) -> np.ndarray:
        return np.abs(data.x @ theta - data.y[:, None]).mean(axis=0)

    scale = radius / math.sqrt(1 + width * stddev**2)
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
    ks, decay = (10, max(1, steps // 10), max(1, steps // 2)), 0.9
    past: deque[np.ndarray] = deque(maxlen=max(ks))
    moving: np.ndarray | None = None
    for theta in descent:
        past.append(theta)
        moving = decay * (theta if moving is None else moving) + (1 - decay) * theta
    recent, least = list(past), _least_risk(slope, risk, width)
    assert moving is not None
    found = [recent[-1], *(np.mean(recent[-k:], axis=0) for k in ks), moving]
    names = ("last", "upa 10", "upa T/10", "upa T/2", "ema 0.9")
    return {name: list(risk(one) - least) for name, one in zip(names, found, strict=True)}


_KNOWN: dict[int, float] = {}


def _least_risk(slope: Slope, risk: Slope, width: int) -> float:
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
