"""Server optimisers, and optimisers of the released mean gradient, as parts.

A new optimiser is a `Transform` of the released mean and a part that makes it, named in
`ServerOptimizer` or `GradientOptimizer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpriv import optimizers
from fedpriv.parts import Fraction, Part, PositiveFloat, PositiveInt
from fedpriv.transform import Transform


class OptimizerPart(Part):
    """Base of optimisers."""

    __slots__ = ()

    @property
    def past_of_sums(self) -> float:
        """β where steps are along sums of the past with weights β^k; 0 for what is not linear."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd(OptimizerPart):
    """Plain steps.

    Attributes:
        learning_rate: Step size on the released mean.
    """

    kind: ClassVar[str] = "sgd"

    learning_rate: PositiveFloat = 0.1

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.sgd(self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(OptimizerPart):
    """Steps along a decayed sum of the past.

    Attributes:
        learning_rate: Step size on the released mean.
        momentum: Weight of the past.
    """

    kind: ClassVar[str] = "momentum"

    learning_rate: PositiveFloat = 0.1
    momentum: Fraction = 0.9

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.momentum(self.learning_rate, self.momentum, ema=False)

    @property
    def past_of_sums(self) -> float:
        """β."""
        return self.momentum


@dataclass(frozen=True, slots=True, kw_only=True)
class Ftrl(Momentum):
    """Steps from where training began (DP-FTRL), along the sum of all that was released.

    Attributes:
        restart: Steps after which it restarts from where it is; none for never.
    """

    kind: ClassVar[str] = "ftrl"

    restart: PositiveInt | None = None

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.ftrl(self.learning_rate, self.momentum, restart=self.restart)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmaMomentum(OptimizerPart):
    """Steps along an average of the past.

    Attributes:
        learning_rate: Step size on the released mean.
        momentum: Weight of the past.
    """

    kind: ClassVar[str] = "ema-momentum"

    learning_rate: PositiveFloat = 0.1
    momentum: Fraction = 0.9

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.momentum(self.learning_rate, self.momentum, ema=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(OptimizerPart):
    """Steps along an average of the past, divided by √v, both corrected for their start.

    Attributes:
        learning_rate: Step size of every coordinate, however small its mean: try 0.01 to 0.2.
        momentum: Weight of the past, β₁.
        adaptivity: Added to √v.
    """

    kind: ClassVar[str] = "adam"

    learning_rate: PositiveFloat = 0.1
    momentum: Fraction = 0.9
    adaptivity: PositiveFloat = 1e-8

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.adam(self.learning_rate, self.adaptivity, beta1=self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Yogi(Adam):
    """Steps along an average of the past, divided by √v that falls slowly."""

    kind: ClassVar[str] = "yogi"

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.yogi(self.learning_rate, self.adaptivity, beta1=self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(OptimizerPart):
    """Steps divided by √v, v a sum of squares.

    Attributes:
        learning_rate: Step size of every coordinate, however small its mean: try 0.01 to 0.2.
        adaptivity: Added to √v.
    """

    kind: ClassVar[str] = "adagrad"

    learning_rate: PositiveFloat = 0.1
    adaptivity: PositiveFloat = 1e-8

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.adagrad(self.learning_rate, self.adaptivity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rmsprop(Adagrad):
    """Steps divided by √v, v an average of squares."""

    kind: ClassVar[str] = "rmsprop"

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.rmsprop(self.learning_rate, self.adaptivity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSgd(Sgd):
    """Plain steps, with a server's defaults."""

    learning_rate: PositiveFloat = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMomentum(Momentum):
    """Steps along a decayed sum of the past, with a server's defaults."""

    learning_rate: PositiveFloat = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEmaMomentum(EmaMomentum):
    """Steps along an average of the past, with a server's defaults."""

    learning_rate: PositiveFloat = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAdam(Adam):
    """Adam, with a server's defaults."""

    adaptivity: PositiveFloat = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFtrl(Ftrl):
    """Steps from where training began (DP-FTRL), with a server's defaults."""

    learning_rate: PositiveFloat = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerYogi(Yogi):
    """Yogi, with a server's defaults."""

    adaptivity: PositiveFloat = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAdagrad(Adagrad):
    """Adagrad, with a server's defaults."""

    adaptivity: PositiveFloat = 1e-3


ServerOptimizer = (
    ServerSgd
    | ServerMomentum
    | ServerEmaMomentum
    | ServerAdam
    | ServerFtrl
    | ServerYogi
    | ServerAdagrad
)
GradientOptimizer = Sgd | Momentum | EmaMomentum | Adam | Rmsprop | Adagrad
