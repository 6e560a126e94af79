"""A run as a value: its figures, curves, params and privacy statement, in a notebook too."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (pandas brings no stubs, and its frames are what callers get)

from __future__ import annotations

import math
import shutil
import tempfile
import textwrap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpriv.libraries import need
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.statement.coverage import KEY
from fedpriv.privacy.statement.statement import (
    NO_EPSILON_COVERS,
    Statement,
    describe_returned_model,
    describe_weights,
    name_data,
    run_statement,
)
from fedpriv.report import theme
from fedpriv.report.comparison.groups import gaps, mismatches, read_groups
from fedpriv.report.comparison.tables import as_rows
from fedpriv.report.export import released_params
from fedpriv.report.head import badges, key_figures, result_rows
from fedpriv.report.page import write_report
from fedpriv.report.run_record import Row, RunRecord, read_run, spent
from fedpriv.untrusted_text import plain

if TYPE_CHECKING:
    import pandas as pd


class TemporaryFolder:
    """A folder that is removed with the last value that holds it, or with the process."""

    __slots__ = ("__weakref__", "path")

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedpriv-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Run(RunRecord):
    """A run, finished or under way, as it was when it was read. Made by `run`, `resume`, `load`.

    Printed, or shown in a notebook, it says its figures and its privacy statement.

    Guarantees:
        * `rounds()`, and `params`, are released: made after the noise, or on public data.
        * `diagnostics()` is covered by no ε, and empty for a secure run.
        * Wherever ε is shown it is rounded up, and shown with its δ, relation, unit, accountant,
          "simulated" where it is, and what it does not cover.
    """

    _temporary: TemporaryFolder | None = field(default=None)

    @cached_property
    def epsilon(self) -> Epsilon:
        """The ε spent so far, lost attempts included, with δ, relation, unit and accountant.

        `.value` is the bare number, infinite where there is no guarantee.
        """
        return self.coverage.marked(spent(self))

    @cached_property
    def statement(self) -> Statement:
        """What the run guarantees and what it does not; `print` it to read all of it."""
        return run_statement(self)

    @property
    def path(self) -> Path | None:
        """The run folder; None of a run that was made without `out` and is not kept."""
        return self.folder if self._temporary is None else None

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The params of the model that the run returns, by name, read again at every call.

        That is the model that was selected on public examples, `summary["selection"]`, which may
        be one of public examples alone. Where none was selected (`select=last`, another task, a run
        under way): the newest checkpoint, the average where the experiment aggregates them.

        Raises:
            ValueError: If the run has released nothing yet, or the selected model was changed.
        """
        return released_params(self)[1]

    def rounds(self, *, every: bool = False) -> pd.DataFrame:
        """Return what was released, one row an evaluated round (of private examples, a step).

        `epsilon` of a row is an upper bound on what was spent up to that round: the price of
        `epsilon_charges` charges. `.attrs["privacy"]` is the statement's headline.

        Args:
            every: Also the rounds in which nothing was measured, with NaN for what is missing. They
                are there as well in a run that measures nothing at all.
        """
        names = [measure.released_name for measure in self.figures]
        usual = ("attempt", "epsilon", "epsilon_charges", "delta", *names, "update_norm")
        frame = _by_round(self.released, usual, names, every=every)
        frame.attrs = {"privacy": self.statement.headline, "covered_by_epsilon": True}
        return frame

    def diagnostics(self, *, every: bool = False) -> pd.DataFrame:
        """Return what only a simulation sees, one row an evaluated round. No ε covers any of it.

        Args:
            every: As for `rounds`.
        """
        names = [measure.name for measure in self.measures]
        usual = ("attempt", "cohort_size", "num_failed", *names, "seconds")
        frame = _by_round(self.diagnosed, usual, names, every=every)
        frame.attrs = {"privacy": "a diagnostic, not covered by ε", "covered_by_epsilon": False}
        return frame

    def table(self) -> pd.DataFrame:
        """Return the run's key figures as one row; `compare` puts several below each other."""
        return compare(self)

    def report(self) -> Path:
        """Write the report, one self-contained page, into the run folder and return its path.

        Raises:
            ValueError: If the run is not kept: `save` it first.
        """
        if self.path is None:
            raise ValueError(
                f"this run of {self.name} is not kept, and its report would go with it; "
                "save(path) it first, or run with out=..."
            )
        return write_report(self.path)

    def save(self, out: str | Path) -> Run:
        """Copy the run folder, and return the run that is kept there.

        Raises:
            ValueError: If there is something already.
        """
        target = Path(out)
        if target.exists():
            raise ValueError(f"{target} is there already; give the name of a folder to make")
        shutil.copytree(self.folder, target)
        return load(target)

    def __repr__(self) -> str:
        return _as_text(self)

    def _repr_html_(self) -> str:
        return _as_html(self)


def load(path: str | Path) -> Run:
    """Return the run of a folder that `run`, `fedpriv run` or a Flower server wrote.

    A run under way is read as far as it is. Nothing in the folder is executed or changed.

    Raises:
        ValueError: If there is no run, or its files do not belong together.
    """
    return read(Path(path), None)


