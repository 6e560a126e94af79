"""Server optimisers and aggregates of the released models.

A new optimiser is a transform in `fedpriv.optimizers` and a part here that makes it; a new
aggregate is a transform in `fedpriv.checkpoints.aggregates` and a part here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedpriv import optimizers
from fedpriv.checkpoints import aggregates
from fedpriv.experiments.options import Part, option
from fedpriv.ranges import Range
from fedpriv.transform import Transform, identity

if TYPE_CHECKING:
    from fedpriv.training.federated_averaging import AtAggregates


class _Step(Part):
    """What optimisers have in common."""

    __slots__ = ()

    @property
    def past_of_sums(self) -> float:
        """β where steps are along sums of the past with weights β^k; 0 for what is not linear."""
        return 0.0


def _rate() -> Any:
    return option(0.1, "Step size on the released mean.", Range.ABOVE_ZERO)


def _past(symbol: str = "") -> Any:
    return option(0.9, f"Weight of the past{symbol}.", Range.FRACTION)


def _adaptivity() -> Any:
    return option(1e-8, "Added to √v.", Range.ABOVE_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd(_Step):
    """Plain steps."""

    kind: ClassVar[str] = "sgd"

    learning_rate: float = _rate()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.sgd(self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(_Step):
    """Steps along a decayed sum of the past."""

    kind: ClassVar[str] = "momentum"

    learning_rate: float = _rate()
    momentum: float = _past()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.momentum(self.learning_rate, self.momentum, ema=False)

    @property
    def past_of_sums(self) -> float:
        """β."""
        return self.momentum


@dataclass(frozen=True, slots=True, kw_only=True)
class Ftrl(_Step):
    """Steps from where training began (DP-FTRL), along the sum of all that was released."""

    kind: ClassVar[str] = "ftrl"

    learning_rate: float = _rate()
    momentum: float = _past()
    restart: int | None = option(
        None, "Steps after which it begins anew from where it is; none for never.",
        Range.AT_LEAST_ONE,
    )  # fmt: skip

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.ftrl(self.learning_rate, self.momentum, restart=self.restart)

    @property
    def past_of_sums(self) -> float:
        """β."""
        return self.momentum


@dataclass(frozen=True, slots=True, kw_only=True)
class EmaMomentum(_Step):
    """Steps along an average of the past."""

    kind: ClassVar[str] = "ema-momentum"

    learning_rate: float = _rate()
    momentum: float = _past()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.momentum(self.learning_rate, self.momentum, ema=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(_Step):
    """Steps along an average of the past, divided by √v, both corrected for their start."""

    kind: ClassVar[str] = "adam"

    learning_rate: float = _rate()
    momentum: float = _past(", β₁")
    adaptivity: float = _adaptivity()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.adam(self.learning_rate, self.adaptivity, beta1=self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Yogi(_Step):
    """Steps along an average of the past, divided by √v that falls slowly."""

    kind: ClassVar[str] = "yogi"

    learning_rate: float = _rate()
    momentum: float = _past(", β₁")
    adaptivity: float = _adaptivity()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.yogi(self.learning_rate, self.adaptivity, beta1=self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(_Step):
    """Steps divided by √v, v a sum of squares."""

    kind: ClassVar[str] = "adagrad"

    learning_rate: float = _rate()
    adaptivity: float = _adaptivity()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.adagrad(self.learning_rate, self.adaptivity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rmsprop(_Step):
    """Steps divided by √v, v an average of squares."""

    kind: ClassVar[str] = "rmsprop"

    learning_rate: float = _rate()
    adaptivity: float = _adaptivity()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.rmsprop(self.learning_rate, self.adaptivity)


def _server_rate() -> Any:
    return option(1.0, "Step size on the released mean.", Range.ABOVE_ZERO)


def _server_adaptivity() -> Any:
    return option(1e-3, "Added to √v.", Range.ABOVE_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSgd(Sgd):
    """Plain steps, with a server's defaults."""

    learning_rate: float = _server_rate()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMomentum(Momentum):
    """Steps along a decayed sum of the past, with a server's defaults."""

    learning_rate: float = _server_rate()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEmaMomentum(EmaMomentum):
    """Steps along an average of the past, with a server's defaults."""

    learning_rate: float = _server_rate()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAdam(Adam):
    """Adam, with a server's defaults."""

    learning_rate: float = _server_rate()
    adaptivity: float = _server_adaptivity()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFtrl(Ftrl):
    """Steps from where training began (DP-FTRL), with a server's defaults."""

    learning_rate: float = _server_rate()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerYogi(Yogi):
    """Yogi, with a server's defaults."""

    learning_rate: float = _server_rate()
    adaptivity: float = _server_adaptivity()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAdagrad(Adagrad):
    """Adagrad, with a server's defaults."""

    learning_rate: float = _server_rate()
    adaptivity: float = _server_adaptivity()


@dataclass(frozen=True, slots=True, kw_only=True)
class Last(Part):
    """The last released model."""

    kind: ClassVar[str] = "none"

    def make(self) -> Transform:
        """Return the aggregate."""
        return identity()

    def averaging(self) -> dict[str, Any]:
        """Return what averaging is made with: its arguments."""
        return {"aggregate": self.make()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfParams(Last):
    """One model made of several, which training may go on from."""

    training: Literal["none", "replace", "gradient-only"] = option(
        "none", "Whether updates are made at the aggregate, and so what is replaced by it."
    )
    start: int = option(
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

        if self.training != "none":
            return AtAggregates(start=self.start, reading=self.training)
        if self.start:
            raise ValueError(
                f"aggregate-start {self.start} is of training over aggregates, and there "
                "is none; set aggregate-training to replace or gradient-only, or leave it out"
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Average(_OfParams):
    """An exponential moving average of the released models."""

    kind: ClassVar[str] = "ema"

    ema_decay: float = option(0.9, "Weight of the past in the average.", Range.FRACTION)
    ema_warmup: bool = option(False, "Whether the decay of round t is at most (1+t)/(10+t).")

    def make(self) -> Transform:
        """Return the aggregate."""
        return aggregates.ema(self.ema_decay, warmup=self.ema_warmup)


_K = "How many of the last released models."


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(_OfParams):
    """The uniform average of the last released models (UPA)."""

    kind: ClassVar[str] = "upa"

    k: int = option(5, _K, Range.AT_LEAST_ONE)

    def make(self) -> Transform:
        """Return the aggregate."""
        return aggregates.upa(self.k)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOutputs(Last):
    """The mean of the last models' probabilities (OPA); the released model is the last."""

    kind: ClassVar[str] = "opa"

    k: int = option(5, _K, Range.AT_LEAST_ONE)

    def make(self) -> Transform:
        """Return what keeps the models."""
        return aggregates.keeping(self.k)

    def averaging(self) -> dict[str, Any]:
        """Return what averaging is made with: its arguments."""
        return {"aggregate": self.make(), "outputs": "opa"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote(MeanOutputs):
    """The class that most of the last models answer with (OMV); the released model is the last."""

    kind: ClassVar[str] = "omv"

    def averaging(self) -> dict[str, Any]:
        """Return what averaging is made with: its arguments."""
        return {"aggregate": self.make(), "outputs": "omv"}
