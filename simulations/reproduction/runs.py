"""Runs: what is trained for a table or figure, and which settings win."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from fedpriv.experiments.averaging import CentralExperiment, FederatedExperiment
from fedpriv.experiments.build import build, make_task
from fedpriv.experiments.experiment import Experiment
from fedpriv.hashes import document_sha256
from fedpriv.measures import Measure
from fedpriv.privacy.statement.coverage import coverage
from fedpriv.rng import Key
from fedpriv.runs.backends import serial, serial_on
from fedpriv.runs.loop import rounds
from fedpriv.runs.progress import Pace
from fedpriv.runs.records import measured
from fedpriv.studies.pool import Answer, Pool, failure
from fedpriv.training.stopping import end_if_interrupted
from simulations.reproduction.items import TUNING_SEED, Cell, Settings, Split, Table
from simulations.reproduction.study import on_device

Done = Mapping[str, dict[str, Any]]
# Between two lines about a run under way; most runs are shorter.
_REPORT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run to be done, or done.

    Attributes:
        experiment: What is trained.
        split: What it is measured on.
        seed: Takes the place of the experiment's own.
        reduced: Whether it is of the size that takes minutes.
        curve: Steps between the measurements of a curve; 0 for none.
    """

    experiment: Experiment = field(repr=False)
    split: Split
    seed: int
    reduced: bool
    curve: int = 0

    @property
    def identity(self) -> str:
        """Key of the run: digest of all options, the split, the size and the seed."""
        described = {"name": self.experiment.name, **self.experiment.options()}
        described |= {"seed": self.seed, "split": self.split, "reduced": self.reduced}
        described |= {"curve": self.curve}
        return document_sha256(described)[:16]

    def __str__(self) -> str:
        """Label of the run: name, split, seed and every option that is not a default."""
        values = self.experiment.options() | dict.fromkeys(self.experiment.automatic, "automatic")
        changed = [
            f"{entry.path} {values[entry.path]}"
            for entry in self.experiment.entries()
            if entry.path not in ("seed", "eval_every") and values[entry.path] != entry.default
        ]
        size = ", reduced" if self.reduced else ""
        text = f"{self.experiment.name} on {self.split}, seed {self.seed}{size}"
        return f"{text} ({', '.join(changed)})" if changed else text


def perform(run: Run, device: str | None = None) -> dict[str, Any]:
    """Train to the end and return the figures of the last model, with its ε and what it is of.

    A run of minutes says on stderr how far it is. What is measured is the test set, of users their
    own held-out examples; then there is also the headline figure of public users. A run with a
    curve also gives `"curve": [[step, ...], ...]`, the last step included, with a figure for each
    of the measures that `"curve_of"` names.

    Args:
        run: What is trained.
        device: Where, as `fedpriv run --device`; the figures are the same to rounding, and so is
            the run's identity. The row names it.
    """
    started = time.perf_counter()
    experiment = run.experiment.with_options({"seed": run.seed})
    components = build(experiment)
    make = serial if device is None else serial_on(device)
    backend, task = make(experiment, components), components.task.describe().to_json()
    measures = components.task.measures
    of_users = components.plan.unit == "user"
    steps = components.plan.planned_rounds
    if steps is None:
        raise ValueError(
            f"{experiment.name} has an adaptive plan, which plans no number of steps; run it "
            "by `fedpriv run`"
        )
    last, seen, curve = None, None, []
    pace, reported = Pace(steps, of="steps"), started
    played = rounds(
        components, backend, Key.simulation(run.seed), eval_every=steps, ends_if_all_fail=False
    )
    for record, state in played:
        step = record.released.round_num
        if step == steps or (run.curve and step % run.curve == 0):
            seen = backend.evaluate(components.algorithm.measured(state), public=not of_users)
            curve.append([step, *measured(measures, seen).values()])
        last, pace.done = record, step
        if (now := time.perf_counter()) - reported > _REPORT_SECONDS:
            pace.say(str(run))
            reported = now
    assert last is not None and last.diagnostics is not None
    baselines = {
        **{m.released_name: last.released.measured[m.name] for m in measures[:1]},
        "failed_in_last_round": last.diagnostics.num_failed,
    }
    names = [measure.name for measure in measures]
    spent = components.plan.epsilon(steps)
    side = components.side_information
    covered = coverage(
        components.plan,
        corpus=task,
        side_information=side and {"source": side.source, "description": side.description},
        options=experiment.options(),
    )
    return {
        "identity": run.identity,
        "experiment": experiment.name,
        "data": task["name"],
        "synthetic": task["synthetic"],
        "split": run.split,
        "reduced": run.reduced,
        "seed": run.seed,
        "options": experiment.options(),
        **measured(measures, seen),
        **(baselines if of_users else {}),
        **({"curve": curve, "curve_of": names} if run.curve else {}),
        **on_device(device),
        **spent.to_json(),
        "noise_multiplier": components.plan.live_mechanism.noise_multiplier,
        "side_information": side and side.source,
        "not_covered": list(covered.not_covered),
        "steps": steps,
        "seconds": round(time.perf_counter() - started, 2),
    }


