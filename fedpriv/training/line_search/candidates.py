"""Step sizes to choose among, and how a query brings them and their direction to the users."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.ranges import positive_float, positive_int
from fedpriv.tree import Params

LOSSES = "losses"
"""The name of the work that sums losses, and of the sums."""

_DIRECTION, _SIZES = "direction/", "step sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """Zero and `num_positive` equally spaced step sizes up to a largest one that follows choices.

    Every `every` iterations the largest becomes `growth` times the largest that was chosen in
    them, and at most `first`. Where none was, it stays: a largest step of zero would never move
    again.

    Attributes:
        first: The largest step size at the beginning, α_max.
        num_positive: How many there are besides zero.
        every: Iterations between adaptations; 0 never adapts.
        growth: Room above the largest that was chosen.

    Reference: Lee and Kifer, "Concentrated Differentially Private Gradient Descent with Adaptive
    per-Iteration Privacy Budget" (2018), Section 4.3.
    """

    first: float = 2.0
    num_positive: int = 20
    every: int = 10
    growth: float = 1.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", positive_float("first", self.first))
        positive_int("num_positive", self.num_positive)
        positive_float("growth", self.growth)

    @property
    def number(self) -> int:
        """|Φ|, zero included."""
        return self.num_positive + 1

    def upto(self, largest: float) -> np.ndarray:
        """Return the candidates, float32, zero first."""
        return np.linspace(0.0, largest, self.number).astype(np.float32)

    def adapted(self, largest: float, chosen: Sequence[float]) -> tuple[float, tuple[float, ...]]:
        """Return the next largest step size, and the choices that are still to be counted.

        Args:
            largest: The present one.
            chosen: Step sizes since the last adaptation, the newest included.
        """
        kept = tuple(chosen)
        if self.every == 0:
            return largest, ()
        if len(kept) < self.every:
            return largest, kept
        top = max(kept)
        return (min(self.growth * top, self.first) if top > 0.0 else largest), ()


def along(params: Params, direction: Params, sizes: np.ndarray) -> Params:
    """Return what a query for losses brings to users: params, direction and step sizes."""
    brought = {_DIRECTION + name: array for name, array in direction.items()}
    return {**params, **brought, _SIZES: sizes}


def taken_apart(brought: Params) -> tuple[Params, Params, np.ndarray]:
    """Return params, direction and step sizes of what `along` put together.

    Raises:
        ValueError: If it is something else.
    """
    if _SIZES not in brought:
        raise ValueError(f"work {LOSSES!r} needs {_SIZES!r}, a direction and the params")
    direction = {
        name.removeprefix(_DIRECTION): array
        for name, array in brought.items()
        if name.startswith(_DIRECTION)
    }
    params = {name: brought[name] for name in direction}
    return params, direction, brought[_SIZES]


def moved(params: Params, direction: Params, size: float) -> Params:
    """Return params + size · direction, float32."""
    return {
        name: (array + float(size) * direction[name].astype(np.float64)).astype(np.float32)
        for name, array in params.items()
    }


def unit(direction: Params) -> Params:
    """Return a direction of length 1, float64; one without a length stays zero."""
    norm = math.sqrt(sum(float(np.vdot(a, a)) for a in direction.values()))
    return {n: np.asarray(a, np.float64) / (norm or 1.0) for n, a in direction.items()}
