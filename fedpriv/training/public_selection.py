"""Selection among models on public examples: one that is expected to be better, or is shown to be.

Public examples cost no privacy, so they may choose what a run returns. Each judges models that it
did not train (`PublicFold`), all models by the same examples. Examples of one group, such as the
sentences of a thread, are resampled together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedpriv.measures import Measure
from fedpriv.rng import Key
from fedpriv.training.public_learning import PublicLearner
from fedpriv.tree import Params

LEVEL = 0.95
"""Probability that no model that is no better than the reference is selected, of none expected."""
CLEARLY = 2.0
"""Standard errors by which a model must be ahead of one that is preferred to it."""
BEHIND = 0.5
"""Standard errors by which a model that is expected to be better may be behind the reference."""
NUM_RESAMPLES = 2000
FEWEST_GROUPS = 10
"""Below this nothing is judged: what is expected to be better is selected, or the reference."""
_BLOCK = 100  # resamples whose signs are in memory at once
_ROUNDING = 1e-9  # relative; sums in another order are not larger


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicFold:
    """A task without some of its public examples, and these examples to judge its models by.

    Attributes:
        measures: The task's; the headline first.
        groups: int64 (examples,): the group of each example held out, such as its thread.
        init_params: From a key to the params before training.
        public_learner: From (key, choosing=) to what learns from the task's other public examples;
            as of a `BaseTask`.
        values: From params to the headline measure of each example held out, float64 (examples,).
    """

    measures: Sequence[Measure]
    groups: np.ndarray = field(repr=False)
    init_params: Callable[[Key], Params] = field(repr=False)
    public_learner: Callable[..., PublicLearner | None] = field(repr=False)
    values: Callable[[Params], np.ndarray] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Comparison of one model with the reference on public examples.

    Attributes:
        value: Mean of the headline measure.
        gain: Mean difference from the reference, positive where better.
        stderr: Standard error of the gain, over groups.
        lower: The gain less what it would have to exceed for the model to be better at `LEVEL`,
            compared with all others at once; above zero where it is.
    """

    value: float
    gain: float
    stderr: float
    lower: float


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
            "judged": {name: asdict(one) for name, one in self.judged.items()},
        }


def judge(
    values: Mapping[str, np.ndarray],
    groups: np.ndarray,
    *,
    reference: str,
    key: Key,
    expected: str | None = None,
    higher_is_better: bool = True,
) -> Judgement:
    """Compare models with a reference and select one, or the reference.

    A model that is expected to be better is selected unless it is behind the reference by more than
    `BEHIND` standard errors, of at least `FEWEST_GROUPS` groups. Where none is, or it is behind, a
    model has to be shown to be better.
    A model is eligible where its gain, over its root mean square, exceeds the quantile of the
    largest of all models' such statistics (max-t) in a wild bootstrap: the differences from the
    reference change their sign at random, those of a group together and those of all models
    together, as they could if no model were better. The maximum corrects for choosing among them.
    Of the eligible, the one with the largest gain is selected, or the first in the order given
    whose gain is within `CLEARLY` standard errors of that.

    Args:
        values: The headline measure of each example by each model, float64 (examples,); models in
            order of preference.
        groups: (examples,), examples of one group are resampled together; what numbers they have
            changes nothing.
        reference: A name among `values`: what is selected where none is expected to be better and
            none is shown to be.
        key: Draws the signs.
        expected: A name among `values`, of a model that something else than these examples lets
            expect to be better than the reference; None for none.
        higher_is_better: Of the measure.

    Guarantees:
        * A function of its arguments alone.
        * Where none is expected to be better, and no model is better than the reference, one is
          selected with probability at most 1 - `LEVEL`, for any number of groups if their
          differences are symmetric about zero, and approximately for many groups if they are not.
    """
    names = [name for name in values if name != reference]
    base, sign = values[reference], 1.0 if higher_is_better else -1.0
    numbers = _in_order(groups)
    sizes = np.bincount(numbers).astype(np.float64)
    sums = np.stack(
        [np.bincount(numbers, sign * (values[name] - base), len(sizes)) for name in names], axis=1
    )
    gains = sums.sum(axis=0) / sizes.sum()
    roots = np.sqrt((sums**2).sum(axis=0))  # of zero where a model answers as the reference does
    quantile = _quantile(sums[:, roots > 0.0] / roots[roots > 0.0], key)
    lower = gains - quantile * roots / sizes.sum()
    stderr = _stderr(sums, sizes)
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
    eligible = np.flatnonzero(lower > _ROUNDING * np.abs(gains))
    if len(sizes) >= FEWEST_GROUPS and len(eligible):
        best = eligible[np.argmax(gains[eligible])]
        behind = _stderr(sums[:, [best]] - sums[:, eligible], sizes)
        near = gains[best] - gains[eligible] <= CLEARLY * behind
        selected = names[eligible[np.argmax(near)]]
    if expected is not None:
        one = judged[expected]
        if len(sizes) < FEWEST_GROUPS or one.gain >= -BEHIND * one.stderr:
            selected = expected
    return Judgement(
        selected=selected, judged=judged, num_examples=len(base), num_groups=len(sizes)
    )


def _in_order(groups: np.ndarray) -> np.ndarray:
    """Return the groups numbered in the order in which they come, int64 (examples,)."""
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]


def _quantile(standardised: np.ndarray, key: Key) -> float:
    """Return the `LEVEL` quantile of the largest sum of columns whose rows change their sign."""
    number, models = standardised.shape
    if not models:
        return 0.0
    generator, found = key.generator(), []
    for _ in range(NUM_RESAMPLES // _BLOCK):
        signs = generator.integers(0, 2, (_BLOCK, number), np.int8) * 2.0 - 1.0
        found.append((signs @ standardised).max(axis=1))
    return float(np.quantile(np.concatenate(found), LEVEL, method="higher"))


def _stderr(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return standard errors of the mean over examples, float64 (models,), of sums of groups."""
    number, total = len(sizes), sizes.sum()
    rest = sums - np.outer(sizes, sums.sum(axis=0) / total)
    return np.sqrt((rest**2).sum(axis=0) * (number / max(number - 1, 1))) / total
