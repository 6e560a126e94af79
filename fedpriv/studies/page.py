"""The page of a study: that of a comparison, with the trials, their failures and the command."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.privacy.statement.statement import describe_data
from fedpriv.report.comparison.groups import Group, sections_of
from fedpriv.report.comparison.page import (
    ColumnHead,
    DataRow,
    DataTable,
    Filter,
    Heading,
    privacy_paragraphs,
    render_with_files,
)
from fedpriv.report.comparison.tables import Cell, rows_as_csv
from fedpriv.report.head import Figure, counted
from fedpriv.report.page import write_page as write_text
from fedpriv.report.wording import NOTHING, flatten, number
from fedpriv.studies.record import StudyRecord, TrialRecord
from fedpriv.studies.tables import finished_trials, groups_of, trial_rows

# Not study.json: in the folder that is the study itself.
FILES = ("study.csv", "study-differences.csv", "study.tex", "study.svg")


def write_page(study: StudyRecord, path: Path) -> None:
    """Write the page of a study, finished or under way, and its tables and plot next to it.

    The files are `study.csv`, `study.tex`, `study.svg`, and `study-differences.csv`
    where methods are compared; the page holds the same. Each file is written in one step.

    Guarantees:
        No request leaves the page. Every string of the study's folder is escaped. Equal folders
        give equal pages.

    Raises:
        ValueError: If sums by user are not those of the trial's run.
    """
    page, files = render_page(study)
    for name in FILES:
        if name in files:
            write_text(path.with_name(name), files[name])
        else:
            path.with_name(name).unlink(missing_ok=True)  # of trials that are no longer its own
    write_text(path, page)


def render_page(study: StudyRecord) -> tuple[str, dict[str, bytes]]:
    """Return the page of a study as HTML, and its other files by name; see `write_page`."""
    groups = groups_of(study)
    trials = trial_rows(study)
    said = _privacy(study)
    planned = {name: value for name, value in study.document.items() if name != "trials"}
    document = {"study": planned, "trials": trials}
    heading = Heading(
        title=str(study.document.get("name") or study.directory.name),
        leads=_leads(study, groups),
        badges=_badges(study, groups),
        figures=_figures(study),
        tables=[*_failures(study), *_searched(study)],
        privacy=[*said, *privacy_paragraphs(groups, several=not said)],
        command=_command(study),
        versions=_versions(study),
        downloads=[("trials.csv", "every trial", "text/csv", rows_as_csv(trials).encode())],
        document=json.loads(json.dumps(document, default=str)),
        name="study",
    )
    return render_with_files(groups, heading)


def _leads(study: StudyRecord, groups: Sequence[Group]) -> list[str]:
    about = study.document.get("description")
    leads = [str(about)] if about else []
    if corpora := dict.fromkeys(section.corpus for section in sections_of(groups)):
        leads.append(f"On {', '.join(corpora)}")
    leads += filter(None, dict.fromkeys(describe_data(group.head.corpus) for group in groups))
    if not groups:
        leads.append("No trial has finished, so there is nothing to show yet.")
    return leads


def _badges(study: StudyRecord, groups: Sequence[Group]) -> list[tuple[str, bool]]:
    runs = [run for group in groups for run in group.runs]
    found = []
    if any(run.synthetic for run in runs):
        found.append(("Synthetic data", True))
    if any(group.coverage.mark for group in groups):
        found.append(("ε does not cover everything", True))
    if any(run.simulated for run in runs):
        found.append(("Simulated", False))
    if failed := len(_failed(study)):
        found.append((f"{counted(failed, 'trial')} failed", True))
    if study.earlier:
        found.append((f"{counted(len(study.earlier), 'earlier trial')} in the folder", True))
    if missing := len(study.trials) - len(finished_trials(study)) - failed:
        found.append((f"Unfinished: {counted(missing, 'trial')} to go", True))
    return found


def _failed(study: StudyRecord) -> list[TrialRecord]:
    return [trial for trial in study.trials if trial.failure is not None]


def _figures(study: StudyRecord) -> list[Figure]:
    trials = study.trials
    methods = list(dict.fromkeys(trial.method for trial in trials))
    levels = sorted({trial.epsilon for trial in trials if trial.epsilon is not None})
    free = any(trial.epsilon is None for trial in trials)
    seeds = sorted({trial.seed for trial in trials})
    seconds = math.fsum(trial.seconds or 0.0 for trial in trials)
    done, failed = len(finished_trials(study)), len(_failed(study))
    of = [f"{done:,} finished", f"{failed:,} failed"]
    if seconds:
        of.append(f"{_duration(seconds)} of computing")
    return [
        ("Methods", str(len(methods)), [", ".join(methods)]),
        (
            "ε",
            str(len(levels)),
            [", ".join(f"{one:g}" for one in levels), *(["and without privacy"] if free else [])],
        ),
        ("Seeds", str(len(seeds)), [", ".join(map(str, seeds))]),
        ("Trials", f"{len(trials):,}", of),
    ]


def _duration(seconds: float) -> str:
    """Return a time in the unit that fits it.

    >>> _duration(12.3), _duration(340.0), _duration(12_000.0)
    ('12.3 s', '5.7 min', '3.3 h')
    """
    if seconds < 120:
        return f"{number(seconds, 3)} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _failures(study: StudyRecord) -> list[tuple[str, DataTable]]:
    """Return the table of the trials that failed, with its title, where there are any."""
    failed = _failed(study)
    if not failed:
        return []
    table = DataTable(
        kind="method",
        heads=[
            ColumnHead("data", words=True),
            ColumnHead("ε"),
            ColumnHead("seed"),
            ColumnHead("reason", words=True),
        ],
        rows=[
            DataRow(
                title=trial.method,
                cells=[
                    Cell(trial.data),
                    Cell(_level(trial.epsilon), value=trial.epsilon),
                    Cell(str(trial.seed), value=trial.seed),
                    Cell(str(trial.failure)),
                ],
                filters={"level": _level(trial.epsilon)},
            )
            for trial in failed
        ],
        filters=[_level_filter(trial.epsilon for trial in failed)],
    )
    return [("Failed trials", table)]


def _searched(study: StudyRecord) -> list[tuple[str, DataTable]]:
    """Return the table of what a search tried, with its title, where the study searched."""
    found = study.document.get("searched")
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []
    if not rows:
        return []
    table = DataTable(
        kind="method",
        heads=[
            ColumnHead("data", words=True),
            ColumnHead("ε"),
            ColumnHead("options", words=True),
            ColumnHead("score", first="descending"),
        ],
        rows=[
            DataRow(
                title=str(row.get("method")),
                cells=[
                    Cell(str(row.get("data"))),
                    Cell(_level(row.get("epsilon")), value=row.get("epsilon")),
                    Cell(", ".join(f"{name} {value}" for name, value in _options(row))),
                    _score(row.get("score")),
                ],
                filters={"level": _level(row.get("epsilon"))},
            )
            for row in rows
        ],
        filters=[_level_filter(row.get("epsilon") for row in rows)],
    )
    return [("What the search tried", table)]


def _options(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = row.get("options")
    return list(flatten(found)) if isinstance(found, Mapping) else []


def _score(value: object) -> Cell:
    known = isinstance(value, int | float) and math.isfinite(value)
    return Cell(number(value), value=float(value)) if known else Cell(NOTHING)  # type: ignore[arg-type]


def _level(target: float | None) -> str:
    return "∞" if target is None else f"{target:g}"


def _level_filter(levels: Iterable[float | None]) -> Filter:
    texts = list(dict.fromkeys(map(_level, levels)))
    return Filter("ε", "level", [("", "all"), *((one, one) for one in texts)])


def _privacy(study: StudyRecord) -> list[str]:
    """Return what the runner wrote about how settings were chosen, and what that costs."""
    found = study.document.get("privacy")
    if isinstance(found, str):
        return [found]
    return [str(text) for text in found] if isinstance(found, list) else []


def _command(study: StudyRecord) -> str:
    given = study.document.get("command")
    if isinstance(given, list):
        return shlex.join(map(str, given))
    return str(given) if given else ""


def _versions(study: StudyRecord) -> dict[str, Any]:
    found = study.document.get("versions")
    return dict(found) if isinstance(found, Mapping) else {}
