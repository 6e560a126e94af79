"""The runs of a heat map: a grid, and then what it chose, one count over both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedpriv.runs.progress import Pace
from simulations.reproduction.runs import Run, complete, pending, read

Done = Mapping[str, Mapping[str, Any]]


def trained(
    grid: Iterable[Run],
    finals: Callable[[Done], Iterable[Run]],
    num_finals: int,
    results: Path,
    *,
    processes: int,
) -> Done:
    """Do what is not in the results yet, say how far it is on stderr, and return all of them.

    Args:
        grid: Runs to choose by.
        finals: From these to the runs that are reported.
        num_finals: How many there will be.
        results: JSON lines.
        processes: Runs at once.
    """
    squares = list(grid)
    pace = Pace(len(squares) + num_finals)

    def tell(number: int, total: int, row: Mapping[str, Any]) -> None:
        pace.done += 1
        pace.say(f"accuracy {row['accuracy']:.4f} in {row['seconds']:.0f} s")

    def stage(name: str, runs: list[Run]) -> Done:
        pace.keep(len(runs) - len(pending(runs, read(results))))
        pace.say(name)
        return complete(runs, results, processes=processes, tell=tell)

    return stage("seeds", list(finals(stage("grid", squares))))
