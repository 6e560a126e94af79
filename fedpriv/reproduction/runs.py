"""Runs: what is trained for a table or figure, what finds it again, and which settings win."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpriv.experiments.build import build
from fedpriv.experiments.composing.options import Option
from fedpriv.experiments.experiment import Experiment, existing_options
from fedpriv.experiments.of_examples import num_steps
from fedpriv.experiments.task_factory import make_task
from fedpriv.hashes import document_sha256
from fedpriv.measures import Measure
from fedpriv.privacy.statement.coverage import coverage
from fedpriv.reproduction.table import TUNING_SEED, Cell, Item, Settings, Split
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from fedpriv.runs.records import measured

Done = Mapping[str, dict[str, Any]]

# What points of a curve are of where the row does not say so.
_CURVE = ("accuracy", "loss")


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

    def __post_init__(self) -> None:
        if self.curve < 0:
            raise ValueError(f"a curve every {self.curve} steps; give 0 for none, or more")

    @property
    def identity(self) -> str:
        """What finds it again: a digest of every option, the split, the size and the seed."""
        return _digest(
            self.experiment.name,
            self.experiment.options(),
            {"seed": self.seed, "split": self.split, "reduced": self.reduced},
            self.curve,
        )

    def __str__(self) -> str:
        """What a person knows it by: name, split, seed and every option that is not a default."""
        changed = [
            f"{line.name} {line.value}"
            for line in self.experiment.lines()
            if line.name not in ("seed", "eval-every") and line.value != line.default
        ]
        size = ", reduced" if self.reduced else ""
        text = f"{self.experiment.name} on {self.split}, seed {self.seed}{size}"
        return f"{text} ({', '.join(changed)})" if changed else text


def identity_of(row: Mapping[str, Any]) -> str:
    """Return the identity of the run that a row is of.

    Rows that were written before options belonged to parts list all options and have a digest of
    all; those without a part decided nothing, and the run is found by the others.
    """
    options = row["options"]
    decided = existing_options(row["unit"], options)
    if set(decided) == set(options):
        return row["identity"]
    rest = {name: row[name] for name in ("seed", "split", "reduced")}
    # A curve's first point lies as far from the start as the others from each other.
    curve = row["curve"][0][0] if "curve" in row else 0
    return _digest(row["experiment"], decided, rest, curve)


def _digest(name: str, options: Mapping[str, Option], rest: Mapping[str, Any], curve: int) -> str:
    described = {"name": name, **options, **rest}
    if curve:  # a run without one keeps the digest it had before there were curves
        described["curve"] = curve
    return document_sha256(described)[:16]


def perform(run: Run) -> dict[str, Any]:
    """Train to the end and return the figures of the last model, with its ε and what it is of.

    What is measured is the test set, of users their own held-out examples; then there is also the
    headline figure of public users. A run with a curve also gives
    `"curve": [[step, accuracy, loss], ...]`, the last step included; where the task's measures are
    others, `"curve_of"` names them.
    """
    started = time.perf_counter()
    experiment = run.experiment.with_options({"seed": run.seed})
    components = build(experiment)
    backend, task = serial(experiment, components), components.task.describe().to_json()
    measures = components.task.measures
    of_users = components.plan.unit == "user"
    steps = components.plan.planned_rounds
    if steps is None:
        raise ValueError(
            f"{experiment.name} has an adaptive plan, which plans no number of steps; run it "
            "by `fedpriv run`"
        )
    last, seen, curve = None, None, []
    played = rounds(
        components, backend, Key.simulation(run.seed), eval_every=steps, ends_if_all_fail=False
    )
    for record, state in played:
        step = record.released.round_num
        if step == steps or (run.curve and step % run.curve == 0):
            seen = backend.evaluate(components.algorithm.measured(state), public=not of_users)
            curve.append([step, *measured(measures, seen).values()])
        last = record
    assert last is not None and last.diagnostics is not None
    baselines = {
        **{m.released_name: last.released.measured[m.name] for m in measures[:1]},
        "failed_in_last_round": last.diagnostics.num_failed,
    }
    names = [measure.name for measure in measures]
    curves = {"curve": curve} if names == list(_CURVE) else {"curve": curve, "curve_of": names}
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
        **(curves if run.curve else {}),
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


def tuning_runs(item: Item, *, reduced: bool) -> Iterator[Run]:
    """Yield the runs that choose settings: every setting of every cell that has a choice."""
    for row in item.rows:
        for cell in map(_tuned, row.cells.values()):
            if len(cell.grid) > 1:
                yield from tried(cell, reduced=reduced)


def tried(cell: Cell, *, reduced: bool) -> Iterator[Run]:
    """Yield the tuning runs of a cell's own grid, one a setting."""
    made = cell.make("validation", reduced)
    for settings in cell.grid:
        experiment = made.with_options(settings)
        yield Run(experiment=experiment, split="validation", seed=TUNING_SEED, reduced=reduced)


