"""Grids over learning rate and r of a normalised gradient, or c of a clipped one.

Settings are judged on a tenth of the training set, held out, and only the best is measured on test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from fedpriv.experiments.experiment import Experiment
from fedpriv.runs.progress import Pace
from simulations.reproduction.items import TUNING_SEED, Split
from simulations.reproduction.page import edges_of
from simulations.reproduction.runs import Run, complete

SEEDS = (0, 1, 2)

Done = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Settings of one method.

    Attributes:
        title: In tables.
        make: From (learning rate, r or c, split) to the experiment.
        rates: Learning rates.
        sizes: Values of r, or of c.
        letter: "r" or "c".
        rate: Letter of what `rates` are.
        reduced: Whether runs are of the reduced size.
    """

    title: str
    make: Callable[[float, float, Split], Experiment] = field(repr=False)
    rates: Sequence[float]
    sizes: Sequence[float]
    letter: str
    rate: str = "η"
    reduced: bool = False

    def run(self, rate: float, size: float, split: Split, seed: int) -> Run:
        """Return one run."""
        made = self.make(rate, size, split).with_options({"seed": seed})
        return Run(experiment=made, split=split, seed=seed, reduced=self.reduced)

    def tuning(self) -> Iterator[Run]:
        """Yield every square of the heat map; nothing where there is no choice."""
        if len(self.rates) * len(self.sizes) > 1:
            for rate, size in product(self.rates, self.sizes):
                yield self.run(rate, size, "validation", TUNING_SEED)

    def accuracies(self, done: Done) -> np.ndarray:
        """Return held-out accuracies `(rates, sizes)`; NaN where a run is missing."""
        found = [done.get(run.identity, {}).get("accuracy", np.nan) for run in self.tuning()]
        shape = (len(self.rates), len(self.sizes))
        return np.array(found or [np.nan], np.float64).reshape(shape)

    def best(self, done: Done) -> tuple[float, float]:
        """Return the learning rate and the size of the best square.

        Raises:
            ValueError: If the grid is not complete.
        """
        found = self.accuracies(done)
        if found.size > 1 and np.isnan(found).any():
            missing = int(np.isnan(found).sum())
            raise ValueError(f"{missing} runs of {self.title} are missing; run the grid first")
        i, j = np.unravel_index(int(found.argmax()), found.shape)
        return self.rates[int(i)], self.sizes[int(j)]

    def finals(self, done: Done) -> Iterator[Run]:
        """Yield the best square on test, several seeds."""
        rate, size = self.best(done)
        for seed in SEEDS:
            yield self.run(rate, size, "test", seed)

    def edges(self, done: Done) -> list[str]:
        """Return which of the best square's numbers are the least or the most of the grid."""
        rate, size = self.best(done)
        every = [{self.rate: r, self.letter: s} for r, s in product(self.rates, self.sizes)]
        return edges_of({self.rate: rate, self.letter: size}, every)

    def spread(self, done: Done) -> float:
        """Return how far held-out accuracy moves over r or c in the row of the best square."""
        found = self.accuracies(done)
        row = found[np.unravel_index(int(np.nanargmax(found)), found.shape)[0]]
        return float(np.nanmax(row) - np.nanmin(row))

    def cells(self, done: Done) -> list[str]:
        """Return a row of a table: the best square, what of it is an edge, held out, on test."""
        rate, size = self.best(done)
        held = self.accuracies(done)
        tested = [done[r.identity]["accuracy"] for r in self.finals(done) if r.identity in done]
        return [
            self.title,
            f"{rate:g}",
            f"{size:g}",
            ", ".join(self.edges(done)) or "nothing",
            "–" if np.isnan(held).all() else f"{held.max():.4f}",
            f"{np.mean(tested):.4f} ± {np.std(tested, ddof=1):.4f}" if len(tested) > 1 else "–",
        ]


#: Headings of `Grid.cells`.
HEAD = ("", "best rate", "best size", "on an edge of the grid", "held out", "test, mean of seeds")


def counted(pace: Pace) -> Callable[[int], None]:
    """Return what counts a run that has ended, and says how far they are."""

    def tell(number: int) -> None:
        pace.done += 1
        pace.say("trained")

    return tell


def trained(
    grids: Sequence[Grid],
    *,
    processes: int,
    device: str | None = None,
    then: Callable[[Done], Sequence[Grid]] = lambda done: (),
    further: int = 0,
) -> tuple[Done, Sequence[Grid]]:
    """Do all runs of grids, and report progress on stderr.

    Args:
        grids: Of all methods; the finals of all come after all squares.
        processes: Runs at once.
        device: Where, as `fedpriv run --device`; None where an experiment says so itself.
        then: Makes further grids of what the first chose.
        further: How many runs those will have, finals too, to forecast the time.

    Returns:
        All runs by identity, and the further grids.
    """
    squares = [run for grid in grids for run in grid.tuning()]
    pace = Pace(len(squares) + further + len(SEEDS) * len(grids))
    done: dict[str, dict[str, Any]] = {}

    def stage(name: str, runs: Sequence[Run]) -> None:
        pace.say(name)
        complete(runs, done, processes=processes, device=device, tell=counted(pace))

    stage("grid", squares)
    more = then(done)
    stage("further grids", [run for grid in more for run in grid.tuning()])
    stage("seeds", [run for grid in (*grids, *more) for run in grid.finals(done)])
    return done, more
