"""Runs of the studies of tags by user, as counts.

A row has for each aggregate of a run's checkpoints how many held-out examples are right in each of
`GROUPS` groups of threads. Means, paired differences and a bootstrap over threads need no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numba import njit

from fedpriv.checkpoints.aggregates import answers
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Components, Experiment
from fedpriv.experiments.load import load_experiment
from fedpriv.experiments.options import Option
from fedpriv.experiments.start import public_only
from fedpriv.kernels.sparse_softmax import train
from fedpriv.mechanisms.bounds import bounded_factors
from fedpriv.rng import Key
from fedpriv.runs.progress import Pace
from fedpriv.sums import PartialSum
from fedpriv.training.local.softmax import CompiledSoftmaxTrainer
from fedpriv.training.periodic_shift import SHARE
from fedpriv.training.work import Attempt, SumRequest, UserData, Work
from fedpriv.tree import Params
from simulations.checkpoint_recycling.checkpoints import (
    Aggregates,
    averages,
    checkpoints,
    states,
)
from simulations.evaluation.held_out import held_out, majority
from simulations.reproduction.study import Row

# Types within compiled code are the compiler's.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false


_LONG = 1e300
_NO_MULTIPLIER = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Training examples of a view, as compiled code reads them.

    Attributes:
        spans: By user, its first row and the row after its last.
        asked: bool (rows,), which examples are of the half that a round's share is of, such as
            questions; None where every round has all.
        arrays: indptr, indices, counts and labels of all rows.
    """

    spans: dict[str, tuple[int, int]] = field(repr=False)
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] = field(repr=False)
    asked: np.ndarray | None = field(default=None, repr=False)


