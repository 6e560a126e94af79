"""Progress of a study: a live table in a terminal, a line for each trial elsewhere."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedpriv.checkpoints.tensor_files import PUBLIC_MODELS
from fedpriv.measures import figures_of, read_measures
from fedpriv.privacy.epsilon import target_label
from fedpriv.runs.progress import ShowProgress, is_watched, minutes, moves
from fedpriv.studies.record import RUNS
from fedpriv.studies.runner import Progress, Show
from fedpriv.studies.study import Trial
from fedpriv.untrusted_text import plain

_MOST_RUNNING = 8


@contextmanager
def progress_display(console: Console, out: Path, progress: ShowProgress) -> Iterator[Show | None]:
    """Yield what displays progress on a console; None where nothing is to be displayed."""
    if not is_watched(console, progress):
        yield None
    elif moves(console):
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            yield _Table(live, out)
    else:
        yield _Lines(console, out)


class _Values:
    """The headline of each finished trial, read once."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._found: dict[str, tuple[str, float | None, str, bool]] = {}

    def of(self, key: str) -> tuple[str, float | None, str, bool]:
        """Return the headline's label, its value, that as text, and whether public data made it."""
        if key not in self._found:
            self._found[key] = self._read(key)
        return self._found[key]

    def _read(self, key: str) -> tuple[str, float | None, str, bool]:
        file = self._out / RUNS / key / "summary.json"
        summary = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        measures = figures_of(read_measures(summary))
        public = (summary.get("selection") or {}).get("selected") in PUBLIC_MODELS
        for measure in measures[:1]:
            for name in (measure.name, measure.released_name):
                value = summary.get(name)
                if value is not None:
                    return measure.label, float(value), measure.text(float(value)), public
        return "", None, "–", public


class _Lines:
    """A line for each trial that ended."""

    def __init__(self, console: Console, out: Path) -> None:
        self._console, self._values, self._begun = console, _Values(out), False

    def update(self, progress: Progress) -> None:
        """Say once what there is to do."""
        if not self._begun:
            self._begun = True
            self._say(_head(progress))

    def ended(self, trial: Trial, row: Mapping[str, Any], progress: Progress) -> None:
        """Say how a trial ended."""
        self._say(f"{progress.num_done} of {len(progress.keys)}: {trial}: {self._how(trial, row)}"
                  f"{_left(progress)}")  # fmt: skip

    def _how(self, trial: Trial, row: Mapping[str, Any]) -> str:
        if row["failure"] is not None:
            return f"FAILED: {row['failure']}"
        label, value, text, public = self._values.of(trial.key)
        model = " (this is the public model)" if public else ""
        measured = "" if value is None else f"{label} {text}{model}, "
        return f"{measured}{row['seconds']:.1f} s"

    def _say(self, line: str) -> None:
        text = plain(line).replace("\n", " ")
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Table:
    """A table of methods × ε: the mean so far, and how many trials it is of."""

    def __init__(self, live: Live, out: Path) -> None:
        self._live, self._values = live, _Values(out)

    def update(self, progress: Progress) -> None:
        """Draw the table."""
        self._live.update(self._drawn(progress))

    def ended(self, trial: Trial, row: Mapping[str, Any], progress: Progress) -> None:
        """Draw the table."""
        self.update(progress)

    def _drawn(self, progress: Progress) -> Group:
        finals = [trial for trial in progress.trials if not trial.searched] or progress.trials
        levels = sorted({t.epsilon for t in finals}, key=lambda e: float("inf") if e is None else e)
        several = len({trial.data for trial in finals}) > 1
        table = Table(box=None, pad_edge=False)
        for name in ("method", *(["data"] if several else [])):
            table.add_column(name)
        for level in levels:
            head = target_label(level)
            table.add_column(head, justify="right")
        rows = dict.fromkeys((trial.method, trial.data) for trial in finals)
        for method, data in rows:
            of = [trial for trial in finals if (trial.method, trial.data) == (method, data)]
            cells = [self._cell([t for t in of if t.epsilon == e], progress) for e in levels]
            table.add_row(escape(method), *([escape(data)] if several else []), *cells)
        running = [
            Text(f"  {trial}: {_round(progress.running[trial.key])}", style="dim")
            for trial in {t.key: t for t in progress.trials}.values()
            if trial.key in progress.running
        ]
        failed = [
            Text(f"  failed: {trial}: {row['failure']}", style="red")
            for trial in finals
            if (row := progress.ended.get(trial.key)) is not None and row["failure"] is not None
        ]
        passed = time.monotonic() - progress.started
        head = f"{progress.num_done} of {len(progress.keys)} trials, {minutes(passed)} so far"
        return Group(
            Text(head + _left(progress)), table, *failed[:_MOST_RUNNING], *running[:_MOST_RUNNING]
        )

    def _cell(self, trials: list[Trial], progress: Progress) -> str:
        done = [t for t in trials if t.key in progress.ended]
        values = [self._values.of(t.key) for t in done]
        known = [value for _, value, *_ in values if value is not None]
        count = f"[dim]{len(done)}/{len(trials)}[/]"
        if not trials:
            return ""
        if not known:
            return count
        share = all(text.endswith("%") for _, value, text, _ in values if value is not None)
        mean = statistics.fmean(known)
        return f"{mean:.1%} {count}" if share else f"{mean:.4g} {count}"


def _head(progress: Progress) -> str:
    number, left = len(progress.keys), len(progress.keys) - progress.num_done
    before = f", {progress.reused} of them done before" if progress.reused else ""
    where = f"{progress.workers} at once" if progress.workers > 1 else "one after the other"
    return f"{number} trials{before}; {left} to run, {where}"


def _left(progress: Progress) -> str:
    seconds = progress.seconds_left
    return f"; about {minutes(seconds)} left" if seconds else ""


def _round(news: Mapping[str, Any]) -> str:
    if "round" not in news:
        return "preparing"
    return f"round {news['round']}" + (f" of {news['rounds']}" if news.get("rounds") else "")