def synthetic_data(runs: Iterable[Run]) -> list[str]:
    """Return the names of the data of these runs that are synthetic, each once.

    One task of each experiment's name is made, which opens its data; nothing is trained.
    """
    experiments = {run.experiment.name: run.experiment for run in runs}
    tasks = [make_task(experiment, None).describe() for experiment in experiments.values()]
    return list(dict.fromkeys(task.name for task in tasks if task.synthetic))


def tuning_runs(table: Table, *, reduced: bool) -> Iterator[Run]:
    """Yield the runs that choose settings: every setting of every cell that has a choice."""
    for row in table.rows:
        for cell in map(_tuned, row.cells.values()):
            if len(cell.grid) > 1:
                yield from runs_of_grid(cell, reduced=reduced)


def runs_of_grid(cell: Cell, *, reduced: bool) -> Iterator[Run]:
    """Yield the tuning runs of a cell's own grid, one a setting."""
    made = cell.make("validation", reduced)
    for settings in cell.grid:
        experiment = made.with_options(settings)
        yield Run(experiment=experiment, split="validation", seed=TUNING_SEED, reduced=reduced)


def final_runs(table: Table, done: Done, *, seeds: Sequence[int], reduced: bool) -> Iterator[Run]:
    """Yield the runs that a table or figure reports, in the settings that tuning chose.

    Raises:
        ValueError: If a cell has not been tuned.
    """
    for row in table.rows:
        for cell in row.cells.values():
            yield from _reported(table, cell, done, seeds=seeds, reduced=reduced)


def best(table: Table, cell: Cell, done: Done, *, reduced: bool) -> Settings:
    """Return the settings with the best figure on the validation split, the first of equals.

    Raises:
        ValueError: If some were not run.
    """
    if cell.tuned_as is not None:
        return cell.adapt(best(table, cell.tuned_as, done, reduced=reduced))
    if len(cell.grid) == 1:
        return cell.grid[0]
    worths: list[float] = []
    for settings, run in zip(cell.grid, runs_of_grid(cell, reduced=reduced), strict=True):
        if run.identity not in done:
            raise ValueError(f"{table.name}: {dict(settings)} was not run; tune it first")
        worths.append(worth(table, done[run.identity]))
    return cell.grid[worths.index(max(worths))]


def worth(table: Table, row: Mapping[str, Any]) -> float:
    """Return a run's figure, the higher the better; -∞ where it diverged."""
    return table.measure.worth(row[table.measure.name])


def curve_of(row: Mapping[str, Any], measure: Measure) -> list[tuple[int, float | None]]:
    """Return the points of a run's curve of a measure: step and figure."""
    where = 1 + row["curve_of"].index(measure.name)
    return [(point[0], point[where]) for point in row["curve"]]


