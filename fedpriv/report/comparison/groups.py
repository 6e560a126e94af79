"""Runs that differ in their seed only, as one group, and what groups measure and differ in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.measures import Measure
from fedpriv.privacy.statement.coverage import Coverage
from fedpriv.report.comparison.naming import labels_of_runs
from fedpriv.report.headline import Estimate, estimate
from fedpriv.report.page import same_experiment_key
from fedpriv.report.promise import guaranteed, spent, state_of
from fedpriv.report.series import Row, RunRecord, read_run
from fedpriv.report.tables import exact
from fedpriv.report.unit_labels import labels_of


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
    """Runs that differ in their seed only.

    Attributes:
        runs: At least one.
        label: What names it among those that it is compared with.
    """

    runs: tuple[RunRecord, ...]
    label: str

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

    @property
    def finished(self) -> bool:
        """Whether its runs came to their end."""
        return all(run.finished for run in self.runs)

    @property
    def unfinished_mark(self) -> str:
        """What goes with the figures of runs that are not at their end, or ""."""
        if self.finished:
            return ""
        done = min(run.rounds_done for run in self.runs)
        planned = self.head.rounds_planned
        of = "" if planned is None else f" of {planned:,}"
        return f"unfinished: {done:,}{of} {labels_of(self.head.unit).turn}s"

    @property
    def public_only(self) -> Estimate | None:
        """What the best model of public data alone reached on the headline, over the runs."""
        if not self.head.figures:
            return None
        return estimate([run.public_only(run.figures[0]) for run in self.runs])

    @property
    def gain(self) -> Estimate | None:
        """How far the headline lies above public-only, run by run, over the runs."""
        return estimate([run.gain for run in self.runs])

    def measure(self, column: Column) -> Estimate | None:
        """Return mean and interval, over the seeds, of a measure of the models that runs return."""
        return estimate([run.reached(column.key, column.rows(run)) for run in self.runs])


def columns_of(groups: Sequence[Group]) -> list[Column]:
    """Return what some group measures: of rostered users, then of public ones."""
    measures = dict.fromkeys(measure for group in groups for measure in group.head.figures)
    return [Column(measure=m, diagnosed=d) for d in (True, False) for m in measures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was in the folders that were given.

    Attributes:
        groups: The runs, grouped.
        left_out: Why each other folder is not compared, one sentence each.
    """

    groups: tuple[Group, ...]
    left_out: tuple[str, ...]


def find_groups(directories: Sequence[str | Path]) -> Found:
    """Return the runs among folders, grouped in the order given, and what else was there.

    Raises:
        ValueError: If there is no run among them.
    """
    runs: dict[str, RunRecord] = {}
    left_out = []
    for directory in directories:
        try:
            run = read_run(directory)
            run_id = state_of(run).run_id
        except (OSError, ValueError) as error:
            left_out.append(f"left out: {error}")
            continue
        if run_id in runs:
            other = runs[run_id].directory
            left_out.append(f"left out: {directory} is the run of {other}, given twice or copied")
        else:
            runs[run_id] = run
    if not runs:
        raise ValueError(
            "; ".join(["none of these is a run folder", *left_out])
            + "; give folders that `fedpriv run` wrote, such as runs/*"
        )
    return Found(groups=group_runs(list(runs.values())), left_out=tuple(left_out))


def read_groups(directories: Sequence[str | Path]) -> list[Group]:
    """Return runs grouped by experiment, in the order given.

    Raises:
        ValueError: If a folder is not a run, or a run is given twice.
    """
    runs: dict[str, RunRecord] = {}
    for directory in directories:
        run = read_run(directory)
        run_id = state_of(run).run_id
        if run_id in runs:
            raise ValueError(
                f"{directory} repeats the run of {runs[run_id].directory}; compare each run once"
            )
        runs[run_id] = run
    return list(group_runs(list(runs.values())))


def group_runs(runs: Sequence[RunRecord]) -> tuple[Group, ...]:
    """Return runs of one experiment that differ in their seed as one group, named by what differs.

    A run that repeats another one's seed is no further sample: it is a group of its own. So are
    unfinished runs, whose figures are those of another number of rounds.
    """
    found: list[list[RunRecord]] = []
    for run in runs:
        same = [
            others
            for others in found
            if _sample_key(others[0]) == _sample_key(run)
            and not any(_same_seed(other, run) for other in others)
        ]
        # Seeds 0 and 1 of two backends are two groups of one backend each.
        same.sort(key=lambda others: _backend(others[0]) != _backend(run))
        if same:
            same[0].append(run)
        else:
            found.append([run])
    labels = labels_of_runs([others[0] for others in found])
    return tuple(
        Group(runs=tuple(others), label=label) for others, label in zip(found, labels, strict=True)
    )


def _sample_key(run: RunRecord) -> tuple[object, ...]:
    # Nothing says in what trainings of one's own differ: each is a group of its own.
    alone = None if run.own is None else str(run.directory)
    return (*same_experiment_key(run), run.label, run.finished, alone)


def _backend(run: RunRecord) -> object:
    return run.description.get("backend")


def _same_seed(one: RunRecord, other: RunRecord) -> bool:
    """Return whether two runs drew the same; secure ones have no seed, and never did."""
    return one.simulated and one.options.get("seed") == other.options.get("seed")


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
    modes = ["simulated" if group.head.simulated else "secure" for group in groups]
    return {"mode": modes, **found} if len(set(modes)) > 1 else found


def mismatches(groups: Sequence[Group]) -> list[str]:
    """Return why figures of the groups must not be read against each other."""
    promises = [guaranteed(group.head) for group in groups if group.head.private]
    facts = {
        "corpus": [(g.head.corpus.get("name"), g.head.synthetic) for g in groups],
        "roster": [g.head.corpus.get("roster_sha256") for g in groups],
        "what is held out": [g.head.held_out for g in groups],
        "what is measured": [g.head.figures for g in groups],
        "δ": [p.delta for p in promises],
        "neighbouring relation": [p.relation for p in promises],
        "unit of privacy": [g.head.unit for g in groups],
        "what ε covers": [g.coverage.not_covered for g in groups if g.head.private],
    }
    return [name for name, values in facts.items() if len(set(values)) > 1]


def gaps(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each group whose ε does not cover everything."""
    return [
        f"The ε of {group.label} {group.coverage.mark}." for group in groups if group.coverage.mark
    ]
