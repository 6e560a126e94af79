"""Measuring one model, or aggregates of several models' outputs, on any backend.

What is measured on rostered users is a diagnostic, never a release. A backend measures params;
those of several models are one tree (`checkpoints.outputs.packed`), so that values are the same
wherever they are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from fedpriv.checkpoints.aggregates import RULES, Rule, answers, unpacked
from fedpriv.measures import ACCURACY
from fedpriv.tree import Params

#: One of so many equal shares of what is measured: (number from 0, how many).
Part = tuple[int, int]
WHOLE: Part = (0, 1)
#: Of a task that divides by users, the first; of one that divides by blocks, the first block.
FEW: Part = (0, 1 << 20)

#: What is made of a mean: itself, e to its power (perplexity), or its square root.
MadeOf = Literal["mean", "exp of mean", "root of mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum and the number of items in it: totals of parts add up to the total of the whole.

    Attributes:
        sum: Of a share, how many: a whole number, which adds up without rounding.
        count: Examples, tags, words.
        value_is: What is made of sum / count.
    """

    sum: float
    count: int
    value_is: MadeOf = "mean"

    @classmethod
    def of_mean(cls, mean: float, count: int) -> Total:
        """Return the total of a mean over so many items.

        A sum that is whole but for the division's rounding is taken to be whole, so that a share
        counts as what it was counted from.
        """
        found = mean * count
        if math.isfinite(found) and abs(found - round(found)) <= 2 * math.ulp(found):
            found = float(round(found))
        return cls(sum=found, count=count)

    @property
    def value(self) -> float:
        """The mean, or its transform; 0 of no items."""
        mean = self.sum / max(self.count, 1)
        match self.value_is:
            case "exp of mean":
                return math.exp(mean) if mean < 700 else math.inf if mean >= 700 else math.nan
            case "root of mean":
                return math.sqrt(mean) if mean >= 0 else math.nan
            case _:
                return mean

    def __add__(self, other: Total) -> Total:
        return Total(
            sum=self.sum + other.sum, count=self.count + other.count, value_is=self.value_is
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of one model on one set of examples.

    Attributes:
        totals: By the name of the task's `Measure`.
        num_examples: How many examples were measured.
    """

    totals: Mapping[str, Total] = field(default_factory=dict)
    num_examples: int = 0

    @classmethod
    def of(cls, num_examples: int, **means: float) -> Metrics:
        """Return metrics that are means over examples, by name.

        >>> Metrics.of(3, accuracy=1 / 3, loss=0.7).get("accuracy")
        0.3333333333333333
        """
        totals = {name: Total.of_mean(float(mean), num_examples) for name, mean in means.items()}
        return cls(totals=totals, num_examples=num_examples)

    def get(self, name: str) -> float | None:
        """Return a figure; None if it was not measured, or on no items."""
        found = self.totals.get(name)
        return found.value if found is not None and found.count else None


def combined(parts: Iterable[Metrics | None]) -> Metrics | None:
    """Return the metrics of all parts' examples together, or None when there are none.

    Shares are whole counts, so they are exactly those of measuring everything at once; means of
    real numbers are to rounding. A figure that a part lacks is left out.
    """
    found = [part for part in parts if part is not None and part.num_examples]
    if not found:
        return None
    totals = dict(found[0].totals)
    for part in found[1:]:
        totals = {
            name: total + part.totals[name] for name, total in totals.items() if name in part.totals
        }
    return Metrics(totals=totals, num_examples=sum(part.num_examples for part in found))


def chunks(num_examples: int, part: Part = WHOLE, size: int = 1024) -> Iterator[slice]:
    """Yield one part's slices of a row of examples.

    The slices are the same for every number of parts, so a product of matrices that depends on how
    many rows it is given still gives every example the same scores.
    """
    number, of = part
    for start in range(number * size, num_examples, of * size):
        yield slice(start, min(start + size, num_examples))


ClassScores = Iterator[tuple[np.ndarray, np.ndarray]]
"""Blocks of examples: probabilities, float64 `(n, classes)`, and labels, int64 `(n,)`."""


def measure_of(task: Any) -> Callable[..., Metrics | None]:
    """Return how a task measures one model or several, from (params, public=, part=)."""
    return partial(measure_models, task)


def measure_models(
    task: Any, params: Params, *, public: bool, part: Part | None = None
) -> Metrics | None:
    """Return the metrics of one model or of several together.

    Args:
        task: Measures one by its `evaluate`, several by its `class_scores`.
        params: Of one model, or of several (`fedpriv.checkpoints.aggregates.packed`), of which
            accuracy alone is measured.
        public: On public examples, or on those held out of rostered users.
        part: Only this share; None for all.

    Raises:
        ValueError: If several models are given, and the task gives classes no probabilities.
    """
    share = {} if part is None else {"part": part}
    together = unpacked(params)
    if together is None:
        return task.evaluate(params, public=public, **share)
    rule, models = together
    blocks = [_scores(task, model, rule, public=public, **share) for model in models]
    right = count = 0
    for found in zip(*blocks, strict=True):
        labels = found[0][1]
        right += int(np.count_nonzero(answers(rule, [p for p, _ in found]) == labels))
        count += len(labels)
    if not count:
        return None
    totals = {ACCURACY.name: Total(sum=right, count=count)}
    return Metrics(totals=totals, num_examples=count)


def check_measurable(task: Any, algorithm: Any) -> None:
    """Refuse aggregates of outputs where they could not be measured; nothing is charged yet then.

    Raises:
        ValueError: If a task has no classes, or is headed by another figure than accuracy.
    """
    rule = algorithm.outputs
    if rule in RULES:
        head = next(iter(getattr(task, "measures", ())), ACCURACY)
        if head.name != ACCURACY.name:
            raise ValueError(
                f"aggregate {rule!r} is measured by accuracy, and {task.name} is headed by "
                f"{head.label}; give an aggregate of params, ema or upa"
            )
        _scores(task, {}, rule, public=True)


def _scores(task: Any, params: Params, rule: Rule, **which: Any) -> Any:
    found = task.class_scores(params, **which)
    if found is None:
        raise ValueError(
            f"aggregate {rule!r} is made of probabilities of classes, which this task does not "
            "give; let it have class_scores (fedpriv.tasks.task.Task), or use "
            "ema or upa"
        )
    return found
