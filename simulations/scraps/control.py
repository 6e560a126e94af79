"""What aggregates bring to DP-SGD on a convex problem, and the same without noise.

Central DP-SGD on synthetic logistic regression, by the frame's own algorithm: all seeds are columns
of one array, since every transform is element by element. With and without noise, and whatever is
aggregated, a seed draws the same batches and the same noise, so that differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import minimize

import fedpriv as fp
from fedpriv.checkpoints.aggregates import answers, ema, keeping, last_checkpoints, upa
from fedpriv.mechanisms.gaussian import NoisedMean
from fedpriv.optimizers import sgd
from fedpriv.training.federated_averaging import (
    AtAggregates,
    FederatedAveraging,
    Reading,
    ServerState,
)
from fedpriv.transform import Transform, identity
from simulations.scraps.problems import Linear, made

NUM, WIDTH, BATCH, STEPS, REGULARISER, DELTA = 1000, 20, 100, 400, 1e-3, 1e-5
RATES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)

AGGREGATES: Mapping[str, Transform] = {
    "EMA 0.9": ema(0.9),
    "EMA 0.97": ema(0.97),
    "UPA 10": upa(10),
    "UPA 50": upa(50),
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
    plan = fp.plan(
        users=NUM, cohort=BATCH, rounds=steps, l2_clip_norm=1.0, target_epsilon=epsilon, delta=DELTA
    )
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
    for name, aggregate in {"last": identity(), **AGGREGATES}.items():
        method = FederatedAveraging(optimizer=sgd(rate), aggregate=aggregate)
        found[name] = _figures(data, _trained(data, method, sigma, seeds, steps)[0])
    kept = FederatedAveraging(optimizer=sgd(rate), aggregate=keeping(10))
    _, state = _trained(data, kept, sigma, seeds, steps)
    models = last_checkpoints(state.aggregate)
    for rule in ("opa", "omv"):
        found[f"{rule.upper()} 10"] = Figures(accuracy=_outputs(data, rule, models), excess=())
    readings: tuple[Reading, ...] = ("replace", "gradient-only")
    for reading in readings:
        for name in ("EMA 0.9", "UPA 10"):
            at = AtAggregates(start=steps // 2, reading=reading)
            method = FederatedAveraging(
                optimizer=sgd(rate), aggregate=AGGREGATES[name], at_aggregates=at
            )
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
        method = FederatedAveraging(optimizer=sgd(rate), aggregate=identity())
        return float(loss(data, _trained(data, method, sigma, seeds, steps, first=31)[0]).mean())

    return min(RATES, key=reached)


@cache
def problem() -> Linear:
    """Return the synthetic classes that are learnt."""
    return made("logistic", num=NUM, width=WIDTH, seed=5)


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
) -> tuple[np.ndarray, ServerState]:
    batches, noise = np.random.default_rng(first), np.random.default_rng(first + 1)
    state = method.init({"w": np.zeros((WIDTH, seeds), np.float32)})
    for _ in range(steps):
        at = method.asked_at(state)["w"].astype(np.float64)
        drawn = batches.random((NUM, seeds)) < BATCH / NUM
        slope = mean_gradients(data, at, drawn) + REGULARISER * at
        slope += sigma / BATCH * noise.normal(size=slope.shape)
        answer = NoisedMean(update={"w": -slope.astype(np.float32)}, squared_norm=0.0)
        state = method.next(state, answer)
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
