"""Studies from Python: run, gone on with, forecast, and read as data frames."""

# pyright: reportMissingTypeStubs=false
# (pandas brings no stubs, and its frames are what callers get)

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedpriv.api.forecast import RoundCost, round_cost, timed_as
from fedpriv.api.result import Run, load
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Components, Settings
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.trials import Trials
from fedpriv.report.comparison.groups import public_counts
from fedpriv.rng import Key
from fedpriv.runs.loop import first_state
from fedpriv.runs.progress import ShowProgress, is_watched
from fedpriv.studies.grid import GridStudy
from fedpriv.studies.page import write_page
from fedpriv.studies.record import PAGE, StudyRecord
from fedpriv.studies.runner import run_study
from fedpriv.studies.search import Search
from fedpriv.studies.study import Resolver, Study, Trial, load_study, named_trial
from fedpriv.tasks.central import UsersExamples
from fedpriv.tree import Params
from fedpriv.untrusted_text import plain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """A study that was run. Made by `fedpriv.study`.

    Attributes:
        record: What its folder holds; None of a private search, of which the best run alone is
            ever shown.
        best: The run that a private search released; None of any other study.
    """

    record: StudyRecord | None = field(repr=False)
    best: Run | None = None

    @property
    def directory(self) -> Path:
        """The study's folder."""
        return self._record().directory

    @property
    def trials(self) -> pd.DataFrame:
        """One row a trial, failed ones included."""
        from fedpriv.studies.tables import trials_frame

        return trials_frame(self._record())

    @property
    def table(self) -> pd.DataFrame:
        """One row a method, ε and data: means over seeds with their intervals."""
        from fedpriv.studies.tables import results_frame

        return results_frame(self._record())

    @property
    def differences(self) -> pd.DataFrame:
        """One row a pair of methods at equal ε: the paired difference with its interval."""
        from fedpriv.studies.tables import differences_frame

        return differences_frame(self._record())

    @property
    def page(self) -> Path:
        """The page, one self-contained file."""
        return self.directory / PAGE

    def _record(self) -> StudyRecord:
        if self.record is None:
            raise ValueError(
                "a private search shows its best run alone (.best): neither how many trials there "
                "were, nor how they ended, is ever shown"
            )
        return self.record


def study(
    study: Study | str | Path,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    device: str | None = None,
    backend: str = "processes",
    ray_address: str | None = None,
    gpus_per_worker: float | None = None,
    retry_failed: bool = False,
    secure: bool = False,
    progress: ShowProgress = "auto",
) -> StudyResult:
    """Run every trial of a study that has not ended yet, and write its page.

    Interrupted or killed, the same call goes on: trials that ended are not run again, one that was
    under way is resumed.

    Args:
        study: A `Study`, a TOML file, or "path.py:name" of a study or a function that returns one.
        out: The study's folder; None for `studies/` and the study's name.
        workers: Trials at once, each on one core; None for one a core.
        device: Train on it, such as "cuda:0", one trial after the other in this process.
        backend: "processes" on this machine, or "ray": each trial a task of Ray's.
        ray_address: Of a running Ray cluster to join, whose machines share `out`.
        gpus_per_worker: Part of a GPU for each task of Ray's.
        retry_failed: Whether trials that failed are tried again; their charges stay.
        secure: Entropy from the operating system, for a private search alone: other studies are
            simulations, whose ε is that of each run by itself.
        progress: As for `fedpriv.run`; of a private search nothing is ever shown.

    Raises:
        ValueError: If something does not fit together, or the folder holds something else. A trial
            that fails is a row of the study, and raises nothing.
    """
    chosen = study if isinstance(study, Study) else load_study(study)
    folder = default_folder(chosen) if out is None else Path(out)
    if isinstance(chosen.search, Search) and chosen.search.private:
        if workers not in (None, 1) or backend != "processes" or device is not None:
            raise ValueError(
                "a private search runs its trials one after the other in this process; leave "
                "workers, backend and device out"
            )
        return StudyResult(record=None, best=load(private_search(chosen, secure).run(folder)))
    if secure:
        raise ValueError(
            "secure=True is for a private search alone: a study shows runs of many seeds, as a "
            "simulation may"
        )
    reference = None if isinstance(study, Study) else _from_anywhere(study)
    console = Console(stderr=True)
    watched = is_watched(console, progress)

    def tell(line: str) -> None:
        if watched:
            said = plain(line).replace("\n", " ")
            console.print(said, markup=False, highlight=False, soft_wrap=True)

    for text in Resolver(chosen).unlike() if watched else ():
        tell(f"Not like with like: {text}")
    record = run_study(
        chosen,
        folder,
        workers=workers,
        device=device,
        backend=backend,
        ray_address=ray_address,
        gpus_per_worker=gpus_per_worker,
        reference=reference,
        command=_command(study, out, device),
        retry_failed=retry_failed,
        tell=tell,
    )
    write_page(record, folder / PAGE)
    return StudyResult(record=record)


