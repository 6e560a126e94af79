"""Runs of the studies of tags by user, as counts.

A row has for each aggregate of a run's checkpoints how many held-out examples are right in each of
`GROUPS` groups of threads. Means, paired differences and a bootstrap over threads need no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from fedpriv.checkpoints.aggregates import answers
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.options import Option
from fedpriv.experiments.start import public_only
from fedpriv.rng import Key
from fedpriv.runs.attendance import AllUsersFailedError
from fedpriv.runs.progress import Pace
from fedpriv.training.algorithm import Context
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer, InColumns
from fedpriv.training.periodic_shift import SHARE
from fedpriv.tree import Params
from simulations.checkpoint_recycling.checkpoints import (
    Aggregates,
    averages,
    checkpoints,
    states,
)
from simulations.evaluation.held_out import held_out, majority
from simulations.reproduction.study import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHalf(CompiledSoftmaxTrainer):
    """Trains users on the part of two halves of the text that a round has.

    Attributes:
        first: bool (rows,), which rows of the columns are of the first half; a round's share is of
            it.
    """

    first: np.ndarray = field(repr=False)

    def rows(self, data: InColumns, user_id: str, context: Context, key: Key) -> np.ndarray:
        """Return the rows that a user has in a round; without a share all."""
        rows = CompiledSoftmaxTrainer.rows(self, data, user_id, context, key)
        if SHARE not in context.extra:
            return rows
        share = float(context.extra[SHARE][0])
        kept = np.where(self.first[rows], share, 1.0 - share)
        return rows[key.fold("mixture").generator().random(len(rows)) < kept]


#: Groups of held-out threads whose right answers are counted together.
GROUPS = 100
MAJORITY, PUBLIC = "majority tag", "public-only"

#: Options that name a run in progress lines.
_NAMED = (
    "noise", "target_epsilon", "server.learning_rate", "aggregate", "aggregate.training",
    "task.measured_on", "seed",
)  # fmt: skip
Options = Mapping[str, Option]


class Site:
    """A corpus by a roster, with threads held out.

    Args:
        corpus: The data.
        roster: Of it; None for its own.

    Attributes:
        pace: How far its runs are; who plans them says how many there are.
    """

    def __init__(self, corpus: Corpus, roster: str | None) -> None:
        self.pace, self.corpus = Pace(0), corpus
        self.roster = corpus.default_roster if roster is None else roster
        self._halves: dict[str, np.ndarray] = {}

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
        """Return its components.

        Args:
            experiment: Of tags.
            halves: A name of two halves of the text, where rounds differ in which they have.
            first: Makes bool (rows,), which are of the first; asked once for each name.
        """
        made = build(experiment, self.corpus)
        if first is None:
            return made
        if halves not in self._halves:
            self._halves[halves] = first()
        trainer: Any = made.trainer
        given = {f.name: getattr(trainer, f.name) for f in fields(trainer)}
        return replace(made, trainer=ByHalf(**given, first=self._halves[halves]))

    def row(self, kind: str, experiment: Experiment, make: Callable[[], Row]) -> Row:
        """Make a row, whose progress is printed."""
        of = experiment.options()
        named = [f"{name} {of[name]}" for name in _NAMED if of.get(name) is not None]
        return self.pace.work(", ".join([kind, *named]), make)

    def aggregated(
        self,
        name: str,
        options: Options,
        seed: int,
        which: Aggregates,
        *,
        validation: bool = False,
    ) -> Row:
        """Return the counts of every aggregate at inference of one run's checkpoints.

        Args:
            name: Of the experiment.
            options: Of it.
            seed: Of cohorts, noise and everything else.
            which: Aggregates.
            validation: Measured on validation threads, which are then held out too.

        Returns:
            A row with "examples" (of each group, those that there are) and "right" (by aggregate,
            those that it has right; none of a run that diverged); on validation threads all are one
            group.
        """
        experiment = self.experiment(name, options, seed=seed, validation=validation)

        def make() -> Row:
            made = self.components(experiment)
            try:
                right = measured(made.task, checkpoints(experiment, made, seed), which)
            except AllUsersFailedError:
                right = {}
            return self._counts(right, validation)

        return self.row(f"aggregates {name}", experiment, make)

    def trained_over(
        self, name: str, options: Options, seed: int, *, validation: bool = False
    ) -> Row:
        """Return the counts of the model that a run releases, under the name "released"."""
        experiment = self.experiment(name, options, seed=seed, validation=validation)

        def make() -> Row:
            made = self.components(experiment)
            algorithm: Any = made.algorithm
            try:
                (state,) = deque(states(experiment, made, seed), maxlen=1)
            except AllUsersFailedError:
                return self._counts({}, validation)
            right = right_of(made.task, algorithm.result(state))
            return self._counts({"released": right}, validation)

        return self.row(f"released {name}", experiment, make)

    def levels(self, name: str, options: Options) -> Row:
        """Return the counts of the majority tag and of the public start, on test threads."""
        experiment = self.experiment(name, options)

        def make() -> Row:
            task = build(experiment, self.corpus).task
            alone = public_only(task, Key.simulation(0).fold("init"))
            if alone is None:
                raise ValueError("no public user asked a thread to learn from; use a larger site")
            right = {
                MAJORITY: majority(self.view()).right,
                PUBLIC: right_of(task, alone.model),
            }
            return self._counts(right, validation=False)

        return self.row(f"levels {name}", experiment, make)

    def _counts(self, right: Mapping[str, np.ndarray], validation: bool) -> Row:
        threads = held_out(self.view(validation=validation)).threads
        number = 1 if validation else GROUPS
        group = threads % number
        return {
            "synthetic": self.corpus.synthetic,
            "examples": np.bincount(group, minlength=number).tolist(),
            "right": {
                name: np.bincount(group[one > 0], minlength=number).tolist()
                for name, one in right.items()
            },
        }


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
