"""Writes docs/options.md from the classes of experiments and parts; `make options` calls it.

A test compares the page with the classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedpriv.experiments.experiment import classes
from fedpriv.experiments.options import Entry, Option, entries
from fedpriv.experiments.ready_made.image_users import ImagesByUser
from fedpriv.experiments.ready_made.natural_users import FemnistTask, ShakespeareTask
from fedpriv.experiments.tasks import NextWordsTask, TagPredictionTask

_INTRODUCTION = """# Options

An experiment is a frozen dataclass of parts, each a frozen dataclass of options. The name of an
option is its path: `noise.target_epsilon` on the command line (`-s NAME=VALUE`), in TOML, in a run
folder and in Python, where it is the attribute. The kind of a part is set by the path of its
place, `-s noise=banded`, in TOML `noise.kind = "banded"`. Any ending of a path that is unambiguous
will do, and `-`, `_` and `.` are alike: `target-epsilon`. An option exists only where its part is
chosen; elsewhere it is refused with the part's name. `fedpriv list EXPERIMENT` shows those of one
experiment with their values. This page is written by `make options`."""


def tables() -> str:
    """Return the page of all options, class by class, in Markdown."""
    lines = [_INTRODUCTION]
    for (unit, method), made in classes().items():
        summary = (made.__doc__ or "").partition("\n")[0]
        lines += [
            "",
            f"## `{made.__name__}`",
            "",
            f'{summary} (`unit="{unit}"`, method `{method}`)',
        ]
        lines += ["", *_table(entries(made))]
    for task in (TagPredictionTask, NextWordsTask, ImagesByUser, FemnistTask, ShakespeareTask):
        summary = (task.__doc__ or "").partition("\n")[0]
        lines += [
            "",
            f"## `{task.__name__}`",
            "",
            summary,
            "",
            *_table(entries(task, prefix="task.")),
        ]
    return "\n".join([*lines, ""])


def _table(known: tuple[Entry, ...]) -> Iterator[str]:
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for entry in known:
        kind = f"{entry.within[-1][0]} `{entry.within[-1][1]}`" if entry.within else ""
        row = (entry.path, _written(entry.default), entry.takes, entry.help)
        rows.setdefault(row, []).append(kind)
    yield "| option | with | default | takes | |"
    yield "|---|---|---|---|---|"
    for (path, default, takes, summary), kinds in rows.items():
        cells = [f"`{path}`", ", ".join(dict.fromkeys(kinds)), default, takes, summary]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _written(value: Option) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


if __name__ == "__main__":
    Path(__file__).with_name("options.md").write_text(tables(), "utf-8")
