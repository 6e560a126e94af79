"""One fold: what every model of a table does to the examples that a split holds out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv.datasets.stackexchange.splits import Split
from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.evaluation.baselines import majority, own_majority
from fedpriv.evaluation.examples import HeldOut, Outcomes, held_out, joined, outcomes
from fedpriv.tree import Params

MAJORITY = "majority"
OWN_MAJORITY = "own majority"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fold:
    """What models do to the held-out examples of one split.

    Attributes:
        data: What names the data.
        split: How examples were divided.
        held: The examples.
        outcomes: By model, one a seed.

    Raises:
        ValueError: A model has no seed, or outcomes are of other examples.
    """

    data: Mapping[str, Any]
    split: Split
    held: HeldOut = field(repr=False)
    outcomes: Mapping[str, tuple[Outcomes, ...]] = field(repr=False)

    def __post_init__(self) -> None:
        for name, found in self.outcomes.items():
            if not found:
                raise ValueError(f"model {name!r} has no seed; give its params, or leave it out")
            for one in found:
                if len(one) != len(self.held):
                    raise ValueError(
                        f"model {name!r} was measured on {len(one)} examples and not on the "
                        f"{len(self.held)} of split {self.split.name}"
                    )


def measure_fold(
    view: TagView,
    models: Mapping[str, Sequence[Params]],
    *,
    inputs: str,
    beside: Mapping[str, Sequence[Outcomes]] | None = None,
) -> Fold:
    """Return what models do to the held-out examples of a view's roster.

    The rows "majority" and "own majority" are added.

    Args:
        view: The split that they are measured on.
        models: By name, one model a seed; seed k of all of them is taken to belong together.
        inputs: "tff" or "unit-norm".
        beside: What was measured already, or is no one model, as `local_only`.

    Raises:
        ValueError: A name is taken twice, a model is not this view's, diverged, or has no seed.
    """
    measured = dict(beside or {})
    measured |= {MAJORITY: [majority(view)], OWN_MAJORITY: [own_majority(view)]}
    twice = [name for name in models if name in measured]
    if twice:
        raise ValueError(f"model {twice[0]!r} is there already; give it another name")
    for name, seeds in models.items():
        try:
            measured[name] = [outcomes(params, view, inputs) for params in seeds]
        except ValueError as error:
            raise ValueError(f"model {name!r}: {error}") from error
    return Fold(
        data=view.describe(),
        split=view.split,
        held=held_out(view),
        outcomes={name: tuple(found) for name, found in measured.items()},
    )


def pooled(folds: Sequence[Fold]) -> tuple[HeldOut, dict[str, tuple[Outcomes, ...]]]:
    """Return the examples of several folds as one, each with the models that did not see it.

    Raises:
        ValueError: The folds are not of one data, models and seeds, or share threads.
    """
    if not folds:
        raise ValueError("no fold; give at least one")
    first, seen = folds[0], np.empty(0, np.int64)
    for fold in folds:
        threads = np.unique(fold.held.threads)
        if dict(fold.data) != dict(first.data):
            raise ValueError(f"folds {first.split.name} and {fold.split.name} are of other data")
        if (fold.split.kind, fold.split.measured_on) != (
            first.split.kind,
            first.split.measured_on,
        ):
            raise ValueError(f"splits {first.split.name} and {fold.split.name} do not add up")
        if np.intersect1d(seen, threads).size:
            raise ValueError(f"split {fold.split.name} holds out threads that another does")
        seen = np.concatenate([seen, threads])
    counts = [{name: len(found) for name, found in fold.outcomes.items()} for fold in folds]
    if any(count != counts[0] for count in counts):
        raise ValueError(f"the folds are not of the same models and seeds: {counts}")
    held = HeldOut(
        users=np.concatenate([fold.held.users for fold in folds]),
        threads=np.concatenate([fold.held.threads for fold in folds]),
        trained=np.concatenate([fold.held.trained for fold in folds]),
        num_tags=np.concatenate([fold.held.num_tags for fold in folds]),
    )
    return held, {
        name: tuple(
            joined([fold.outcomes[name][seed] for fold in folds]) for seed in range(len(seeds))
        )
        for name, seeds in first.outcomes.items()
    }