def read(path: Path, temporary: TemporaryFolder | None) -> Run:
    """Return the run of a folder that may be a temporary one."""
    run = read_run(path, Run)
    if run.summary:
        run_dir = None if temporary else str(path)
        run = replace(run, summary={**run.summary, "run_dir": run_dir})
    run = replace(run, _temporary=temporary)
    _ = run.statement  # made now: the folder may change
    return run


_SETTINGS = ("finished", "rounds_planned", "users", "corpus", "roster", "interval_over")


def compare(*runs: Run | str | Path) -> pd.DataFrame:
    """Return the key figures of runs, one row an experiment; its seeds are averaged.

    `.attrs["notes"]` says what ε does not cover, and in what the runs are not like with like. What
    is known of no run, and settings in which they do not differ, are left out. Without privacy ε is
    infinite.

    Args:
        *runs: Runs, or their folders.

    Raises:
        ValueError: If there are none, or one is given twice.
    """
    if not runs:
        raise ValueError("there is nothing to compare; give runs, or their folders")
    need("pandas", "pandas", "a data frame")
    import pandas as pd

    groups = read_groups([run.folder if isinstance(run, Run) else Path(run) for run in runs])
    rows = as_rows(groups)
    for row in rows:
        row["epsilon"] = math.inf if row["epsilon"] is None else row["epsilon"]
    left_out = {"name", "runs"}
    for name in rows[0]:
        first, *others = values = [row[name] for row in rows]
        same = bool(others) and name in _SETTINGS and all(other == first for other in others)
        if same or all(value is None or value is False for value in values):
            left_out.add(name)
    rows = [{name: row[name] for name in row if name not in left_out} for row in rows]
    frame = pd.DataFrame(rows, index=pd.Index([g.name for g in groups], name="experiment"))
    unlike = mismatches(groups)
    notes = list(gaps(groups))
    if unlike:
        notes.append(f"not like with like: these runs differ in {', '.join(unlike)}")
    frame.attrs = {"notes": notes}
    return frame


def _by_round(
    rows: Sequence[Row], usual: Sequence[str], measured: Sequence[str], *, every: bool
) -> pd.DataFrame:
    """Return rows under their names; a run without any has the usual columns, empty.

    Without `every` those rows in which something was measured; all where nothing ever was.
    """
    need("pandas", "pandas", "a data frame")
    import pandas as pd

    if not every:
        rows = [row for row in rows if any(row.get(n) is not None for n in measured)] or rows
    left_out = ("round_num", "covered_by_epsilon", KEY)
    names = list(dict.fromkeys(name for row in rows for name in row if name not in left_out))
    index = pd.Index([int(row["round_num"]) for row in rows], name="round_num", dtype="int64")
    columns = {name: [row.get(name) for row in rows] for name in names or usual}
    frame = pd.DataFrame(columns, index=index)
    # A figure that was not measured in any round is a column of numbers all the same.
    unmeasured = [name for name in names if all(row.get(name) is None for row in rows)]
    return frame.astype(dict.fromkeys(unmeasured, float))


_WIDTH = 100


def _as_text(run: Run) -> str:
    """Return the results and the guarantee of a run as lines of text."""
    turns, statement = _turns(run), run.statement
    labels = ", ".join(label for label, warns in badges(run, statement) if warns)
    lines = [f"Run of {plain(run.title)}: {turns}" + (f" [{labels}]" if labels else "")]
    lines += [_line(label, text) for label, text in result_rows(run, statement)]
    for number, paragraph in enumerate(statement.paragraphs(NO_EPSILON_COVERS)):
        lines.append(_line("" if number else "no ε covers", paragraph))
    return "\n".join(lines)


def _as_html(run: Run) -> str:
    """Return the same as HTML without scripts, with the whole statement folded below."""
    return theme.render(
        "notebook.html.md",
        run=run,
        turns=_turns(run),
        badges=badges(run, run.statement),
        returned=describe_returned_model(run.summary)[0],
        figures=[*((label, text, []) for label, text in _inputs(run)), *key_figures(run)],
        headline=run.statement.headline,
        sections=run.statement.sections,
    )


def _turns(run: RunRecord) -> str:
    planned = "" if run.rounds_planned is None else f" of {run.rounds_planned:,}"
    return f"{run.rounds_done:,}{planned} {run.words.turn}s"


def _inputs(run: RunRecord) -> list[tuple[str, str]]:
    """Return what a run trained on and, where there are any, the published weights of its model."""
    used = describe_weights(run.corpus)
    data = name_data(run.corpus, run.unit)
    return [("data", data), *([("weights", used)] if used else [])]


def _line(label: str, text: str) -> str:
    return textwrap.fill(
        " ".join(plain(text).split()),
        width=_WIDTH,
        initial_indent=f"  {label + ' ':<12}",
        subsequent_indent=" " * 14,
        break_on_hyphens=False,
        break_long_words=False,
    )
