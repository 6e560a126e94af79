"""`study.ipynb`: a notebook that reads a study's folder and draws it, to be changed by its reader.

It is written by hand as nbformat 4 JSON: nothing but `json` is needed to make it, and fedpriv with
matplotlib to run it. It holds code and no results.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedpriv.report.page import write_page as write_text
from fedpriv.report.wording import markdown_safe
from fedpriv.studies.record import StudyRecord

_READ = """\
from fedpriv.studies.record import read_study
from fedpriv.studies.tables import differences_frame, results_frame, trials_frame

study = read_study({folder!r})
results = results_frame(study)
results.attrs["notes"]  # what no ε covers"""

_TABLE = """\
shown = [name for name in (measure, f"{measure}_interval", "gain", "gap_closed", "epsilon", "seeds")
         if name in results]
results[shown]"""

_MEASURE = """\
run = next(trial.run for trial in study.trials if trial.run is not None)
headline = run.figures[0]
# Of rostered users (a diagnostic, which no ε covers), or else of public ones (released).
measure = headline.name
if measure not in results or results[measure].isna().all():
    measure = headline.released_name
measure"""

_PLOT = """\
import math

import matplotlib.pyplot as plt

for data, part in results.groupby(level="data", sort=False):
    figure, axes = plt.subplots(figsize=(7, 4))
    for method, rows in part.groupby(level="method", sort=False):
        private = rows[[math.isfinite(level) for level in rows.index.get_level_values(2)]]
        if not len(private):
            continue
        half = [0.0 if ends is None else (ends[1] - ends[0]) / 2
                for ends in private[f"{measure}_interval"]]
        axes.errorbar(private["epsilon"], private[measure], yerr=half, marker="o", label=method)
    free = part[[not math.isfinite(level) for level in part.index.get_level_values(2)]][measure]
    majority = "majority_class_accuracy" + ("_public" if measure.endswith("_public") else "")
    references = {"majority class": part.get(majority),
                  "public-only": part.get(f"{headline.name}_public_only")}
    values = {name: column.dropna().mean() for name, column in references.items()
              if column is not None and column.notna().any()}
    if len(free):
        values["non-private"] = free.max() if headline.higher_is_better else free.min()
    for name, value in values.items():
        axes.axhline(value, color="grey", linewidth=0.8, linestyle=":")
        axes.annotate(name, (1.01, value), xycoords=("axes fraction", "data"), va="center")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="ε spent", ylabel=headline.label, title=data)
    axes.legend(fontsize="small")
    figure.tight_layout()
    plt.show()"""

_CURVES = """\
from fedpriv.report.run_record import points

figure, axes = plt.subplots(figsize=(7, 4))
methods = list(dict.fromkeys(trial.method for trial in study.trials))
levels = [trial.epsilon for trial in study.trials if trial.epsilon is not None]
for trial in study.trials:
    if trial.run is None or trial.epsilon != max(levels, default=None):
        continue
    rows = trial.run.diagnosed if measure == headline.name else trial.run.released
    x, y = points(rows, measure)
    place = methods.index(trial.method)
    axes.plot(x, y, color=f"C{place % 10}", label=trial.method if trial.seed == 0 else None)
axes.set(xlabel="round", ylabel=headline.label)
axes.legend(fontsize="small")
plt.show()"""

_FAILED = """\
trials = trials_frame(study)
trials[trials["failure"].notna()][["method", "target_epsilon", "seed", "failure"]]"""


def write_notebook(study: StudyRecord, path: Path) -> None:
    """Write a notebook that reads the study's folder, in one step.

    It names the folder relative to itself where it lies in it, so that both can be moved together.

    Args:
        study: The study.
        path: The file, named `.ipynb`.
    """
    write_text(path, notebook_of(study, path))


def notebook_of(study: StudyRecord, path: Path) -> str:
    """Return the notebook as JSON of nbformat 4.5; equal studies give equal text."""
    inside = path.resolve().parent == study.directory.resolve()
    folder = "." if inside else str(study.directory.resolve())
    title = markdown_safe(str(study.document.get("name") or study.directory.name))
    cells = [
        _text(f"# {title}"),
        _text(
            "Reads the study's folder and draws it. Values of rostered users are diagnostics of a "
            "simulation, which no ε covers; choosing by them is not covered either. The page of "
            "the study has the whole privacy statement."
        ),
        _code(_READ.format(folder=folder)),
        _code(_MEASURE),
        _text("## Methods by ε"),
        _code(_TABLE),
        _code(_PLOT),
        _text("## Paired differences at equal ε"),
        _code("differences_frame(study)"),
        _text("## Learning curves at the largest ε, a line for each seed"),
        _code(_CURVES),
        _text("## Trials that failed"),
        _code(_FAILED),
    ]
    document = {
        "cells": [cell | {"id": _id(place, cell)} for place, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _text(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source.splitlines(keepends=True)}


def _code(source: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }


def _id(place: int, cell: dict[str, Any]) -> str:
    """Return what names a cell: 1 to 64 letters, digits, hyphens or underscores."""
    digest = hashlib.sha256("".join(cell["source"]).encode()).hexdigest()
    return f"{place}-{digest[:12]}"
