"""What tuning chose for a table, and from how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fedpriv.reproduction.runs import Done, Run, best, tried, worth
from fedpriv.reproduction.table import TUNING_SEED, Cell, Reproduction, Row, Settings


def choice_lines(table: Reproduction, done: Done, *, reduced: bool) -> list[str]:
    """Return Markdown lines of the settings behind every cell, and of the grid.

    Raises:
        ValueError: If a tuning run is missing.
    """
    lines = ["", "## Chosen settings", "", "| column | method | settings |", "|---|---|---|"]
    for column, row, cell in _cells(table):
        settings = best(table, cell, done, reduced=reduced)
        chosen = ", ".join(f"{name} {value}" for name, value in settings.items())
        lines.append(f"| {table.columns[column]} | {row.label} | {chosen} |")
    grids = [
        (column, row, list(tried(cell, reduced=reduced)))
        for column, row, cell in _cells(table)
        if cell.tuned_as is None and len(cell.grid) > 1
    ]
    runs: set[str] = {run.identity for _, _, found in grids for run in found}
    lines += [
        "",
        "## The grid",
        "",
        f"{len(runs)} tuning runs, on seed {TUNING_SEED}. What is not listed takes its settings "
        "over from what is.",
        "",
        "| column | method | configurations | best on the tuning seed | on an edge of the grid |",
        "|---|---|---:|---:|---|",
    ]
    for column, row, found in grids:
        shown = _best_shown(table, done, found)
        chosen = best(table, row.cells[column], done, reduced=reduced)
        edges = ", ".join(edges_of(chosen, row.cells[column].grid)) or "nothing"
        lines.append(
            f"| {table.columns[column]} | {row.label} | {len(found)} | {shown} | {edges} |"
        )
    return lines


def edges_of(chosen: Settings, grid: Sequence[Settings]) -> list[str]:
    """Return which numbers of chosen settings are the least or the most that a grid has of them.

    What has one value in the grid was not tuned, and is not on an edge.
    """
    found = []
    for name, value in chosen.items():
        tried_values = {settings[name] for settings in grid if name in settings}
        numbers = [n for n in tried_values if isinstance(n, int | float)]
        if len(numbers) > 1 and value in (min(numbers), max(numbers)):
            found.append(f"{name} ({'least' if value == min(numbers) else 'most'})")
    return found


def _cells(table: Reproduction) -> Iterator[tuple[str, Row, Cell]]:
    for column in table.columns:
        for row in table.rows:
            if column in row.cells:
                yield column, row, row.cells[column]


def _best_shown(table: Reproduction, done: Done, runs: Sequence[Run]) -> str:
    top = max((done[run.identity] for run in runs), key=lambda row: worth(table, row))
    if not math.isfinite(worth(table, top)):
        return "diverged"
    return f"{top[table.measure.name] * table.scale:.{table.layout.digits}f}"
