"""One run's checkpoints, and aggregates at inference that are made of them as they come."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fedpriv.checkpoints.aggregates import Average, uniform
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.rng import Key
from fedpriv.runs.backends import serial, serial_on
from fedpriv.runs.loop import first_state, rounds
from fedpriv.tree import Params

LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregates:
    """Which aggregates are made of one run's checkpoints.

    Attributes:
        decays: Of moving averages.
        ks: Of uniform ones, means of outputs and votes.
    """

    decays: Sequence[float] = (0.8, 0.9, 0.95)
    ks: Sequence[int] = (3, 5, 10, 20)


class Averages:
    """Aggregates of params that come one after the other: O(k) models, however long the run is.

    Args:
        first: The params before the first step, from which moving averages begin.
        which: Aggregates.
    """

    def __init__(self, first: Params, which: Aggregates) -> None:
        self._which = which
        self._emas = {decay: Average(ema_decay=decay) for decay in which.decays}
        self._states = {decay: own.init(first) for decay, own in self._emas.items()}
        self.recent: deque[Params] = deque([first], maxlen=max(which.ks, default=1))

    def add(self, params: Params) -> None:
        """Take the next checkpoint."""
        self.recent.append(params)
        for decay, own in self._emas.items():
            _, self._states[decay] = own.next(dict(params), self._states[decay])

    def models(self) -> dict[str, Params]:
        """Return the last checkpoint, and one model for each aggregate of params, by name."""
        past = list(self.recent)
        found: dict[str, Params] = {LAST: past[-1]}
        for decay, state in self._states.items():
            found[f"EMA {decay:g}"] = state["average"]
        for k in self._which.ks:
            found[f"UPA {k}"] = uniform(past[-k:])
        return found


def averages(past: Iterable[Params], which: Aggregates) -> Averages:
    """Return the aggregates of checkpoints, the params before the first round in front."""
    checkpoints = iter(past)
    found = Averages(next(checkpoints), which)
    for params in checkpoints:
        found.add(params)
    return found


def states(
    experiment: Experiment, made: Components, seed: int, device: str | None = None
) -> Iterator[Any]:
    """Yield the states of a run: before the first round, and after every one.

    Args:
        experiment: What is trained.
        made: Of it.
        seed: Of the run.
        device: Where, as `fedpriv run --device`.
    """
    root = Key.simulation(seed)
    state: Any = first_state(made, root)
    yield state
    backend = (serial if device is None else serial_on(device))(experiment, made)
    played = rounds(made, backend, root, state=state, eval_every=10**9)
    for _, state in played:
        yield state


def checkpoints(
    experiment: Experiment, made: Components, seed: int, device: str | None = None
) -> Iterator[Params]:
    """Yield the params of a run: before the first round, and after every one; see `states`."""
    for state in states(experiment, made, seed, device):
        yield state.params


def decorrelated(scores: np.ndarray, longest: int) -> tuple[int, float]:
    """Return the shortest lag at which scores correlate by at most .05, or the longest tried.

    Args:
        scores: float64 (times, runs, examples).
        longest: Lag that is tried.

    Returns:
        The lag, and the correlation there.
    """
    away = scores - scores.mean(axis=(0, 1), keepdims=True)
    total, lag, found = float(np.square(away).mean()), 1, 1.0
    for lag in range(1, longest + 1):
        found = float((away[lag:] * away[:-lag]).mean()) / total
        if found <= 0.05:
            break
    return lag, found


def within_two(ratio: np.ndarray) -> float:
    """Return the share of ratios between 1/2 and 2."""
    return float(((ratio >= 0.5) & (ratio <= 2)).mean())


def chance_within_two(k: int, runs: int) -> float:
    """Return the same of t-intervals by two samples of one normal law."""
    rng = np.random.default_rng(3)
    widths = [
        rng.normal(size=(n, 100_000)).std(axis=0, ddof=1) * float(stdtrit(n - 1, 0.975))
        for n in (k, runs)
    ]
    return within_two(widths[0] / widths[1])


def kind_of(target: float | None) -> str:
    """Return what a column of a target ε is called; None is without noise."""
    return "no noise" if target is None else f"ε = {target:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """One case.

    Attributes:
        label: In the legend.
        gains: By method, the mean and half of its interval; a method that is missing has no mark.
        color: Of matplotlib.
        filled: Or the marks' outlines alone.
    """

    label: str
    gains: Mapping[str, tuple[float, float]]
    color: str
    filled: bool = True


def draw_gains(axis: Any, names: Sequence[str], cases: Sequence[Marks]) -> None:
    """Draw cases side by side in each method's row; an infinite interval has no bar.

    Args:
        axis: Of matplotlib.
        names: Methods, from the top.
        cases: In the legend's order.
    """
    for place, case in enumerate(cases):
        rows = [row for row, name in enumerate(names) if name in case.gains]
        aside = 0.7 * (place - (len(cases) - 1) / 2) / max(len(cases), 5)
        values = [case.gains[names[row]] for row in rows]
        axis.errorbar(
            [mean for mean, _ in values], [row + aside for row in rows],
            xerr=[half if math.isfinite(half) else 0 for _, half in values],
            fmt="osDv^P"[place % 6], color=case.color, markersize=4, capsize=2, label=case.label,
            markerfacecolor=None if case.filled else "white",
        )  # fmt: skip
    axis.axvline(0, color="#666666", linewidth=0.8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
