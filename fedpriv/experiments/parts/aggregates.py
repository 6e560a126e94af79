"""What is made of the released models (option `aggregate`), and whether training goes on from it.

Each part makes its own transform, and says what averaging has to know of it besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.checkpoints import aggregates
from fedpriv.experiments.composing.composition import Slot
from fedpriv.experiments.composing.options import option
from fedpriv.ranges import Range
from fedpriv.transform import Transform, identity

if TYPE_CHECKING:
    from fedpriv.training.federated_averaging import AtAggregates


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """The last released model."""

    def make(self) -> Transform:
        """Return the aggregate."""
        return identity()

    def averaging(self) -> dict[str, Any]:
        """Return what averaging is made with: its arguments."""
        return {"aggregate": self.make()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfParams(Last):
    """One model made of several, which training may go on from."""

    aggregate_training: Literal["none", "replace", "gradient-only"] = option(
        "none", "Whether updates are made at the aggregate, and so what is replaced by it."
    )
    aggregate_start: int = option(
        0, "Rounds or steps before training over aggregates begins.", Range.AT_LEAST_ZERO
    )

    def averaging(self) -> dict[str, Any]:
        """Return what averaging is made with: its arguments.

        Raises:
            ValueError: If a start is given of a training that there is not.
        """
        return {"aggregate": self.make(), "at_aggregates": self._trained()}

    def _trained(self) -> AtAggregates | None:
        from fedpriv.training.federated_averaging import AtAggregates

        if self.aggregate_training != "none":
            return AtAggregates(start=self.aggregate_start, reading=self.aggregate_training)
        if self.aggregate_start:
            raise ValueError(
                f"aggregate-start {self.aggregate_start} is of training over aggregates, and there "
                "is none; set aggregate-training to replace or gradient-only, or leave it out"
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Average(_OfParams):
    """An exponential moving average of the released models."""

    ema_decay: float = option(0.9, "Weight of the past in the average.", Range.FRACTION)
    ema_warmup: bool = option(False, "Whether the decay of round t is at most (1+t)/(10+t).")

    def make(self) -> Transform:
        """Return the aggregate."""
        return aggregates.ema(self.ema_decay, warmup=self.ema_warmup)


_K = "How many of the last released models."


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(_OfParams):
    """The uniform average of the last released models (UPA)."""

    aggregate_k: int = option(5, _K, Range.AT_LEAST_ONE)

    def make(self) -> Transform:
        """Return the aggregate."""
        return aggregates.upa(self.aggregate_k)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOutputs(Last):
    """The mean of the last models' probabilities (OPA); the released model is the last."""

    aggregate_k: int = option(5, _K, Range.AT_LEAST_ONE)

    def make(self) -> Transform:
        """Return what keeps the models."""
        return aggregates.keeping(self.aggregate_k)

    def averaging(self) -> dict[str, Any]:
        """Return what averaging is made with: its arguments."""
        return {"aggregate": self.make(), "outputs": "opa"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote(MeanOutputs):
    """The class that most of the last models answer with (OMV); the released model is the last."""

    def averaging(self) -> dict[str, Any]:
        """Return what averaging is made with: its arguments."""
        return {"aggregate": self.make(), "outputs": "omv"}


AGGREGATE = Slot(
    name="aggregate",
    help="What is made of the released models.",
    choices={
        "none": Last,
        "ema": Average,
        "upa": Uniform,
        "opa": MeanOutputs,
        "omv": MajorityVote,
    },
    within=("method", frozenset({"averaging"})),
)
