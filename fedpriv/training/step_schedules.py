"""Step sizes of permutation SGD, counted over all updates from 1.

================  ==============================  ============================================
kind              η_t                             for
================  ==============================  ============================================
constant          η                               convex (η <= 2/β), strongly convex (η <= 1/β)
power             η / t^c                         the same; "invscaling" of scikit-learn
decreasing        2 / (β (t + m^c))               convex
square-root       2 / (β (√t + m^c))              convex
strongly-convex   min(1/β, 1/(γt))                strongly convex
================  ==============================  ============================================

β and γ are of the loss (`fedpriv.training.convex_losses.Constants`), m the number of examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpriv.parts import Fraction, Part, PositiveFloat
from fedpriv.ranges import positive_int
from fedpriv.training.convex_losses import Constants


class StepSchedule(Part, ABC):
    """Base of the step size of each update; a class with a `kind` is one that experiments take."""

    __slots__ = ()
    kind: ClassVar[str]

    def rates(self, num_updates: int, *, constants: Constants, num_examples: int) -> np.ndarray:
        """Return η_1, η_2, ..., float64.

        Args:
            num_updates: How many, over all passes.
            constants: Of the loss.
            num_examples: m, or the number of users.

        Raises:
            ValueError: If an update would not be a contraction: a step longer than 2/β, or than
                1/β of a strongly convex loss; or if the schedule wants a loss of another kind.
        """
        t = np.arange(1, positive_int("num_updates", num_updates) + 1, dtype=np.float64)
        rates = self.at(t, constants, num_examples)
        beta, convex = constants.smoothness, constants.convexity == 0.0
        limit, said = (2.0 / beta, "2/β") if convex else (1.0 / beta, "1/β")
        if float(rates.max()) > limit * (1.0 + 1e-12):
            raise ValueError(
                f"a step of {float(rates.max()):g} is above {limit:g}, {said} of "
                f"{constants.name}: beyond it two runs need not stay close; lower the rate"
            )
        return rates

    @abstractmethod
    def at(self, t: np.ndarray, constants: Constants, num_examples: int) -> np.ndarray:
        """Return the step sizes of updates t, float64; `rates` refuses those that are too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantStep(StepSchedule):
    """η_t = η.

    Attributes:
        rate: η, at most 2/β; of a strongly convex loss at most 1/β.
    """

    kind: ClassVar[str] = "constant"

    rate: PositiveFloat = 0.1

    def at(self, t: np.ndarray, constants: Constants, num_examples: int) -> np.ndarray:
        """Return η for each."""
        return np.full(len(t), self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerStep(ConstantStep):
    """η_t = η / t^c.

    Attributes:
        exponent: c, in [0, 1).
    """

    kind: ClassVar[str] = "power"

    exponent: Fraction = 0.5

    def at(self, t: np.ndarray, constants: Constants, num_examples: int) -> np.ndarray:
        """Return η / t^c."""
        return self.rate / t**self.exponent


@dataclass(frozen=True, slots=True, kw_only=True)
class DecreasingStep(StepSchedule):
    """η_t = 2 / (β (t + m^c)).

    Attributes:
        exponent: c, in [0, 1).
    """

    kind: ClassVar[str] = "decreasing"

    exponent: Fraction = 0.5

    def at(self, t: np.ndarray, constants: Constants, num_examples: int) -> np.ndarray:
        """Return 2 / (β (t + m^c))."""
        return 2.0 / (constants.smoothness * (t + float(num_examples) ** self.exponent))


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareRootStep(DecreasingStep):
    """η_t = 2 / (β (√t + m^c))."""

    kind: ClassVar[str] = "square-root"

    def at(self, t: np.ndarray, constants: Constants, num_examples: int) -> np.ndarray:
        """Return 2 / (β (√t + m^c))."""
        # `super()` does not know a class remade with slots.
        return DecreasingStep.at(self, np.sqrt(t), constants, num_examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class StronglyConvexStep(StepSchedule):
    """η_t = min(1/β, 1/γt)."""

    kind: ClassVar[str] = "strongly-convex"

    def at(self, t: np.ndarray, constants: Constants, num_examples: int) -> np.ndarray:
        """Return min(1/β, 1/γt).

        Raises:
            ValueError: If the loss is not strongly convex.
        """
        if constants.convexity == 0.0:
            raise ValueError(
                "step 'strongly-convex' needs a regulariser; give one above 0, or another schedule"
            )
        return np.minimum(1.0 / constants.smoothness, 1.0 / (constants.convexity * t))
