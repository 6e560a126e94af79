"""Runs the trials of a study: in this process, in worker processes or on Ray, each of them once.

What ended is in `trials.jsonl`, found again by its key; what was under way when the command was
killed is in its run folder, and is gone on with. So the same command goes on with a study wherever
it was killed, and a study whose file was changed runs what is new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv import __version__, json_lines
from fedpriv.backends.ray.cluster import Request
from fedpriv.checkpoints.tensor_files import PUBLIC_MODELS
from fedpriv.experiments.options import Option
from fedpriv.measures import figures_of, read_measures
from fedpriv.mechanisms.event import Event
from fedpriv.privacy.accounting import epsilon_of
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.plan import Plan
from fedpriv.report.head import counted
from fedpriv.report.run_record import RunRecord, read_run
from fedpriv.runs.document import library_versions, write_json
from fedpriv.runs.noise_root import NOISE
from fedpriv.runs.progress import minutes
from fedpriv.studies.executors import Here, Processes, RayTasks
from fedpriv.studies.grid import released_measure
from fedpriv.studies.record import (
    DOCUMENT,
    ENDED,
    FORMAT,
    LOCK,
    RUNS,
    StudyRecord,
    earlier_trials,
    held,
    name_trials,
    read_study,
)
from fedpriv.studies.search import Search
from fedpriv.studies.study import Resolver, Study, Trial
from fedpriv.training.devices import usable_cores, usable_device
from fedpriv.training.stopping import interruptible

#: What a command that was killed before its first trial may have left.
_BEFORE = {LOCK, f".{DOCUMENT}.part"}
_LONGEST_REASON = 500

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


def run_study(
    study: Study,
    out: Path,
    *,
    workers: int | None = None,
    device: str | None = None,
    backend: str = "processes",
    ray_address: str | None = None,
    gpus_per_worker: float | None = None,
    reference: str | None = None,
    command: Sequence[str] = (),
    retry_failed: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> StudyRecord:
    """Run what of a study has not ended yet, and return all of it.

    Args:
        study: The study; none with a private search (`run_private`).
        out: Its folder; one that holds a study is gone on with.
        workers: Trials at once; None for one a core, and for 1 on a device.
        device: Train on it, such as "cuda:0", one trial after the other in this process.
        backend: "processes" on this machine, or "ray": each trial a Ray task.
        ray_address: Of a running Ray cluster to join; its machines share the folder.
        gpus_per_worker: Part of a GPU for each Ray task.
        reference: The study's file, by which Ray's workers find it.
        command: What repeats the study, for its page.
        retry_failed: Whether trials that failed are tried again.
        tell: Called with a line that says how far it is.

    Guarantees:
        * A trial that ended is not run again, whatever else changes in the study, unless its folder
          was removed.
        * A trial that raises, or whose process dies, is a row with the reason; others go on.
        * The bits of a trial depend neither on the number of workers nor on what else is run. One
          that was killed in the middle of a round has lost that attempt, which stays charged.

    Raises:
        ValueError: If the study does not fit together, the folder holds something else or another
            process runs it. No trial is begun then.
    """
    if isinstance(study.search, Search) and study.search.private:
        raise ValueError(
            "a private search shows nothing of its trials and has no table; run it by `fedpriv "
            "study`, fedpriv.study or `fedpriv tune`"
        )
    workers = _checked_workers(workers, device, backend)
    resolver = Resolver(study)
    _check_folder(out)
    with interruptible(), held(out), ExitStack() as stack:
        file = out / ENDED
        json_lines.cut_torn_line(file)
        # One whose run folder was removed since is run again, as if it had never ended.
        rows = {str(row["key"]): row for row in json_lines.read(file)}
        ended = {
            key: row
            for key, row in rows.items()
            if row["failure"] is not None or (out / RUNS / key).is_dir()
        }
        if retry_failed:
            ended = {key: row for key, row in ended.items() if row["failure"] is None}
        progress = Progress(out=out, ended=ended, workers=workers)
        batches = [_Batch(one) for one in _searches(resolver, out, ended)]

        def go_on() -> None:
            known = len(progress.trials)
            for batch in batches:
                batch.go_on(progress)
            if len(progress.trials) > known:  # a search knows those of its table at its end alone
                searching = isinstance(study.search, Search)
                _write(study, out, command, [] if searching else progress.trials)

        go_on()
        tell(progress.begun())
        executor: Here | Processes | RayTasks
        if backend == "ray":
            share = gpus_per_worker or 0.0
            asked = Request(workers=workers or None, address=ray_address, gpus_per_worker=share)
            executor = RayTasks(reference, out, asked, stack)
        elif device is not None or workers == 1:
            executor = Here(out, device)
        else:
            executor = Processes(resolver, out, workers, stack)
        under_way: dict[str, Trial] = {}
        while True:
            waiting = _waiting(batches, ended, under_way)
            while executor.num_free and (trial := next(waiting, None)) is not None:
                under_way[trial.key] = trial
                executor.submit(trial)
            if not under_way:
                break
            for key, (seconds, reason) in executor.wait(1.0):
                trial = under_way.pop(key)
                failure = reason and " ".join(reason.split())[:_LONGEST_REASON]
                ended[key] = {**trial.row, "seconds": seconds, "failure": failure}
                json_lines.append(file, ended[key])
                go_on()
                tell(progress.line(trial))
        results = [batch.result for batch in batches if batch.result is not None]
        trials = [trial for one in results for trial in one.trials]
        trials.sort(key=lambda trial: study.each_seed.index(trial.seed))
        tried = [
            {**trial.row, "options": dict(trial.searched), "score": score}
            for one in results
            for trial, score in one.tried
        ]
        _write(study, out, command, trials, _privacy(study, out, results), tried)
    return read_study(out)


def _waiting(
    batches: Iterable[_Batch], ended: Mapping[str, Row], under_way: Mapping[str, Trial]
) -> Iterator[Trial]:
    """Yield trials that can be begun."""
    for batch in batches:
        for trial in batch.trials:
            if trial.key not in ended and trial.key not in under_way:
                yield trial


Batches = Generator[list[Trial], None, "Searched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """Outcome of one method, ε and data.

    Attributes:
        trials: Those of the study's table.
        tried: Those of the search, each with its score.
    """

    trials: list[Trial]
    tried: list[tuple[Trial, float | None]] = field(default_factory=list[Any])


def _searches(resolver: Resolver, out: Path, ended: Mapping[str, Row]) -> list[Batches]:
    """Return what is run, as batches of trials that must end before the next one is known."""
    study = resolver.study
    if not isinstance(study.search, Search):
        return [_all_at_once(resolver.trials())]
    return [
        _searched(resolver, study.search, out, ended, *cell)  # one after the other within a cell
        for cell in resolver.cells()
    ]


def _all_at_once(trials: list[Trial]) -> Batches:
    yield trials
    return Searched(trials=trials)


def _searched(
    resolver: Resolver,
    search: Search,
    out: Path,
    ended: Mapping[str, Row],
    method: str,
    epsilon: float | None,
    data: str,
) -> Batches:
    first = resolver.trial(method, epsilon, data, search.seed, search.middle)
    facts = resolver.facts(first.experiment, resolver.corpus_of(first))
    measure = released_measure(facts.measures, search.score, facts.equal)
    suggested = search.suggestions(measure)
    tried: list[tuple[Trial, float | None]] = []
    chosen: dict[str, Option] | None = None
    try:
        options = next(suggested)
        while True:
            batch = [resolver.trial(method, epsilon, data, search.seed, one) for one in options]
            yield batch
            scores = [_score(out, trial, ended, measure.released_name) for trial in batch]
            tried += zip(batch, scores, strict=True)
            options = suggested.send(scores)
    except StopIteration as over:
        chosen = over.value
    if chosen is None:
        return Searched(trials=[], tried=tried)
    trials = [
        resolver.trial(method, epsilon, data, seed, chosen) for seed in resolver.study.each_seed
    ]
    yield trials
    return Searched(trials=trials, tried=tried)


def _score(out: Path, trial: Trial, ended: Mapping[str, Row], name: str) -> float | None:
    """Return the released value of a trial; None where it failed."""
    if ended[trial.key]["failure"] is not None:
        return None
    value = read_run(out / RUNS / trial.key).summary.get(name)
    return None if value is None else float(value)


class _Batch:
    """Trials of one search that are known, and what follows when they have ended."""

    def __init__(self, source: Batches) -> None:
        self._source = source
        self.trials: list[Trial] = []
        self.result: Searched | None = None

    def go_on(self, progress: Progress) -> None:
        """Take what is known to be next, as long as all that was known has ended."""
        while self.result is None and all(trial.key in progress.ended for trial in self.trials):
            try:
                self.trials = next(self._source)
            except StopIteration as over:
                self.result = over.value
                self.trials = []
                return
            progress.trials += self.trials


def _write(
    study: Study,
    out: Path,
    command: Sequence[str],
    trials: Sequence[Trial],
    privacy: Sequence[str] = (),
    tried: Sequence[Row] = (),
) -> None:
    """Write `study.json`: the study with the trials of its table, and what a search tried."""
    rows = [
        {**trial.row, **({"options": dict(trial.searched)} if trial.searched else {})}
        for trial in trials
    ]
    document = {
        "format": FORMAT,
        **study.document(),
        "command": list(command),
        "versions": {"fedpriv": __version__, **library_versions()},
        "privacy": list(privacy),
        "trials": rows,
        "searched": list(tried),
    }
    write_json(out / DOCUMENT, document)


def _privacy(study: Study, out: Path, results: Sequence[Searched]) -> list[str]:
    """Return what the ε of a study's rows do not say: there are several runs on the same users."""
    finals = {trial.key: trial for one in results for trial in one.trials}
    tried = {trial.key: trial for one in results for trial, _ in one.tried}
    private = [trial for trial in (tried | finals).values() if trial.epsilon is not None]
    earlier = [one for one in earlier_trials(out, tried | finals) if one.epsilon is not None]
    if not private and not earlier:
        return []
    said = [
        f"The ε of a row is that of one run. {len(private)} private runs on the same users are "
        "shown or compared here, as a simulation may: on real users the ε of all runs together "
        "counts."
    ]
    if earlier:
        said.append(
            f"{counted(len(earlier), 'more private run')}, of earlier versions of the study, "
            f"stayed in its folder and {'is' if len(earlier) == 1 else 'are'} not shown: "
            f"{name_trials(earlier)}. Their ε is part of what was spent on these users."
        )
    search = study.search
    if not isinstance(search, Search):
        return said
    names = ", ".join(search.space)
    said.append(
        f"{names} {'was' if len(search.space) == 1 else 'were'} chosen for each method, ε and data "
        f"among {search.trials} runs (sampler {search.sampler}) by a released value on public "
        "examples. The score is public; the runs that it compares were trained on the users, so "
        "the ε of a row does not cover the choice."
    )
    if not search.compose:
        return said
    for data in study.data:
        some = [trial for trial in private if trial.data == data]
        if some:
            runs = [
                read_run(out / RUNS / trial.key)
                for trial in some
                if (out / RUNS / trial.key / "experiment.json").is_file()
            ]
            rosters = {_roster(run) for run in runs}
            before = [one.run for one in earlier if one.run and _roster(one.run) in rosters]
            where = f" on {data}" if data else ""
            also = f", {len(before)} of earlier versions included," if before else ""
            said.append(
                f"All {len(some) + len(before)} private runs{where}{also} together: "
                f"{_composed([*runs, *before])}."
            )
    return said


