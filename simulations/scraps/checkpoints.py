"""One run's checkpoints, and aggregates at inference that are made of them as they come."""

from __future__ import annotations

import argparse
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from fedpriv.checkpoints.aggregates import ema, uniform
from fedpriv.experiments.components import Components
from fedpriv.experiments.experiment import Experiment
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
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


def named(which: Aggregates) -> list[str]:
    """Return what `Averages.models` calls its models, in its order."""
    emas = (f"EMA {decay:g}" for decay in which.decays)
    return [LAST, *emas, *(f"UPA {k}" for k in which.ks)]


class Averages:
    """Aggregates of params that come one after the other: O(k) models, however long the run is.

    Args:
        first: The params before the first step, from which moving averages begin.
        which: Aggregates.
    """

    def __init__(self, first: Params, which: Aggregates) -> None:
        self._which = which
        self._emas = {decay: ema(decay) for decay in which.decays}
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


def states(experiment: Experiment, made: Components, seed: int) -> Iterator[Any]:
    """Yield the states of a run: before the first round, and after every one."""
    root = Key.simulation(seed)
    state: Any = first_state(made, root)
    yield state
    played = rounds(made, serial(experiment, made), root, state=state, eval_every=10**9)
    for _, state in played:
        yield state


def checkpoints(experiment: Experiment, made: Components, seed: int) -> Iterator[Params]:
    """Yield the params of a run: before the first round, and after every one."""
    for state in states(experiment, made, seed):
        yield state.params


def t_half(values: Sequence[float] | np.ndarray) -> float:
    """Return half of the 95 % t-interval of a mean; infinite of a single value."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return math.inf
    quantile = float(student.ppf(0.975, len(array) - 1))
    return quantile * float(array.std(ddof=1)) / math.sqrt(len(array))


def asked(target: float) -> str:
    """Return an ε that was asked for, which no run exceeds."""
    return f"{target:g}"


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


def save(figure: Any, path: Path) -> None:
    """Write a figure as its name's ending says; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130 if path.suffix == ".png" else "figure")


def add_output(parser: argparse.ArgumentParser, *, seeds: str) -> None:
    """Add --seeds, --out and --plot.

    Args:
        parser: Of a command.
        seeds: What is said of the default of --seeds.
    """
    parser.add_argument("--seeds", type=int, default=None, help=f"of each run; by default {seeds}")
    parser.add_argument("--out", type=Path, default=None, help="write the page here, too")
    parser.add_argument("--plot", type=Path, default=None, help="draw into this PNG or SVG")


def check_output(given: argparse.Namespace) -> None:
    """Refuse what `add_output` cannot rule out.

    Raises:
        ValueError: If seeds are below 1, or a plot is no PNG and no SVG.
    """
    if given.seeds is not None and given.seeds < 1:
        raise ValueError(f"--seeds {given.seeds} must be at least 1")
    if given.plot is not None and given.plot.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--plot {given.plot} must end in .png or .svg")


def publish(text: str, out: Path | None) -> None:
    """Print a page, and write it where that is asked for."""
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, "utf-8")
