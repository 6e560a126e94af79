"""Training and measuring the rows of the evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.checkpoints.tensor_files import released_models
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.splits import NUM_FOLDS, Split
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.experiments.build import build
from fedpriv.experiments.experiment import Components, Experiment, Settings
from fedpriv.experiments.options import Option
from fedpriv.experiments.start import FromPublic, PublicOnly, public_only
from fedpriv.hashes import document_sha256
from fedpriv.rng import Key
from fedpriv.runs.backends import serial
from fedpriv.runs.loop import rounds
from fedpriv.runs.progress import Pace
from fedpriv.runs.selection import select
from fedpriv.tree import Params
from simulations.evaluation.evaluate import Evaluation, evaluate
from simulations.evaluation.held_out import (
    Fold,
    Outcomes,
    central,
    local_only,
    measure_fold,
    outcomes,
)
from simulations.threads.methods import PLAIN_WORDS, UNIT_NORM, Method

PUBLIC, CENTRAL, LOCAL = "public-only", "central", "local-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Models and settings that are evaluated.

    Attributes:
        corpus: The data.
        roster: Of it; None for its own.
        splits: Of which examples are measured, pooled: folds of one kind.
        seeds: Of every method.
        epsilons: Of private ones.
        methods: By name.
        features: Options of every method: what a model sees of an example.
    """

    corpus: Corpus
    roster: str | None
    splits: Sequence[Split]
    seeds: int
    epsilons: Sequence[float]
    methods: Mapping[str, Method]
    features: Mapping[str, Option] = field(default_factory=lambda: PLAIN_WORDS)

    def evaluated(self, folds: Sequence[Fold] | None = None) -> Evaluation:
        """Return the figures of all rows, pooled over folds; those given, or `folds()`."""
        folds = self.folds() if folds is None else folds
        names = [name for name, _, epsilon in self.trained if epsilon is None]
        return evaluate(
            folds,
            public_only=PUBLIC,
            best_nonprivate=_best(folds, [CENTRAL, *names]),
            generator=Key.simulation(0).fold("bootstrap").generator(),
        )

    def folds(self) -> list[Fold]:
        """Return what every row does to what each split holds out, and say how far it is."""
        pace = Pace(len(self.splits) * self.seeds * (1 + len(self.trained)))
        return [self._fold(split, pace) for split in self.splits]

    @property
    def trained(self) -> tuple[tuple[str, Method, float | None], ...]:
        """The models that are trained by rounds: name, method, ε."""
        return tuple(
            (model_name(name, epsilon), method, epsilon)
            for name, method in self.methods.items()
            for epsilon in (map(float, self.epsilons) if method.is_private else (None,))
        )

    @property
    def untrained(self) -> tuple[str, ...]:
        """The models that take no rounds; users alone are measured on plain words."""
        return (PUBLIC, CENTRAL, LOCAL) if self.features == PLAIN_WORDS else (PUBLIC, CENTRAL)

    def _fold(self, split: Split, pace: Pace) -> Fold:
        view = self.corpus.view(roster=self.roster, split=split)
        public: dict[str, PublicPart] = {}
        found: dict[str, list[Outcomes]] = {
            name: [] for name in (*self.untrained, *(name for name, _, _ in self.trained))
        }
        for seed in range(self.seeds):
            said = f"{view.split.name}, seed {seed}: public-only and central"
            for name, one in pace.work(said, partial(self._beside, view, seed)).items():
                found[name].append(one)
            for name, method, epsilon in self.trained:
                one = self._trained(view, name, method, epsilon, seed, pace, public)
                found[name].append(one)
        return measure_fold(view, {}, inputs=UNIT_NORM, measured_before=found)

    def _beside(self, view: TagView, seed: int) -> dict[str, Outcomes]:
        """Return what takes no rounds does: `untrained`."""
        key = Key.simulation(seed)
        method = next(one for one in self.methods.values() if one.is_private)
        task = build(self._experiment(method, self.epsilons[0], view, seed), self.corpus).task
        alone = public_only(task, key.fold("init"))
        if alone is None:
            raise ValueError(
                f"{view.name}: no public user asked a thread to learn from, so there is nothing "
                "to compare private training with; the site is too small"
            )
        choosing = self.corpus.view(roster=self.roster, split=view.split.choosing())
        (whole,) = central(
            view, choosing, UNIT_NORM, keys=[key.fold("central")], features=task.features_of
        )
        made = task.features_of(view)
        found = {
            PUBLIC: outcomes(alone.model, view, UNIT_NORM, made),
            CENTRAL: outcomes(whole, view, UNIT_NORM, made),
        }
        if LOCAL in self.untrained:
            found[LOCAL] = local_only(view, alone.start, UNIT_NORM, key=key)
        return found

    def _trained(
        self,
        view: TagView,
        name: str,
        method: Method,
        epsilon: float | None,
        seed: int,
        pace: Pace,
        public: dict[str, PublicPart],
    ) -> Outcomes:
        """Train a method's model, and return what it does."""
        experiment = self._experiment(method, epsilon, view, seed)
        chosen = "rounds" in experiment.automatic
        length = None if chosen else experiment.options().get("rounds")
        said = "" if length is None else f", {length} rounds"

        def work() -> Outcomes:
            made = train(experiment, self.corpus, seed, public)
            params = made.returned() if method.returned else made.params
            return outcomes(params, view, UNIT_NORM, made.task.features_of(view))

        return pace.work(f"{view.split.name}, seed {seed}: {name}{said}", work)

    def _experiment(
        self, method: Method, epsilon: float | None, view: TagView, seed: int
    ) -> Experiment:
        shared: dict[str, Option] = {"roster": self.roster, "seed": seed, **self.features}
        return method.at(epsilon, view, shared)


