"""Aggregates of released models, as parts.

A new aggregate is a `Transform` of released params and a part that makes it, named in `Aggregate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedpriv.checkpoints import aggregates
from fedpriv.parts import Fraction, NonNegativeInt, Part, PositiveInt
from fedpriv.training.federated_averaging import AtAggregates
from fedpriv.transform import Transform, identity


class AggregatePart(Part, ABC):
    """Base of aggregates."""

    __slots__ = ()

    @abstractmethod
    def make(self) -> Transform:
        """Return the aggregate: a transform of the params of successive rounds."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of `FederatedAveraging` that it sets."""
        return {"aggregate": self.make()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Last(AggregatePart):
    """The last released model."""

    kind: ClassVar[str] = "none"

    def make(self) -> Transform:
        """Return the transform that changes nothing."""
        return identity()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsAggregate(AggregatePart):
    """Base of aggregates of params: one model made of several, which training may go on from.

    Attributes:
        training: Whether updates are made at the aggregate, and so what is replaced by it.
        start: Rounds or steps before training over aggregates begins.
    """

    training: Literal["none", "replace", "gradient-only"] = "none"
    start: NonNegativeInt = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of `FederatedAveraging` that it sets.

        Raises:
            ValueError: If a start is given without training over aggregates.
        """
        if self.training != "none":
            at = AtAggregates(start=self.start, reading=self.training)
            return {"aggregate": self.make(), "at_aggregates": at}
        if self.start:
            raise ValueError(
                f"aggregate-start {self.start} is of training over aggregates, and there "
                "is none; set aggregate-training to replace or gradient-only, or leave it out"
            )
        return {"aggregate": self.make()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Average(ParamsAggregate):
    """An exponential moving average of the released models.

    Attributes:
        ema_decay: Weight of the past in the average.
        ema_warmup: Whether the decay of round t is at most (1+t)/(10+t).
    """

    kind: ClassVar[str] = "ema"

    ema_decay: Fraction = 0.9
    ema_warmup: bool = False

    def make(self) -> Transform:
        """Return the aggregate."""
        return aggregates.ema(self.ema_decay, warmup=self.ema_warmup)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(ParamsAggregate):
    """The uniform average of the last released models (UPA).

    Attributes:
        k: How many of the last released models.
    """

    kind: ClassVar[str] = "upa"

    k: PositiveInt = 5

    def make(self) -> Transform:
        """Return the aggregate."""
        return aggregates.upa(self.k)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOutputs(AggregatePart):
    """The mean of the last models' probabilities (OPA); the released model is the last.

    Attributes:
        k: How many of the last released models.
    """

    kind: ClassVar[str] = "opa"

    k: PositiveInt = 5

    def make(self) -> Transform:
        """Return the aggregate, which keeps the models."""
        return aggregates.keeping(self.k)

    def fields(self) -> dict[str, Any]:
        """Return the fields of `FederatedAveraging` that it sets."""
        return {"aggregate": self.make(), "outputs": self.kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote(MeanOutputs):
    """The class that most of the last models answer with (OMV); the released model is the last."""

    kind: ClassVar[str] = "omv"


Aggregate = Last | Average | Uniform | MeanOutputs | MajorityVote
