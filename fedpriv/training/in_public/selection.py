"""Selection among models on public examples, by a bootstrap that corrects for their number.

Public examples cost no privacy, so they may choose what a run returns. Each is judged by models
that it did not train (`PublicFold`), all models by the same examples; examples of one group, such
as the sentences of a thread, are drawn together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedpriv.measures import Measure
from fedpriv.rng import Key
from fedpriv.training.in_public.learning import PublicLearner
from fedpriv.tree import Params

LEVEL = 0.95
"""Probability that no model that is no better than the reference is selected."""
NUM_RESAMPLES = 2000
FEWEST_GROUPS = 10
"""Below this a bootstrap over groups says nothing, and the reference stays."""
_BLOCK = 100  # resamples whose weights are in memory at once


class PublicFold(Protocol):
    """A task without some of its public examples, and these examples to judge its models by."""

    @property
    def measures(self) -> Sequence[Measure]:
        """The task's; the headline first."""
        ...

    @property
    def groups(self) -> np.ndarray:
        """int64 (examples,): the group of each example held out, such as its thread."""
        ...

    def init_params(self, key: Key) -> Params:
        """Return the params before training."""
        ...

    def public_learner(self, key: Key, *, choosing: bool) -> PublicLearner | None:
        """Return what learns from the task's other public examples; see `LearnsInPublic`."""
        ...

    def values(self, params: Params) -> np.ndarray:
        """Return the headline measure of each example held out, float64 (examples,)."""
        ...


@runtime_checkable
class HasPublicFolds(Protocol):
    """A task whose public examples can be held out in turns."""

    @property
    def measures(self) -> Sequence[Measure]:
        """What is measured, the headline first."""
        ...

    def public_folds(self) -> Sequence[PublicFold]:
        """Return the folds; empty where there are too few examples."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How one model compares with the reference on public examples.

    Attributes:
        value: Mean of the headline measure.
        gain: Mean difference from the reference, positive where better.
        stderr: Standard error of the gain, by a bootstrap of groups.
        lower: Lower end of the gain's one-sided simultaneous confidence interval at `LEVEL`.
    """

    value: float
    gain: float
    stderr: float
    lower: float

    def to_json(self) -> dict[str, float]:
        """Return plain JSON values."""
        return {
            "value": self.value, "gain": self.gain, "stderr": self.stderr, "lower": self.lower
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Models compared with a reference, and the one that is selected.

    Attributes:
        selected: Its name.
        judged: Each model by name, the reference among them.
        num_examples: Public examples that judged.
        num_groups: Groups of them.
    """

    selected: str
    judged: Mapping[str, Judged]
    num_examples: int
    num_groups: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "selected": self.selected,
            "level": LEVEL,
            "examples": self.num_examples,
            "groups": self.num_groups,
            "judged": {name: one.to_json() for name, one in self.judged.items()},
        }


def judge(
    values: Mapping[str, np.ndarray],
    groups: np.ndarray,
    *,
    reference: str,
    key: Key,
    higher_is_better: bool = True,
) -> Judgement:
    """Compare models with a reference and select one, or the reference.

    A model is eligible where the lower end of its gain's simultaneous interval is above zero: the
    quantile is that of the largest of all models' studentised bootstrap errors (max-t), which
    corrects for choosing among them. Of the eligible, the one with the largest gain is selected,
    or the first in the order given whose gain is within a standard error of that.

    Args:
        values: The headline measure of each example by each model, float64 (examples,); models in
            order of preference.
        groups: (examples,), examples of one group are drawn together.
        reference: A name among `values`: what is selected unless another is shown to be better.
        key: Draws the resamples.
        higher_is_better: Of the measure.

    Guarantees:
        * A function of its arguments alone.
        * Where no model is better than the reference, one is selected with probability at most
          1 - `LEVEL`, up to the bootstrap's error, which grows as groups become few.
    """
    names = [name for name in values if name != reference]
    base, sign = values[reference], 1.0 if higher_is_better else -1.0
    _, numbers = np.unique(groups, return_inverse=True)
    sizes = np.bincount(numbers).astype(np.float64)
    sums = np.stack(
        [np.bincount(numbers, sign * (values[name] - base), len(sizes)) for name in names], axis=1
    )
    gains = sums.sum(axis=0) / sizes.sum()
    drawn = _resampled(sums, sizes, key) if len(sizes) > 1 else np.tile(gains, (NUM_RESAMPLES, 1))
    stderr = drawn.std(axis=0, ddof=1)
    moves = stderr > 0.0
    if moves.any():
        errors = (drawn - gains)[:, moves] / stderr[moves]
        quantile = float(np.quantile(errors.max(axis=1), LEVEL))
    else:
        quantile = 0.0
    lower = gains - quantile * stderr
    judged = {reference: Judged(value=float(base.mean()), gain=0.0, stderr=0.0, lower=0.0)} | {
        name: Judged(
            value=float(values[name].mean()),
            gain=float(gains[place]),
            stderr=float(stderr[place]),
            lower=float(lower[place]),
        )
        for place, name in enumerate(names)
    }
    selected = reference
    eligible = np.flatnonzero(lower > 0.0) if len(sizes) >= FEWEST_GROUPS else np.empty(0, int)
    if len(eligible):
        best = eligible[np.argmax(gains[eligible])]
        behind = drawn[:, [best]] - drawn[:, eligible]
        near = gains[best] - gains[eligible] <= behind.std(axis=0, ddof=1)
        selected = names[eligible[np.argmax(near)]]
    return Judgement(
        selected=selected, judged=judged, num_examples=len(base), num_groups=len(sizes)
    )


def _resampled(sums: np.ndarray, sizes: np.ndarray, key: Key) -> np.ndarray:
    """Return the gains of resampled groups, float64 (resamples, models)."""
    generator, number = key.generator(), len(sizes)
    even = np.full(number, 1.0 / number)
    found = []
    for _ in range(NUM_RESAMPLES // _BLOCK):
        weights = generator.multinomial(number, even, _BLOCK).astype(np.float64)
        found.append(weights @ sums / (weights @ sizes)[:, None])
    return np.concatenate(found)