def columns_of(view: TagView, asked: np.ndarray | None = None) -> Columns:
    """Return the training examples of a view's roster."""
    of = view.columns
    spans = {}
    for user in view.roster:
        rows = view.all_rows([user], "train")
        if len(rows) and rows[-1] - rows[0] + 1 != len(rows):
            raise ValueError(f"training rows of {user!r} do not follow one another")
        spans[user] = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    arrays = (
        np.ascontiguousarray(of.indptr, np.int64),
        np.ascontiguousarray(of.indices, np.int32),
        np.ascontiguousarray(of.counts, np.float32),
        np.ascontiguousarray(of.labels, np.int32),
    )
    return Columns(spans=spans, arrays=arrays, asked=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Together(Work):
    """The sum of a cohort's bounded updates in one call.

    Guarantees:
        * As of `fedpriv.training.bounded_sum`: a user moves the sum by at most the bound, and
          none depends on who else takes part.

    Attributes:
        trainer: Whose schedule, inputs and multiplier are meant; without word features.
        columns: The training examples.
    """

    trainer: CompiledSoftmaxTrainer
    columns: Columns = field(repr=False)

    def __post_init__(self) -> None:
        if self.trainer.word_features is not None or self.trainer.schedule.epochs != 1:
            raise ValueError("word features or several epochs: train one user after another")

    def answer(
        self,
        request: SumRequest,
        attempt: Attempt,
        users: Sequence[str],
        data: UserData | None = None,
    ) -> PartialSum:
        """Return the sum; of whole numbers where the bound is on a grid.

        Raises:
            ValueError: If the bound multiplies or mixes first.
            DivergedError: If an update is not finite.
        """
        params, bound, context = request.params, attempt.bound, request.context
        if context.multiplier or context.mixture is not None:
            raise ValueError("updates are preconditioned; train one user after another")
        share = float(context.extra[SHARE][0]) if SHARE in context.extra else None
        orders = [self._order(user, attempt.key.fold(user), share) for user in users]
        ends = np.cumsum([0, *(len(order) for order in orders)])
        kernel, bias = params["kernel"], params["bias"]
        grain = bound.granularity
        num = kernel.size + bias.size
        of_kernel, of_bias, sound = _summed(
            *self.columns.arrays,
            np.concatenate([np.arange(0), *orders]),
            np.asarray(ends, np.int64),
            self.trainer.inputs == "unit-norm",
            self.trainer.schedule.batch_size,
            np.ascontiguousarray(kernel, np.float32),
            np.ascontiguousarray(bias, np.float32),
            _NO_MULTIPLIER if self.trainer.multiplier is None else self.trainer.multiplier,
            self.trainer.schedule.learning_rate * context.rate,
            _LONG * float(bounded_factors(bound, np.array([_LONG]), bound.longest(num))[0]),
            0.0 if grain is None else grain,
        )
        if not sound:
            raise DivergedError("an update is not finite: the model diverged; lower a rate")
        kind = np.float64 if grain is None else np.int64
        total: dict[str, Any] = {"kernel": of_kernel.astype(kind), "bias": of_bias.astype(kind)}
        return PartialSum(
            total={name: total[name] for name in params},
            num_users=len(users),
            num_failed=0,
            granularity=grain,
        )

    def _order(self, user: str, key: Key, share: float | None) -> np.ndarray:
        first, end = self.columns.spans[user]
        rows = np.arange(first, end)
        if share is not None and self.columns.asked is not None:
            kept = np.where(self.columns.asked[first:end], share, 1.0 - share)
            rows = rows[key.fold("mixture").generator().random(len(rows)) < kept]
        if len(rows) < 2:
            return rows
        return rows[self.trainer.schedule.choose(len(rows), key.generator())]


@njit(nogil=True, cache=True)
def _summed(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    ends: np.ndarray,
    unit_norm: bool,
    batch: int,
    kernel: np.ndarray,
    bias: np.ndarray,
    multiplier: np.ndarray,
    rate: float,
    limit: float,
    grain: float,
) -> tuple[np.ndarray, np.ndarray, bool]:
    of_kernel, of_bias = np.zeros(kernel.shape), np.zeros(bias.shape)
    for user in range(ends.size - 1):
        own = order[ends[user] : ends[user + 1]].copy()
        if own.size == 0:
            continue
        steps = np.append(np.arange(0, own.size, batch), own.size)
        rows, _, change, moved, squares, sound = train(
            indptr, indices, counts, labels, own, np.array([0, own.size]), steps,
            np.array([0, steps.size]), unit_norm, kernel, bias, multiplier, rate,
        )  # fmt: skip
        norm = np.sqrt(squares[0])
        if sound[0] == 0 or not np.isfinite(norm):
            return of_kernel, of_bias, False
        factor = min(norm, limit) / norm if norm > 0.0 else 1.0
        for c in range(bias.size):
            of_bias[c] += _grained(np.float64(moved[0, c]) * factor, grain)
            for i in range(rows.size):
                of_kernel[rows[i], c] += _grained(np.float64(change[i, c]) * factor, grain)
    return of_kernel, of_bias, True


@njit(nogil=True, cache=True)
def _grained(value: float, grain: float) -> float:
    return value if grain == 0.0 else np.rint(value / grain)


#: Groups of held-out threads whose right answers are counted together.
GROUPS = 100
MAJORITY, PUBLIC = "majority tag", "public-only"

#: Options that name a run in progress lines.
_NAMED = (
    "noise", "noise.target_epsilon", "server.learning_rate", "aggregate", "aggregate.training",
    "task.measured_on", "seed",
)  # fmt: skip
Options = Mapping[str, Option]


class DivergedError(ValueError):
    """An update of a user is not finite."""


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
        validation = experiment.options()["task.measured_on"] == "validation"
        name = f"{validation} {halves}"
        if name not in self._columns:
            rows = None if first is None else first()
            self._columns[name] = columns_of(self.view(validation=validation), rows)
        trainer: Any = made.trainer
        return replace(made, trainer=Together(trainer=trainer, columns=self._columns[name]))

    def row(self, kind: str, experiment: Experiment, make: Callable[[], Row]) -> Row:
        """Make a row, whose progress is printed."""
        of = experiment.identity()
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
            except DivergedError:
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
            except DivergedError:
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
                PUBLIC: right_of(task, alone.model.params),
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