def reported_runs(
    table: Table, done: Done, *, seeds: Sequence[int], reduced: bool
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the reported rows of every cell, one a seed, by label and column.

    Raises:
        ValueError: If one is missing.
    """
    found = {}
    for row in table.rows:
        for column, cell in row.cells.items():
            rows = found[row.label, column] = []
            for run in _reported(table, cell, done, seeds=seeds, reduced=reduced):
                if run.identity not in done:
                    raise ValueError(
                        f"{table.name}: a run of seed {run.seed} is missing; run it first"
                    )
                rows.append(done[run.identity])
    return found


def _tuned(cell: Cell) -> Cell:
    """Return the cell whose tuning a cell's settings come from."""
    return cell if cell.tuned_as is None else _tuned(cell.tuned_as)


def _reported(
    table: Table, cell: Cell, done: Done, *, seeds: Sequence[int], reduced: bool
) -> Iterator[Run]:
    settings = best(table, cell, done, reduced=reduced)
    made = cell.make("test", reduced).with_options(settings)
    curve = math.ceil(_num_steps(made) / table.points) if table.points else 0
    for seed in seeds:
        chosen = made.with_options({"seed": seed})
        yield Run(experiment=chosen, split="test", seed=seed, reduced=reduced, curve=curve)


def _num_steps(experiment: Experiment) -> int:
    if isinstance(experiment, FederatedExperiment):
        return experiment.rounds
    assert isinstance(experiment, CentralExperiment)
    # Only the data know how many steps so many epochs are.
    return experiment.steps or experiment.num_steps(make_task(experiment, None).num_train)


def performed(
    todo: Sequence[Run], processes: int, device: str | None = None
) -> Generator[dict[str, Any], None, None]:
    """Do runs and yield the row of each as it ends; closing the generator ends every worker.

    Args:
        todo: The runs.
        processes: How many at once; 1 does them in this process.
        device: As of `perform`.

    Raises:
        ChildProcessError: If a worker died; names its run. Rows that had ended were yielded.
        ValueError: If a run raised one; names the run.
        RuntimeError: If a run raised anything else; names the run, with the worker's traceback.
    """
    if processes == 1:
        for run in todo:
            try:
                row = perform(run, device)
            except Exception as error:
                end_if_interrupted(error)
                refused, text, _ = failure(error)
                raise (ValueError if refused else RuntimeError)(f"{text}; in {run}") from error
            yield row
        return
    positions = iter(range(len(todo)))
    failed: Exception | None = None
    with Pool(lambda position: perform(todo[position], device), processes) as pool:
        while True:
            while failed is None and pool.num_free and (at := next(positions, None)) is not None:
                pool.submit(at)
            # After a failure only what has ended already is waited for.
            answers = pool.wait(0 if failed else None)
            for answer in answers:
                if answer.kind == "done":
                    if failed is None and (at := next(positions, None)) is not None:
                        pool.submit(at)
                    yield answer.value
                else:
                    failed = failed or _named(answer, todo[answer.job])
            if not answers:
                break
        if failed is not None:
            raise failed


def _named(answer: Answer, run: Run) -> Exception:
    """Return the error of a run with its name."""
    error = answer.value
    if answer.kind == "died":
        return ChildProcessError(
            f"the process of {run} died ({error}); "
            "start again with fewer processes if memory was short"
        )
    named = type(error)(f"{error}; in {run}")
    for note in getattr(error, "__notes__", ()):
        named.add_note(note)
    return named


def pending(runs: Iterable[Run], done: Done) -> list[Run]:
    """Return the runs that are not done yet, each once, in their order."""
    return list({run.identity: run for run in runs if run.identity not in done}.values())


def complete(
    runs: Iterable[Run],
    done: dict[str, dict[str, Any]],
    *,
    processes: int = 1,
    device: str | None = None,
    tell: Callable[[int], None] = lambda number: None,
) -> None:
    """Do what is not done yet, and add each row as it ends.

    Args:
        runs: What is wanted.
        done: Rows by identity, which the new ones are added to.
        processes: How many runs at once, each on one thread of its own.
        device: As of `perform`.
        tell: Called with how many are done, after each.

    Raises:
        ChildProcessError: If a process died; names its run.
        ValueError: If a run is refused; names it.
        RuntimeError: If a run fails otherwise, likewise.
    """
    # Closed at once, so that nothing works on while an error is on its way up.
    with closing(performed(pending(runs, done), processes, device)) as rows:
        for number, row in enumerate(rows, start=1):
            done[row["identity"]] = row
            tell(number)
