"""The results file: one JSON line a run, and what of a set of runs is still to be done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from fedpriv import json_lines
from fedpriv.reproduction.runs import Done, Run, identity_of
from fedpriv.reproduction.workers import performed


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the runs of a results file by identity; a torn last line is left out."""
    return {identity_of(row): row for row in json_lines.read(path)}


def pending(runs: Iterable[Run], done: Done) -> list[Run]:
    """Return the runs that are not done yet, each once, in their order."""
    return list({run.identity: run for run in runs if run.identity not in done}.values())


def complete(
    runs: Iterable[Run],
    path: Path,
    *,
    processes: int = 1,
    tell: Callable[[int, int, dict[str, Any]], None] = lambda done, total, row: None,
) -> dict[str, dict[str, Any]]:
    """Do what is not done yet, append it to the file as it ends, and return all of the file.

    Args:
        runs: What is wanted.
        path: JSON lines; made if missing.
        processes: How many runs at once, each on one thread of its own.
        tell: Called with (done, total, row) after each.

    Raises:
        ChildProcessError: If a process died; names its run. What had ended is in the file.
        ValueError: If a run is refused; names it. What had ended is in the file.
        RuntimeError: If a run fails otherwise, likewise.
    """
    done = read(path)
    todo = pending(runs, done)
    if not todo:
        return done
    path.parent.mkdir(parents=True, exist_ok=True)
    json_lines.cut_torn_line(path)
    # Closed at once, so that nothing works on while an error is on its way up.
    with path.open("a", encoding="utf-8") as out, closing(performed(todo, processes)) as rows:
        for number, row in enumerate(rows, start=1):
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            out.flush()
            done[row["identity"]] = row
            tell(number, len(todo), row)
    return done
