"""Training what a page is of; what is done is kept in JSON lines, and not done again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv import json_lines
from fedpriv.checkpoints.tensor_files import write_tensors
from fedpriv.experiments.build import build
from fedpriv.experiments.composing.options import Option
from fedpriv.experiments.experiment import Experiment
from fedpriv.hashes import document_sha256
from fedpriv.privacy.epsilon import format_delta
from fedpriv.runs.progress import Pace
from simulations.scraps.by_example.problem import Problem
from simulations.scraps.checkpoints import Averages, averages, checkpoints, states
from simulations.scraps.wording import asked

FRESH = "from nothing"
_STARTS = {"from the last public model": "last", "from the average of public models": "ema"}


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One column of a table.

    Attributes:
        start: What training starts from.
        epsilon: Of it, infinite without noise.
        rate: The learning rate.
    """

    start: str
    epsilon: float
    rate: float

    def said(self) -> str:
        """Return what it is called."""
        noise = "no noise" if math.isinf(self.epsilon) else f"ε = {asked(self.epsilon)}"
        return f"{noise}, rate {self.rate:g}, {self.start}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the runs gave.

    Attributes:
        values: By case and by method, the measure, one for each seed.
        data: What is said of the data.
        synthetic: Whether they are.
        promise: What every ε is.
    """

    values: Mapping[Case, Mapping[str, np.ndarray]]
    data: str
    synthetic: bool
    promise: str


def found(problem: Problem, results: Path) -> Found:
    """Return what all runs of a problem gave; those that are missing are trained.

    Args:
        problem: What is asked.
        results: JSON lines; a public run's models lie in a folder of the same name.

    Raises:
        ValueError: If its data cannot be had, or a line of the file cannot be read.
    """
    rows = {row.get("identity"): row for row in json_lines.read(results)}
    values: dict[Case, dict[str, np.ndarray]] = {}
    facts: dict[str, Any] = {}
    public = problem.public is not None
    starts = 1 + len(_STARTS) * public
    runs = starts * len(problem.epsilons) * len(problem.rates) * problem.seeds
    pace = Pace(runs + public)
    for case, options in _cases(problem, results.with_suffix(""), pace):
        own: list[Mapping[str, float]] = []
        for seed in range(problem.seeds):
            experiment = problem.make().with_options({**options, "seed": seed})
            identity = _identity(problem, experiment, case)
            if identity in rows:
                pace.keep()
            else:
                said = f"{problem.name} {case.said()}, seed {seed}"
                row = pace.work(said, partial(_row, problem, experiment))
                rows[identity] = {"identity": identity, **row}
                results.parent.mkdir(parents=True, exist_ok=True)
                json_lines.cut_torn_line(results)
                json_lines.append(results, rows[identity])
            facts = rows[identity]
            own.append(facts["values"])
        values[case] = {name: np.array([one[name] for one in own]) for name in own[0]}
    return Found(
        values=values,
        data=facts["data"],
        synthetic=facts["synthetic"],
        promise=facts["promise"],
    )


def _cases(problem: Problem, folder: Path, pace: Pace) -> Iterator[tuple[Case, dict[str, Option]]]:
    starts: dict[str, dict[str, Option]] = {FRESH: {}}
    if problem.public is not None:
        file = _public(problem, folder, pace)
        for name, which in _STARTS.items():
            starts[name] = {"start": "file", "start-file": str(file), "start-which": which}
    for start, more in starts.items():
        for epsilon in problem.epsilons:
            private: dict[str, Option] = {"target-epsilon": epsilon}
            if epsilon is None:
                private["noise"] = "none"
            for rate in problem.rates:
                case = Case(start, np.inf if epsilon is None else epsilon, rate)
                yield case, {**problem.options, **more, **private, "learning-rate": rate}


def _identity(problem: Problem, experiment: Experiment, case: Case) -> str:
    options = dict(experiment.options())
    if problem.public is not None:  # where a start lies says nothing of what it is
        options["start-file"] = None
    which = [list(problem.which.decays), list(problem.which.ks), dict(problem.public or {})]
    return document_sha256({"name": experiment.name, "start": case.start, "which": which,
                            "version": 1, **options})[:24]  # fmt: skip


def _row(problem: Problem, experiment: Experiment) -> dict[str, Any]:
    made = build(experiment, None)
    task: Any = made.task
    past = averages(checkpoints(experiment, made, experiment.seed), problem.which)
    plan = made.plan
    assert plan.delta is not None
    delta, relation = format_delta(plan.delta), plan.relation.value
    return {
        "seed": experiment.seed,
        "values": measured(problem, task, past),
        "synthetic": bool(task.synthetic),
        "data": f"{task.name}, {task.num_train:,} training examples",
        "promise": f"δ = {delta}, {plan.unit}-level, {relation}, PLD, Poisson batches",
    }


def measured(problem: Problem, task: Any, past: Averages) -> dict[str, float]:
    """Return the measure of every aggregate of a run's checkpoints, by name.

    Args:
        problem: Says what is measured.
        task: Whose test set it is.
        past: All its checkpoints.
    """
    values = {
        name: float(task.evaluate(params, public=True).get(problem.measure.name))
        for name, params in past.models().items()
    }
    blocks = [list(task.class_scores(params, public=True)) for params in past.recent]
    labels = np.concatenate([labels for _, labels in blocks[0]])
    scores = [np.concatenate([part for part, _ in own]) for own in blocks]
    for kind, measure in problem.outputs.items():
        for k in problem.which.ks:
            values[f"{kind} {k}"] = measure(scores[-k:], labels)
    return values


def _public(problem: Problem, folder: Path, pace: Pace) -> Path:
    """Return the file of a public run's last model and of its average, trained if it is missing."""
    assert problem.public is not None
    experiment = problem.make().with_options({**problem.public, "seed": 0})
    name = document_sha256({"name": experiment.name, **experiment.options()})[:16]
    file = folder / f"public-{name}.safetensors"
    if file.exists():
        pace.keep()
    else:
        said = f"{problem.name} public training, without privacy"
        pace.work(said, partial(_train_public, experiment, file))
    return file


def _train_public(experiment: Experiment, file: Path) -> None:
    made = build(experiment, None)
    (state,) = deque(states(experiment, made, experiment.seed), maxlen=1)
    algorithm: Any = made.algorithm
    average = algorithm.result(state)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(file, {**state.params, **{f"ema/{n}": a for n, a in average.items()}})