def final_runs(item: Item, done: Done, *, seeds: Sequence[int], reduced: bool) -> Iterator[Run]:
    """Yield the runs that a table or figure reports, in the settings that tuning chose.

    Raises:
        ValueError: If a cell has not been tuned.
    """
    for row in item.rows:
        for cell in row.cells.values():
            yield from _reported(item, cell, done, seeds=seeds, reduced=reduced)


def best(item: Item, cell: Cell, done: Done, *, reduced: bool) -> Settings:
    """Return the settings with the best figure on the validation split, the first of equals.

    Raises:
        ValueError: If some were not run.
    """
    if cell.tuned_as is not None:
        return cell.adapt(best(item, cell.tuned_as, done, reduced=reduced))
    if len(cell.grid) == 1:
        return cell.grid[0]
    worths: list[float] = []
    for settings, run in zip(cell.grid, tried(cell, reduced=reduced), strict=True):
        if run.identity not in done:
            raise ValueError(f"{item.name}: {dict(settings)} was not run; tune it first")
        worths.append(worth(item, done[run.identity]))
    return cell.grid[worths.index(max(worths))]


def worth(item: Item, row: Mapping[str, Any]) -> float:
    """Return a run's figure, the higher the better; -∞ where it diverged."""
    return item.measure.worth(row[item.measure.name])


def curve_of(row: Mapping[str, Any], measure: Measure) -> list[tuple[int, float | None]]:
    """Return the points of a run's curve of a measure: step and figure."""
    where = 1 + row.get("curve_of", _CURVE).index(measure.name)
    return [(point[0], point[where]) for point in row["curve"]]


def figures(
    item: Item, cell: Cell, done: Done, *, seeds: Sequence[int], reduced: bool
) -> list[dict[str, Any]]:
    """Return the reported runs of a cell, one a seed.

    Raises:
        ValueError: If one is missing.
    """
    rows = []
    for run in _reported(item, cell, done, seeds=seeds, reduced=reduced):
        if run.identity not in done:
            raise ValueError(f"{item.name}: a run of seed {run.seed} is missing; run it first")
        rows.append(done[run.identity])
    return rows


def all_figures(
    item: Item, done: Done, *, seeds: Sequence[int], reduced: bool
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the reported runs of every cell, by label and column.

    Raises:
        ValueError: If one is missing.
    """
    return {
        (row.label, column): figures(item, cell, done, seeds=seeds, reduced=reduced)
        for row in item.rows
        for column, cell in row.cells.items()
    }


def _tuned(cell: Cell) -> Cell:
    """Return the cell whose tuning a cell's settings come from."""
    return cell if cell.tuned_as is None else _tuned(cell.tuned_as)


def _reported(
    item: Item, cell: Cell, done: Done, *, seeds: Sequence[int], reduced: bool
) -> Iterator[Run]:
    settings = best(item, cell, done, reduced=reduced)
    made = cell.make("test", reduced).with_options(settings)
    curve = 0
    if item.kind == "figure":
        curve = math.ceil(_num_steps(made) / item.points)
    for seed in seeds:
        chosen = made.with_options({"seed": seed})
        yield Run(experiment=chosen, split="test", seed=seed, reduced=reduced, curve=curve)


def _num_steps(experiment: Experiment) -> int:
    if experiment.unit == "user":
        return experiment.rounds
    # Only the data know how many steps so many epochs are.
    return experiment.steps or num_steps(experiment, make_task(experiment, None).num_train)