@dataclass(slots=True, kw_only=True)
class PublicPart:
    """What is computed from public users: the same for every ε and, the start aside, every seed.

    Attributes:
        task: The experiment's.
        settings: Chosen by the data's size, as of the first ε.
        alone: What public examples alone make, by seed.
    """

    task: Any
    settings: Settings | None
    alone: dict[int, PublicOnly | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An experiment that was trained to its end.

    Attributes:
        components: Of it.
        key: As of a simulated run.
        state: After the last round.
        alone: What public examples alone make, where training began there.
    """

    components: Components
    key: Key
    state: Any
    alone: PublicOnly | None = field(repr=False)

    @property
    def task(self) -> Any:
        """The task."""
        return self.components.task

    @property
    def params(self) -> Params:
        """The params that it ended with, or their average."""
        return self.components.algorithm.result(self.state)

    def returned(self) -> Params:
        """Return the model that a run with `select public` returns."""
        key = self.key.fold("init")
        tensors, _ = self.state.save()
        released = released_models(tensors)
        begun = self.components.begin(key, self.alone)
        return select(self.components, begun, self.alone, released, key=key).params


def train(
    experiment: Experiment, corpus: Corpus, seed: int, public: dict[str, PublicPart] | None = None
) -> Trained:
    """Return an experiment's training at its end.

    Args:
        experiment: What is trained.
        corpus: On what.
        seed: Of it.
        public: What earlier calls learnt of public users, by experiment; this one's is added.
    """
    public, options = {} if public is None else public, experiment.options()
    own = {n: v for n, v in options.items() if n not in ("target_epsilon", "seed")}
    name = document_sha256({"experiment": experiment.name, "options": own})
    part = public.get(name)
    if part is None:
        components = build(experiment, corpus)
        part = public[name] = PublicPart(task=components.task, settings=components.settings)
    else:
        components = build(experiment, corpus, part.task, part.settings)
    key = Key.simulation(seed)
    if seed not in part.alone:
        from_public = isinstance(experiment.start, FromPublic)
        part.alone[seed] = public_only(part.task, key.fold("init")) if from_public else None
    begun = components.begin(key.fold("init"), part.alone[seed])
    state: Any = components.algorithm.init(begun.params)
    played = rounds(
        components,
        serial(experiment, components),
        key,
        state=state,
        eval_every=10**9,
        ends_if_all_fail=False,
    )
    for _, state in played:  # noqa: B007 - the last is measured
        pass
    return Trained(components=components, key=key, state=state, alone=part.alone[seed])


def check_options(folds: int, seeds: int, plot: Path | None) -> None:
    """Refuse options of a study before anything is trained.

    Raises:
        ValueError: If there are not so many folds, no seed, or the plot is no SVG.
    """
    if plot is not None and plot.suffix.lower() != ".svg":
        raise ValueError(f"--plot {plot} must end in .svg")
    if not 1 <= folds <= NUM_FOLDS or seeds < 1:
        raise ValueError(f"folds {folds} must be 1 to {NUM_FOLDS}, --seeds {seeds} at least 1")


def model_name(method: str, target_epsilon: float | None) -> str:
    """Return what an evaluation calls a method's model."""
    return method if target_epsilon is None else f"{method}, ε = {target_epsilon:g}"


def _best(folds: Sequence[Fold], names: Sequence[str]) -> str:
    """Return the best of the models without privacy.

    It is chosen by what is measured, so the gap is rather too wide and shares rather too low.
    """

    def right(name: str) -> float:
        return float(np.mean([one.right.mean() for fold in folds for one in fold.outcomes[name]]))

    return max(names, key=right)
