"""Measuring a model. What is measured on rostered users is a diagnostic, never a release."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

#: One of so many equal shares of what is measured: (number from 0, how many).
Part = tuple[int, int]
WHOLE: Part = (0, 1)

#: What is made of a mean: itself, e to its power (perplexity), or its square root.
MadeOf = Literal["mean", "exp of mean", "root of mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum over so many of whatever is counted: totals of parts add up to the whole's.

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
        """Return the total that a mean is of.

        A sum that is whole but for the division's rounding is taken to be whole, so that a share
        counts as what it was counted from.
        """
        found = mean * count
        if math.isfinite(found) and abs(found - round(found)) <= 2 * math.ulp(found):
            found = float(round(found))
        return cls(sum=found, count=count)

    @property
    def value(self) -> float:
        """The figure; 0 of nothing."""
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
        """Return a figure; None if it was not measured."""
        return self.totals[name].value if name in self.totals else None


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