def private_search(study: Study, secure: bool) -> GridStudy:
    """Return the private selection that a study with a private search is.

    Raises:
        ValueError: If it has several methods, ε, data or seeds: one selection has one guarantee.
    """
    search = study.search
    assert isinstance(search, Search) and search.mean is not None
    resolver = Resolver(study)
    cells = list(resolver.cells())
    if len(cells) != 1 or len(study.each_seed) != 1:
        raise ValueError(
            "a private search is of one method, one ε, one data and one seed, and this study has "
            f"{len(cells)} of the first three and {len(study.each_seed)} seeds: showing the best "
            "of several searches would be a further choice"
        )
    [seed] = study.each_seed
    trial = resolver.trial(*cells[0], seed)
    return GridStudy(
        experiment=trial.experiment,
        reference=trial.reference,
        corpus=resolver.corpus_of(trial),
        grid={name: tuple(values) for name, values in search.space.items()},
        trials=Trials(mean=search.mean, shape=search.shape),
        measure=search.score,
        secure=secure,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellForecast:
    """Forecast of the trials of one method, ε and data.

    Attributes:
        method: Label.
        epsilon: Target; None without privacy.
        data: Label.
        trials: How many, those of a search included.
        rounds: Of one; None where the plan decides on the way.
        noise_multiplier: To which the noise is calibrated; None without noise, or where the plan
            decides on the way.
        cost: Of a round.
        public: Counts of its public data.
    """

    method: str
    epsilon: float | None
    data: str
    trials: int
    rounds: int | None
    noise_multiplier: float | None
    cost: RoundCost
    public: Mapping[str, Any]

    @property
    def minutes(self) -> float | None:
        """Minutes of all its trials one after the other, without evaluation; None if not known."""
        if self.rounds is None or self.cost.seconds is None:
            return None
        return self.trials * self.rounds * self.cost.seconds / 60

    @property
    def memory_bytes(self) -> int:
        """Bytes of a trial: arrays of the model and what a step keeps; data come on top."""
        cost = self.cost
        return cost.server_bytes + cost.worker_bytes + cost.frozen_bytes + cost.step_bytes


_NOT_RUN = "0" * 16  # key of a trial that is not run: its own would read the data


@dataclass(slots=True, kw_only=True)
class _Prepared:
    """What rows of a forecast on the same data share.

    Attributes:
        data: Label.
        tasks: By what is equal for equal ones.
        chosen: Settings of a method, by label; at which ε does not matter for what was measured.
        timed: Params and cost of a method, by label.
    """

    data: str | None = None
    tasks: dict[str, Any] = field(default_factory=dict[str, Any])
    chosen: dict[str, Settings | None] = field(default_factory=dict[str, Any])
    timed: dict[str, tuple[Params, RoundCost]] = field(default_factory=dict[str, Any])

    def of(self, resolver: Resolver, trial: Trial, *, timed: bool) -> tuple[Components, RoundCost]:
        """Return the components of a trial, and what a round of it takes."""
        corpus, experiment, method = resolver.corpus_of(trial), trial.experiment, trial.method
        key = resolver.task_key(experiment, corpus)
        made = build(experiment, corpus, self.tasks.get(key), self.chosen.get(method))
        task = made.task
        self.tasks[key] = task.users if isinstance(task, UsersExamples) else task
        self.chosen[method] = made.settings or self.chosen.get(method)
        if method not in self.timed:
            seed = (made.experiment or experiment).seed
            params = first_state(made, Key.simulation(seed)).params
            self.timed[method] = params, round_cost(made, params, timed=timed)
            return made, self.timed[method][1]
        params, cost = self.timed[method]
        return made, timed_as(round_cost(made, params, timed=False), cost)


def forecast_study(study: Study, *, timed: bool = True) -> list[CellForecast]:
    """Return what the trials of a study would take; nothing is charged, trained to an end or kept.

    Each task is made once, and each method is timed once on each data, by training a few users.

    Args:
        study: The study.
        timed: Whether some rostered users' data may be trained on, for the time alone.

    Raises:
        ValueError: If a trial does not fit together.
    """
    resolver = Resolver(study)
    found: list[CellForecast] = []
    search = study.search if isinstance(study.search, Search) else None
    before = _Prepared()
    settings, seed = None if search is None else search.middle, study.each_seed[0]
    trials = [  # all of them before any data are read
        (data, resolver.trial(method, epsilon, data, seed, settings, key=_NOT_RUN))
        for method, epsilon, data in resolver.cells()
    ]
    for data, trial in trials:
        if before.data != data:
            before = _Prepared(data=data)
        with named_trial(trial.method, data):
            components, cost = before.of(resolver, trial, timed=timed)
        plan = components.plan
        noise = None
        if isinstance(plan, Plan) and plan.is_private:
            noise = getattr(plan.live_mechanism, "noise_multiplier", None)
        found.append(
            CellForecast(
                method=trial.method,
                epsilon=trial.epsilon,
                data=data,
                trials=len(study.each_seed) + ((search.trials or 0) if search else 0),
                rounds=plan.affordable_rounds,
                noise_multiplier=noise,
                cost=cost,
                public=public_counts(components.task.describe().to_json()),
            )
        )
    return found


def default_folder(study: Study) -> Path:
    """Return the folder of a study for which none was named."""
    return Path("studies") / (re.sub(r"[^\w.-]+", "-", study.name).strip("-.") or "study")


def _from_anywhere(study: str | Path) -> str:
    where, separator, function = str(study).rpartition(":")
    path = Path(where if separator else str(study)).expanduser()
    if separator and path.suffix != ".py":
        return str(study)
    return f"{path.absolute()}{separator}{function if separator else ''}"


def _command(study: Any, out: Any, device: str | None) -> Sequence[str]:
    """Return the command that repeats a study; empty for one that was made in Python."""
    if isinstance(study, Study):
        return ()
    more = [] if out is None else ["--out", str(out)]
    return ["fedpriv", "study", str(study), *more, *(["--device", device] if device else [])]
