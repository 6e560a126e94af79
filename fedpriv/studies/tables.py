"""The results of a study as groups, data frames and rows: of methods × ε, of trials, of pairs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (pandas brings no stubs, and its frames are what callers get)

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv.libraries import need
from fedpriv.report.comparison.groups import (
    Group,
    gaps,
    measured_by_user,
    sections_of,
    spread_note,
)
from fedpriv.report.comparison.paired import paired_differences
from fedpriv.report.comparison.tables import as_rows
from fedpriv.report.run_record import RunRecord
from fedpriv.studies.record import StudyRecord, TrialRecord

if TYPE_CHECKING:
    import pandas as pd


def finished_trials(study: StudyRecord) -> list[TrialRecord]:
    """Return the trials that ended without a failure and whose run is at its end."""
    return [
        trial
        for trial in study.trials
        if trial.failure is None and trial.run is not None and trial.run.finished
    ]


def groups_of(study: StudyRecord) -> list[Group]:
    """Return the finished trials of each data, method and ε as one group over seeds.

    They are in the order of the study, each method's ε ascending and without privacy last.

    Raises:
        ValueError: If the sums by user of a trial do not add up to the headline of its run.
    """
    found: dict[tuple[str, str, float], list[TrialRecord]] = {}
    for trial in finished_trials(study):
        level = math.inf if trial.epsilon is None else trial.epsilon
        found.setdefault((trial.data, trial.method, level), []).append(trial)
    parts = list(dict.fromkeys(trial.data for trial in study.trials))
    methods = list(dict.fromkeys(trial.method for trial in study.trials))
    order = sorted(found, key=lambda key: (parts.index(key[0]), methods.index(key[1]), key[2]))
    groups = []
    for part, method, level in order:
        trials = sorted(found[part, method, level], key=lambda trial: trial.seed)
        groups.append(
            Group(
                runs=tuple(trial.run for trial in trials if trial.run is not None),
                label=f"{method}, ε = {level:g}"
                if math.isfinite(level)
                else f"{method}, not private",
                method=method,
                part=part,
                target=level,
                seconds=tuple(trial.seconds for trial in trials),
            )
        )
    return measured_by_user(groups)


def trial_rows(study: StudyRecord) -> list[dict[str, Any]]:
    """Return a row of JSON values for each trial, failed ones and those not yet run included.

    What names a trial comes first, then its headline and its gain; seconds come last.
    """
    rows = []
    for trial in study.trials:
        run, done = trial.run, trial.failure is None and trial.run is not None
        row: dict[str, Any] = {
            "key": trial.key,
            "method": trial.method,
            "data": trial.data,
            "target_epsilon": trial.epsilon,
            "seed": trial.seed,
            "state": _state(trial),
            "failure": trial.failure,
            "seconds": trial.seconds,
        }
        if done and run is not None:
            for measure in run.figures:
                row[measure.name] = run.reached(measure.name, run.diagnosed)
                row[measure.released_name] = run.reached(measure.released_name, run.released)
            row["gain"] = run.gain
            summary: Mapping[str, Any] = run.summary
            for name in ("epsilon", "delta", "noise_multiplier", "rounds"):
                row[f"{name}_spent" if name == "epsilon" else name] = summary.get(name)
        rows.append(row)
    first = ["key", "method", "data", "target_epsilon"]
    first += _headlines(trial.run for trial in study.trials if trial.run is not None)
    return _in_order(rows, [*first, "gain"])


def _headlines(runs: Iterable[RunRecord]) -> list[str]:
    """Return the names of the headline of each task: as a diagnostic, then released."""
    measures = dict.fromkeys(measure for run in runs for measure in run.figures[:1])
    return [name for one in measures for name in (one.name, one.released_name)]


def _in_order(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of the same names: the first ones, others as they come, and seconds last."""
    there = dict.fromkeys(name for row in rows for name in row)
    names = [*(name for name in first if name in there), *(n for n in there if n not in first)]
    names.sort(key=lambda name: name.startswith("seconds"))
    return [{name: row.get(name) for name in names} for row in rows]


def _state(trial: TrialRecord) -> str:
    if trial.failure is not None:
        return "failed"
    if trial.run is None:
        return "not run"
    return "finished" if trial.run.finished else "unfinished"


def results_frame(study: StudyRecord) -> pd.DataFrame:
    """Return one row for each data, method and target ε: means over seeds with their intervals.

    The ε spent, the headline and the gain come first. `.attrs["notes"]` says what ε does not cover,
    and what the intervals are.
    """
    need("pandas", "pandas", "a data frame")
    import pandas as pd

    groups = groups_of(study)
    left_out = ("name", "label", "runs", "method", "data", "target_epsilon")
    rows = [
        {name: value for name, value in row.items() if name not in left_out}
        for row in as_rows(groups)
    ]
    index = pd.MultiIndex.from_tuples(
        [(group.part, group.method, group.level) for group in groups],
        names=["data", "method", "epsilon_target"],
    )
    headlines = _headlines(run for group in groups for run in group.runs)
    values = ["epsilon", *headlines, "gain"]
    ordered = _in_order(rows, [*values, *(f"{name}_interval" for name in values)])
    frame = pd.DataFrame(ordered, index=index)
    spreads = dict.fromkeys(spread_note(section) for section in sections_of(groups))
    frame.attrs = {"notes": [*gaps(groups), *filter(None, spreads)]}
    return frame


def trials_frame(study: StudyRecord) -> pd.DataFrame:
    """Return one row for each trial, by key; failed ones have their reason."""
    need("pandas", "pandas", "a data frame")
    import pandas as pd

    return pd.DataFrame(trial_rows(study)).set_index("key")


def differences_frame(study: StudyRecord) -> pd.DataFrame:
    """Return the headline of each method less that of each other one at equal ε, with intervals.

    `interval_over` says whether users and seeds were resampled, or seeds alone; ε is infinite for
    pairs without privacy.
    """
    need("pandas", "pandas", "a data frame")
    import pandas as pd

    found = [d for section in sections_of(groups_of(study)) for d in paired_differences(section)]
    rows = [
        {
            "data": one.part,
            "epsilon": one.level,
            "first": one.first,
            "second": one.second,
            "difference": one.value,
            "low": one.low,
            "high": one.high,
            "seeds": one.seeds,
            "interval_over": one.clusters,
        }
        for one in found
    ]
    names = list(rows[0]) if rows else ["data", "epsilon", "first", "second", "difference"]
    return pd.DataFrame(rows, columns=pd.Index(names))
