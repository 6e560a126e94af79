"""Training the runs of the studies of real threads; what is done is kept, and not done again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.checkpoints.aggregates import answers
from fedpriv.checkpoints.tensor_files import read_tensors, write_tensors
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.experiments.build import build
from fedpriv.experiments.catalogue import load_experiment
from fedpriv.experiments.components import Components
from fedpriv.experiments.composing.options import Option
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.parts.start import public_only
from fedpriv.hashes import document_sha256
from fedpriv.rng import Key
from fedpriv.runs.progress import Pace
from fedpriv.tree import Params
from simulations.scraps.checkpoints import Aggregates, averages, checkpoints, named, states
from simulations.scraps.tags.together import Columns, Together, columns_of

#: What is said of a run, of all its options.
_SHOWN = (
    "target-epsilon", "rounds", "server-learning-rate", "aggregate", "aggregate-training",
    "measured-on", "seed",
)  # fmt: skip
Options = Mapping[str, Option]


class NotKeptError(ValueError):
    """A run was asked for that is not there, where nothing is to be trained."""


class Site:
    """A corpus by a roster, with threads held out.

    Args:
        corpus: The data.
        roster: Of it; None for its own.
        kept: Folder of what is done.
        trains: Whether a run is trained that is not kept, or refused.

    Attributes:
        pace: How far its runs are; who plans them says how many there are.
    """

    def __init__(
        self, corpus: Corpus, roster: str | None, kept: Path, *, trains: bool = True
    ) -> None:
        self._trains, self.pace = trains, Pace(0)
        self.corpus, self.kept = corpus, kept
        self.roster = corpus.default_roster if roster is None else roster
        self._columns: dict[str, Columns] = {}

    def view(self, *, validation: bool = False) -> TagView:
        """Return its rostered users' threads, of which test or validation ones are held out."""
        split = Split(kind="by-thread", fold=0)
        return self.corpus.view(roster=self.roster, split=split.choosing() if validation else split)

    def experiment(
        self, name: str, options: Options, *, seed: int = 0, validation: bool = False
    ) -> Experiment:
        """Return an experiment on this site."""
        shared: dict[str, Option] = {"roster": self.roster, "inputs": "unit-norm", "seed": seed}
        if validation:
            shared["measured-on"] = "validation"
        return load_experiment(name).with_options({"select": "last", **shared, **options})

    def components(
        self,
        experiment: Experiment,
        halves: str = "",
        first: Callable[[], np.ndarray] | None = None,
    ) -> Components:
        """Return its components, with users trained together.

        Args:
            experiment: Of tags.
            halves: A name of two halves of the text, where rounds differ in which they have.
            first: Makes bool (rows,), which are of the first; asked once for each name.
        """
        made = build(experiment, self.corpus)
        validation = experiment.options()["measured-on"] == "validation"
        name = f"{validation} {halves}"
        if name not in self._columns:
            rows = None if first is None else first()
            self._columns[name] = columns_of(self.view(validation=validation), rows)
        trainer: Any = made.trainer
        return replace(made, trainer=Together(trainer=trainer, columns=self._columns[name]))

    def found(
        self, facts: Mapping[str, object], make: Callable[[], Mapping[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Return what was kept under these facts, made now if there is nothing.

        Raises:
            NotKeptError: If there is nothing, and nothing is to be trained.
        """
        named = {"roster": self.view().roster_sha256, "version": 1, **facts}
        corpus = self.corpus.content_sha256[:16]  # another may have the same roster and options
        file = self.kept / corpus / f"{document_sha256(named)[:24]}.safetensors"
        if file.exists():
            self.pace.keep()
        else:
            kind = next(f"{name} {value}" for name, value in facts.items())
            more = [f"{name} {facts[name]}" for name in _SHOWN if facts.get(name) is not None]
            if not self._trains:
                raise NotKeptError(f"not kept: {', '.join([kind, *more])}")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, dict(self.pace.work(", ".join([kind, *more]), make)))
        return dict(read_tensors(file)[0])

    def aggregated(
        self,
        name: str,
        options: Options,
        seed: int,
        which: Aggregates,
        *,
        validation: bool = False,
    ) -> dict[str, np.ndarray]:
        """Return which held-out examples are right, uint8 (n,), by aggregate of one run.

        Args:
            name: Of the experiment.
            options: Of it.
            seed: Of cohorts, noise and everything else.
            which: Aggregates.
            validation: Measured on validation threads, which are then held out too.
        """
        experiment = self.experiment(name, options, seed=seed, validation=validation)

        def make() -> dict[str, np.ndarray]:
            made = self.components(experiment)
            return measured(made.task, checkpoints(experiment, made, seed), which)

        facts: dict[str, object] = {"aggregates": name, **experiment.options()}
        facts |= {"decays": list(which.decays), "ks": list(which.ks)}
        found = self.found(facts, make)
        kinds = ("OPA", "OMV")
        names = [*named(which), *(f"{kind} {k}" for kind in kinds for k in which.ks)]
        return {name: found[name] for name in names}

    def trained_over(
        self, name: str, options: Options, seed: int, *, validation: bool = False
    ) -> np.ndarray:
        """Return which held-out examples are right, uint8 (n,), of what a run releases."""
        experiment = self.experiment(name, options, seed=seed, validation=validation)

        def make() -> dict[str, np.ndarray]:
            made = self.components(experiment)
            (state,) = deque(states(experiment, made, seed), maxlen=1)
            algorithm: Any = made.algorithm
            return {"right": right_of(made.task, algorithm.result(state))}

        return self.found({"released": name, **experiment.options()}, make)["right"]

    def start(self, name: str, options: Options) -> np.ndarray:
        """Return which held-out examples the public start alone has right."""
        experiment = self.experiment(name, options)

        def make() -> dict[str, np.ndarray]:
            task = build(experiment, self.corpus).task
            alone = public_only(task, Key.simulation(0).fold("init"))
            if alone is None:
                raise ValueError("no public user asked a thread to learn from; use a larger site")
            return {"right": right_of(task, alone.model.params)}

        return self.found({"public": name, **experiment.options()}, make)["right"]


def measured(task: Any, past: Iterable[Params], which: Aggregates) -> dict[str, np.ndarray]:
    """Return which held-out examples are right, uint8 (n,), by every aggregate of checkpoints."""
    made = averages(past, which)
    found = {name: right_of(task, params) for name, params in made.models().items()}
    scores = [scored(task, params) for params in made.recent]
    labels = labels_of(task, made.recent[-1])
    for k in which.ks:
        found[f"OPA {k}"] = (answers("opa", scores[-k:]) == labels).astype(np.uint8)
        found[f"OMV {k}"] = (answers("omv", scores[-k:]) == labels).astype(np.uint8)
    return found


def right_of(task: Any, params: Params) -> np.ndarray:
    """Return which held-out examples a model has right, uint8 (n,)."""
    found = [
        (scores.argmax(axis=1) == labels).astype(np.uint8)
        for scores, labels in task.class_scores(params, public=False)
    ]
    return np.concatenate(found)


def scored(task: Any, params: Params) -> np.ndarray:
    """Return probabilities of every held-out example, float32 (n, classes)."""
    return np.concatenate([scores for scores, _ in task.class_scores(params, public=False)])


def labels_of(task: Any, params: Params) -> np.ndarray:
    """Return the held-out examples' labels, int64 (n,)."""
    return np.concatenate([labels for _, labels in task.class_scores(params, public=False)])
