"""Runs that differ in their seed only, as one group, and what groups measure and differ in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.measures import Measure
from fedpriv.privacy.statement.coverage import KEY, Coverage
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.headline import Estimate, estimate
from fedpriv.report.page import same_experiment_key
from fedpriv.report.promise import promised, spent
from fedpriv.report.series import Row, RunRecord, last_value, read_run
from fedpriv.report.tables import exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A measure, and of whom.

    Attributes:
        measure: What is measured.
        diagnosed: Whether of rostered users, which no ε covers, or of public ones.
    """

    measure: Measure
    diagnosed: bool

    @property
    def key(self) -> str:
        """Its name in the records."""
        return self.measure.name if self.diagnosed else self.measure.released_name

    def rows(self, run: RunRecord) -> tuple[Row, ...]:
        """Return the records that hold it."""
        return run.diagnosed if self.diagnosed else run.released


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that differ in their seed only."""

    runs: tuple[RunRecord, ...]

    @property
    def head(self) -> RunRecord:
        """The first of the runs, which speaks for all in what they share."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.head.name

    @property
    def coverage(self) -> Coverage:
        """What the ε of these runs does not cover, each phrase once."""
        found = [run.coverage for run in self.runs]
        phrases = dict.fromkeys(phrase for one in found for phrase in one.not_covered)
        return Coverage(not_covered=tuple(phrases), reason=found[0].reason)

    @property
    def epsilon(self) -> float:
        """The largest ε spent by one of the runs; infinite without noise."""
        return max(spent(run).value for run in self.runs)

    def measure(self, column: Column) -> Estimate | None:
        """Return mean and interval of a final measure over the seeds."""
        return estimate([last_value(column.rows(run), column.key) for run in self.runs])


def columns_of(groups: Sequence[Group]) -> list[Column]:
    """Return what some group measures: of rostered users, then of public ones."""
    measures = dict.fromkeys(measure for group in groups for measure in group.head.figures)
    return [Column(measure=m, diagnosed=d) for d in (True, False) for m in measures]


def read_groups(directories: Sequence[str | Path]) -> list[Group]:
    """Return runs grouped by experiment, in the order given.

    Raises:
        ValueError: If a folder is not a run, is given twice, or two runs of one experiment share
            a seed.
    """
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for directory in directories:
        run = read_run(directory)
        same = groups.setdefault(same_experiment_key(run), [])
        if any(other.options.get("seed") == run.options.get("seed") for other in same):
            raise ValueError(
                f"{directory} repeats experiment {run.name!r} with seed "
                f"{run.options.get('seed')}; compare each run once"
            )
        same.append(run)
    return [Group(runs=tuple(runs)) for runs in groups.values()]


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the options in which the groups differ, each with one value a group."""
    names = dict.fromkeys(name for group in groups for name in group.head.options)
    found = {}
    for name in names:
        if name in ("seed", "name", "description"):
            continue
        values = [exact(group.head.options.get(name)) for group in groups]
        if len(set(values)) > 1:
            found[name] = values
    return found


def mismatches(groups: Sequence[Group]) -> list[str]:
    """Return why figures of the groups must not be read against each other."""
    promises = [promised(group.head) for group in groups if group.head.private]
    facts = {
        "corpus": [(g.head.corpus.get("name"), g.head.synthetic) for g in groups],
        "roster": [g.head.corpus.get("roster_sha256") for g in groups],
        "what is measured": [g.head.figures for g in groups],
        "δ": [p.delta for p in promises],
        "neighbouring relation": [p.relation for p in promises],
        "unit of privacy": [g.head.unit for g in groups],
        "what ε covers": [g.coverage.not_covered for g in groups if g.head.private],
    }
    return [name for name, values in facts.items() if len(set(values)) > 1]


def as_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the comparison as JSON values; an infinite ε is null with `private` false."""
    rows, columns = [], columns_of(groups)
    for group in groups:
        run = group.head
        promise = promised(run) if run.private else None
        row: dict[str, Any] = {
            "name": group.name,
            "runs": [str(r.directory) for r in group.runs],
            "seeds": [r.options.get("seed") for r in group.runs],
            "private": run.private,
            "synthetic": run.synthetic,
            "simulated": run.simulated,
            "no_meaningful_protection": run_statement(run.directory).no_meaningful_protection,
            "epsilon": group.epsilon if math.isfinite(group.epsilon) else None,
            KEY: list(group.coverage.not_covered),
            "delta": promise.delta if promise else None,
            "relation": promise.relation.value if promise else None,
            "unit": run.unit,
            "accountant": promise.accountant if promise else None,
            "rounds": min(r.rounds_done for r in group.runs),
            "rounds_planned": run.rounds_planned,
            "users": run.corpus.get("num_users"),
            "corpus": run.corpus.get("name"),
            "roster": run.corpus.get("roster"),
        }
        for column in columns:
            value = group.measure(column)
            row[column.key] = value.mean if value else None
            row[f"{column.key}_interval"] = (
                list(value.interval) if value and value.interval else None
            )
        rows.append(row)
    return rows


def gaps(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each group whose ε does not cover everything."""
    return [
        f"The ε of {group.name} {group.coverage.mark}." for group in groups if group.coverage.mark
    ]
