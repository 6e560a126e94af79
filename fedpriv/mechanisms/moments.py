"""φ, ϕ and ψ of AdaDPS: moments of public gradients, and how a gradient is divided by them.

Every rule is coordinate-wise. `second` (φ) updates v, `first` (ϕ) updates m, and an update is
then preconditioned as ψ(Δ) = (own Δ + (1 - own) m) / A with A made of v by `denominator`. To bring
rules of your own, write functions of those shapes and make a `Statistics` of them.

Source: Li, Zaheer, Reddi and Smith, "Private Adaptive Optimization with Side Information" (ICML
2022, arXiv:2202.05963), Algorithm 1 and its instances RMSProp, Adam and AdaGrad.

>>> rule = rmsprop(decay=0.9)
>>> v = rule.second(np.zeros(2, np.float32), np.array([1.0, 0.1], np.float32))
>>> [round(float(x), 4) for x in v]
[0.1, 0.001]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedpriv.ranges import Range, finite_float, positive_float

#: From (moment, public gradient) to the new moment, float32 arrays of one shape.
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How public gradients become a preconditioner.

    Attributes:
        second: φ, updates the second moment v.
        first: ϕ, updates the first moment m; None where ψ does not mix.
        own: Weight of the private gradient in the mix; 1 without.
        regulariser: ε_s, keeps A away from 0.
        inside: Whether ε_s is added to v, A = √(v + ε_s), or to its root, A = √v + ε_s.
        scale: From v to A, positive, in the place of the root; None for the root.
    """

    second: Rule
    first: Rule | None = None
    own: float = 1.0
    regulariser: float = 1e-3
    inside: bool = False
    scale: Callable[[np.ndarray], np.ndarray] | None = None

    def __post_init__(self) -> None:
        positive_float("regulariser", self.regulariser)
        if not 0.0 < self.own <= 1.0:
            raise ValueError(f"own weight {self.own!r} must lie in (0, 1]")
        if self.first is None and self.own != 1.0:
            raise ValueError(f"own weight {self.own!r} needs a rule for the first moment")

    def denominator(self, second: np.ndarray) -> np.ndarray:
        """Return A, float32.

        Raises:
            ValueError: If a `scale` of somebody's own is not positive and finite everywhere.
        """
        if self.scale is not None:
            found = np.asarray(self.scale(second), np.float32)
            if found.shape != second.shape or not np.all(np.isfinite(found) & (found > 0)):
                raise ValueError(
                    f"scale() of v {second.shape} gave {found.shape} that is not positive and "
                    "finite everywhere; add a small number"
                )
            return found
        if self.inside:
            return np.sqrt(second + np.float32(self.regulariser))
        return np.sqrt(second) + np.float32(self.regulariser)


def moving_average(decay: float) -> Rule:
    """Return m ← β m + (1 - β) g.

    Raises:
        ValueError: If β is not in [0, 1).
    """
    keep, add = _weights(decay)
    return lambda moment, gradient: keep * moment + add * gradient


def moving_square(decay: float) -> Rule:
    """Return v ← β v + (1 - β) g².

    Raises:
        ValueError: If β is not in [0, 1).
    """
    keep, add = _weights(decay)
    return lambda moment, gradient: keep * moment + add * np.square(gradient)


def rmsprop(decay: float = 0.9, *, regulariser: float = 1e-3, inside: bool = False) -> Statistics:
    """Return v ← β v + (1 - β) ĝ² and ψ(g) = g / A."""
    return Statistics(second=moving_square(decay), regulariser=regulariser, inside=inside)


def adagrad(*, regulariser: float = 1e-3, inside: bool = False) -> Statistics:
    """Return v ← v + ĝ² and ψ(g) = g / A."""
    return Statistics(
        second=lambda moment, gradient: moment + np.square(gradient),
        regulariser=regulariser,
        inside=inside,
    )


def adam(
    decay: float = 0.9,
    decay_second: float = 0.9,
    *,
    regulariser: float = 1e-3,
    inside: bool = False,
) -> Statistics:
    """Return both moments and ψ(g) = (β g + (1 - β) m) / A, without bias correction."""
    return Statistics(
        second=moving_square(decay_second),
        first=moving_average(decay),
        own=decay,
        regulariser=regulariser,
        inside=inside,
    )


def _weights(decay: float) -> tuple[np.float32, np.float32]:
    finite_float("decay", decay, Range.FRACTION)
    return np.float32(decay), np.float32(1.0 - decay)