def _roster(run: RunRecord) -> str | None:
    return run.state.plan.roster_sha256


def _composed(runs: Sequence[RunRecord]) -> str:
    """Return the ε of several runs together, in words."""
    try:
        return str(composed(runs))
    except ValueError as error:
        return f"no accountant composes them ({error})"


def composed(runs: Sequence[RunRecord]) -> Epsilon:
    """Return the ε of all charges of several runs on the same roster together.

    δ is the smallest of theirs. Lost attempts count.

    Raises:
        ValueError: If they are of several rosters or relations, if two of them draw the same
            cohorts, so that what they cost is more than what both events say, or if no accountant
            composes them.
    """
    plans = [run.state.plan for run in runs]
    fixed = [plan for plan in plans if isinstance(plan, Plan)]
    if not runs or len(fixed) < len(plans):
        raise ValueError("some plans decide their prices on the way")
    if any(plan.trials is not None for plan in fixed):
        raise ValueError("some are trials of a study, whose ε is of the whole study")
    about = {(plan.relation, plan.roster_sha256, plan.unit) for plan in fixed}
    if len(about) > 1:
        raise ValueError("they are of several rosters, relations or units")
    draws = [
        (run.options.get("seed"), run.state.extra[NOISE])
        for run in runs
        if NOISE in run.state.extra
    ]
    if len(set(draws)) < len(draws):
        raise ValueError("two of them draw the same cohorts; give one another seed")
    charges: dict[Event, int] = {}
    for run in runs:
        for charge in run.state.charges:
            charges[charge.event] = charges.get(charge.event, 0) + 1
    deltas = [plan.delta for plan in fixed if plan.delta is not None]
    return epsilon_of(
        list(charges.items()), delta=min(deltas, default=0.0), relation=fixed[0].relation
    )


