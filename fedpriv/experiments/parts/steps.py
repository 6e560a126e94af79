"""What is made of the released mean: the server optimisers that experiments choose from.

A new one is a transform in `fedpriv.optimizers` and a part here that makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpriv import optimizers
from fedpriv.experiments.composing.options import option
from fedpriv.ranges import Range
from fedpriv.transform import Transform


class _Step:
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

    learning_rate: float = _rate()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.sgd(self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum(_Step):
    """Steps along a decayed sum of the past."""

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

    learning_rate: float = _rate()
    momentum: float = _past()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.momentum(self.learning_rate, self.momentum, ema=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(_Step):
    """Steps along an average of the past, divided by √v, both corrected for their start."""

    learning_rate: float = _rate()
    momentum: float = _past(", β₁")
    adaptivity: float = _adaptivity()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.adam(self.learning_rate, self.adaptivity, beta1=self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Yogi(_Step):
    """Steps along an average of the past, divided by √v that falls slowly."""

    learning_rate: float = _rate()
    momentum: float = _past(", β₁")
    adaptivity: float = _adaptivity()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.yogi(self.learning_rate, self.adaptivity, beta1=self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad(_Step):
    """Steps divided by √v, v a sum of squares."""

    learning_rate: float = _rate()
    adaptivity: float = _adaptivity()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.adagrad(self.learning_rate, self.adaptivity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rmsprop(_Step):
    """Steps divided by √v, v an average of squares."""

    learning_rate: float = _rate()
    adaptivity: float = _adaptivity()

    def make(self) -> Transform:
        """Return the optimiser."""
        return optimizers.rmsprop(self.learning_rate, self.adaptivity)


_BOTH: Mapping[str, type] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "ema-momentum": EmaMomentum,
    "adam": Adam,
}
OF_USERS: Mapping[str, type] = {**_BOTH, "ftrl": Ftrl, "yogi": Yogi, "adagrad": Adagrad}
OF_EXAMPLES: Mapping[str, type] = {**_BOTH, "rmsprop": Rmsprop, "adagrad": Adagrad}
