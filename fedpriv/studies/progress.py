"""Progress of a study: a line when it begins, and one for each trial that ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.tensor_files import PUBLIC_MODELS
from fedpriv.measures import figures_of, read_measures
from fedpriv.runs.progress import minutes
from fedpriv.studies.record import RUNS
from fedpriv.studies.study import Trial

Row = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Progress:
    """Progress of a study.

    Attributes:
        out: The study's folder.
        ended: Rows of the trials that ended, by key.
        workers: How many run side by side.
        trials: Trials that are known so far, in the order of the study; of a search its own too.
    """

    out: Path
    ended: dict[str, Row]
    workers: int
    trials: list[Trial] = field(default_factory=list[Trial])

    def begun(self) -> str:
        """Return the line of a study that begins."""
        keys = {trial.key for trial in self.trials}
        done = sum(key in self.ended for key in keys)
        before = f", {done} of them done before" if done else ""
        where = f"{self.workers} at once" if self.workers > 1 else "one after the other"
        return f"{len(keys)} trials{before}; {len(keys) - done} to run, {where}"

    def line(self, trial: Trial) -> str:
        """Return the line of a trial that ended."""
        keys, row = {one.key for one in self.trials}, self.ended[trial.key]
        how = f"FAILED: {row['failure']}"
        if row["failure"] is None:
            how = f"{_headline(self.out / RUNS / trial.key)}{row['seconds']:.1f} s"
        left = self._seconds_left()
        then = f"; about {minutes(left)} left" if left else ""
        return f"{sum(key in self.ended for key in keys)} of {len(keys)}: {trial}: {how}{then}"

    def _seconds_left(self) -> float | None:
        """Estimate the time left by what trials of the same method took; None if not known."""
        times: dict[str, list[float]] = {}
        for trial in self.trials:
            row = self.ended.get(trial.key)
            if row is not None and row["failure"] is None:
                times.setdefault(trial.method, []).append(float(row["seconds"]))
        every = [seconds for some in times.values() for seconds in some]
        if not every:
            return None
        left = {trial.key: trial.method for trial in self.trials if trial.key not in self.ended}
        needed = sum(sum(of) / len(of) for of in (times.get(m, every) for m in left.values()))
        return needed / max(1, min(self.workers, len(left) or 1))


def _headline(run: Path) -> str:
    """Return what a finished run reached, and whether public data alone made its model."""
    file = run / "summary.json"
    summary: Mapping[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    for measure in figures_of(read_measures(summary))[:1]:
        for name in (measure.name, measure.released_name):
            if (value := summary.get(name)) is not None:
                public = (summary.get("selection") or {}).get("selected") in PUBLIC_MODELS
                model = " (this is the public model)" if public else ""
                return f"{measure.label} {measure.text(float(value))}{model}, "
    return ""