def _checked_workers(workers: int | None, device: str | None, backend: str) -> int:
    """Return how many trials run at once; 0 for as many as Ray has room for.

    Raises:
        ValueError: If what was asked does not fit together.
    """
    if backend not in ("processes", "ray"):
        raise ValueError(f"backend {backend!r} of a study is not known; use 'processes' or 'ray'")
    if workers is not None and workers < 1:
        raise ValueError(f"workers {workers} must be at least 1")
    if device is not None:
        usable_device(device)
        if backend == "ray":
            raise ValueError(f"device {device!r} is of this process; Ray hands out GPUs itself")
        if workers not in (None, 1):
            raise ValueError(
                f"workers {workers} on device {device!r}: trials on a device run one after the "
                "other; leave one of the two out"
            )
        return 1
    if backend == "ray":
        return workers or 0
    return usable_cores() if workers is None else workers


def _check_folder(out: Path) -> None:
    """Refuse a folder of something else.

    Raises:
        ValueError: If it is one.
    """
    if (out / DOCUMENT).is_file():
        if json.loads((out / DOCUMENT).read_text("utf-8")).get("format") != FORMAT:
            raise ValueError(
                f"{out} holds something else than a study's trials; give another folder"
            )
    elif out.exists() and not {path.name for path in out.iterdir()} <= _BEFORE:
        raise ValueError(f"{out} holds files and no study; give another folder")
