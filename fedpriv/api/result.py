"""A run as a value: its figures, curves, params and privacy statement, in a notebook too."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.api import frames, shown
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.statement.statement import Statement, run_statement
from fedpriv.report.export import released_params
from fedpriv.report.page import write_report
from fedpriv.report.run_record import RunRecord, read_run, spent

if TYPE_CHECKING:
    import pandas as pd


class TemporaryFolder:
    """A folder that is removed with the last value that holds it, or with the process."""

    __slots__ = ("__weakref__", "path")

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedpriv-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Run:
    """A run, finished or under way, as it was when it was read. Made by `run`, `resume`, `load`.

    Printed, or shown in a notebook, it says its figures and its privacy statement.

    Attributes:
        record: What its folder holds.
        epsilon: ε spent so far, lost attempts included, with δ, relation, unit and accountant;
            `.value` is the bare number, infinite where there is no guarantee.
        statement: What it promises and what it does not; `print` it to read all of it.

    Guarantees:
        * `rounds()`, and `params`, are released: made after the noise, or on public data.
        * `diagnostics()` is covered by no ε, and empty for a secure run.
        * Wherever ε is shown it is rounded up, and stands with its δ, relation, unit, accountant,
          "simulated" where it is, and what it does not cover.
    """

    record: RunRecord
    epsilon: Epsilon
    statement: Statement
    _temporary: TemporaryFolder | None = field(default=None)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.record.name

    @property
    def label(self) -> str:
        """What the run was called when it was started, or else the experiment's name."""
        return self.record.label

    @property
    def path(self) -> Path | None:
        """The run folder; None of a run that was made without `out` and is not kept."""
        return self.record.directory if self._temporary is None else None

    @property
    def options(self) -> Mapping[str, Any]:
        """Every option of the experiment, by the name that it has on the command line."""
        return self.record.options

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures of `fedpriv run --json`; empty while the run is under way."""
        if not self.record.summary:
            return {}
        return {**self.record.summary, "run_dir": None if self.path is None else str(self.path)}

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The params of the model that the run returns, by name, read anew at every call.

        That is the model that public examples showed to be best, `summary["selection"]`, which may
        be one of public examples alone. Where none was selected (`select=last`, another task, a run
        under way): the newest checkpoint, the average where the experiment aggregates them.

        Raises:
            ValueError: If the run has released nothing yet, or the selected model was changed.
        """
        return released_params(self.record)[1]

    def rounds(self, *, every: bool = False) -> pd.DataFrame:
        """Return what was released, one row an evaluated round (of private examples, a step).

        `epsilon` of a row is an upper bound on what was spent up to that round: the price of
        `epsilon_charges` charges. `.attrs["privacy"]` is the statement's headline.

        Args:
            every: Also the rounds in which nothing was measured, with NaN for what is missing. They
                are there as well in a run that measures nothing at all.
        """
        return frames.released(self.record, self.statement, every=every)

    def diagnostics(self, *, every: bool = False) -> pd.DataFrame:
        """Return what only a simulation sees, one row an evaluated round. No ε covers any of it.

        Args:
            every: As for `rounds`.
        """
        return frames.diagnosed(self.record, every=every)

    def table(self) -> pd.DataFrame:
        """Return the run's key figures as one row; `compare` puts several below each other."""
        return frames.compared([self.record.directory])

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
        shutil.copytree(self.record.directory, target)
        return load(target)

    def __repr__(self) -> str:
        return shown.as_text(self.record, self.statement)

    def _repr_html_(self) -> str:
        return shown.as_html(self.record, self.statement)


def load(path: str | Path) -> Run:
    """Return the run of a folder that `run`, `fedpriv run` or a Flower server wrote.

    A run under way is read as far as it is. Nothing in the folder is executed or changed.

    Raises:
        ValueError: If there is no run, or its files do not belong together.
    """
    return read(Path(path), None)


def read(path: Path, temporary: TemporaryFolder | None) -> Run:
    """Return the run of a folder that may be a temporary one."""
    record = read_run(path)
    return Run(
        record=record,
        epsilon=record.coverage.marked(spent(record)),
        statement=run_statement(path),
        _temporary=temporary,
    )


def compare(*runs: Run | str | Path) -> pd.DataFrame:
    """Return the key figures of runs, one row an experiment; its seeds are averaged.

    Args:
        *runs: Runs, or their folders.

    Raises:
        ValueError: If there are none, or one is given twice.
    """
    if not runs:
        raise ValueError("there is nothing to compare; give runs, or their folders")
    return frames.compared(
        [run.record.directory if isinstance(run, Run) else Path(run) for run in runs]
    )
