"""Per-user bounds: each carries the l2 norm that no output of it exceeds.

A bound is public; the update it is applied to is not. Everything that follows (the standard
deviation of the noise, the event that is accounted) is derived from `l2_bound`, which is never
typed a second time.

=================  ==========================================================================
input              output of `Clip` and `Normalise`
=================  ==========================================================================
norm 0             zeros (never a division by zero)
norm below C       unchanged by `Clip`; norm C‖Δ‖/(r + ‖Δ‖) by `Normalise`
norm above C       the same direction, norm C less a part in 2^22 that absorbs the rounding
largest floats     as above; the norm is taken in float64 with rescaling
NaN, infinity      `ValueError`: the caller counts the user as contributing zero
=================  ==========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from fedpriv import tree
from fedpriv.ranges import Range, finite_float, positive_float
from fedpriv.tree import RowSparse, Tree

# float32 values round by at most a part in 2^24 each; scaling to just below C keeps ‖·‖ <= C.
_ROUNDING = 1.0 - 2.0**-22


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A public update that every user's own is averaged with: own · Δ + offset.

    Attributes:
        own: Weight of the user's update, in (0, 1].
        offset: The public part with its weight in it, float32 arrays by name.
    """

    own: float
    offset: Mapping[str, np.ndarray] = field(repr=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.own <= 1.0:
            raise ValueError(f"own weight {self.own!r} must lie in (0, 1]")

    def of(self, update: Tree) -> Tree:
        """Return the mixture: dense tensors of the update's names."""
        mixed = {}
        for name, tensor in update.items():
            if isinstance(tensor, RowSparse):
                total = self.offset[name].copy()
                total[tensor.rows] += np.float32(self.own) * tensor.values
            else:
                total = np.float32(self.own) * tensor + self.offset[name]
            mixed[name] = total
        return mixed


class Bound(Protocol):
    """What turns any update into one of certified norm."""

    @property
    def name(self) -> str | None:
        """What options and plans call it; None for one that they have no name for."""
        ...

    @property
    def l2_bound(self) -> float:
        """The l2 norm, over all tensors concatenated, that no output exceeds."""
        ...

    @property
    def granularity(self) -> float | None:
        """Spacing of the grid that outputs are rounded to; None for none."""
        ...

    @property
    def multiplier(self) -> Mapping[str, np.ndarray]:
        """What an update is multiplied by before its norm is taken, by name; empty for nothing."""
        ...

    @property
    def mixture(self) -> Mixture | None:
        """What an update is mixed with before it is multiplied; None for nothing."""
        ...

    def length(self, norm: float, num_elements: int) -> float:
        """Return the norm with which an update leaves, before it is rounded to a grid.

        Args:
            norm: The norm it comes with, after the multiplier; finite.
            num_elements: Coordinates of the params.
        """
        ...

    def scaled(self, update: Tree) -> tuple[Tree, float]:
        """Return a tree and a number whose product is the bounded update, before any rounding.

        A running sum takes the two as they are, so that scaling, rounding and adding are one pass.

        Raises:
            ValueError: If the update is not finite.
        """
        ...

    def sum_limit(self, num_users: int) -> float:
        """Return the l2 norm that a sum over so many users cannot exceed.

        A server holds to it what a node answers. It is more than `num_users * l2_bound` only where
        something else than bounded updates is in the sum, such as shares of noise.
        """
        ...

    def apply(self, update: Tree) -> Tree:
        """Return the bounded update; raise `ValueError` if it is not finite."""
        ...


@runtime_checkable
class EvaluatedTogether(Protocol):
    """A bound of contributions that are computed many at once.

    Whoever else is there may move the last bits of one, and turn its rounding to a grid. Their sum
    is of whole numbers then, and one contributor moves it by more than its own: it is not exact.
    """

    @property
    def together(self) -> bool:
        """Whether it is so."""
        ...


def scaled(bound: Bound, update: Tree) -> tuple[Tree, float]:
    """Return what `Bound.scaled` does, for a bound that shortens the update as a whole."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are refused, not warned of
        if bound.mixture is not None:
            update = bound.mixture.of(update)
        if bound.multiplier:
            update = tree.multiply(update, bound.multiplier)
    norm = tree.l2_norm(update)
    if norm == 0.0:
        return update, 1.0
    factor = scaling_factor(bound, norm, tree.num_elements(update))
    if factor == 1.0 or 1e-30 < factor < 1e30:
        return update, factor
    # float32 cannot hold such a factor, or not to full precision, nor float64 the norm of the
    # smallest numbers: bring the norm near 1 first, exactly, by two powers of two.
    exponent = math.frexp(norm)[1]
    for half in (exponent // 2, exponent - exponent // 2):
        update = tree.scale(update, math.ldexp(1.0, -half))
    return update, bound.length(norm, tree.num_elements(update)) / tree.l2_norm(update)


def scaling_factor(bound: Bound, norm: float, num_elements: int) -> float:
    """Return what a bound multiplies an update of some norm by, 1 for the zero update.

    The one place where a norm becomes a factor: for updates, for users side by side on a device,
    and for per-example gradients of which nothing but the norm is ever formed.

    Args:
        bound: Its multiplier and mixture are in the norm already.
        norm: l2 norm over all tensors, not checked yet.
        num_elements: Coordinates of the params.

    Raises:
        ValueError: If the norm is not finite.
    """
    if not math.isfinite(norm):
        raise ValueError(f"the update's norm is {norm}; a diverged or hostile user contributes 0")
    return 1.0 if norm == 0.0 else bound.length(norm, num_elements) / norm


def _applied(bound: Bound, update: Tree) -> Tree:
    update, factor = bound.scaled(update)
    return update if factor == 1.0 else tree.scale(update, factor)


class AsAWhole:
    """A bound that shortens the update as a whole."""

    __slots__ = ()

    def scaled(self: Bound, update: Tree) -> tuple[Tree, float]:
        """Return the update and what it is multiplied by."""
        return scaled(self, update)

    def sum_limit(self: Bound, num_users: int) -> float:
        """Return `num_users * l2_bound`."""
        return num_users * self.l2_bound


class _Plain(AsAWhole):
    """A bound that neither preconditions nor rounds."""

    __slots__ = ()

    @property
    def granularity(self) -> None:
        """No grid."""
        return None

    @property
    def multiplier(self) -> Mapping[str, np.ndarray]:
        """Nothing."""
        return {}

    @property
    def mixture(self) -> None:
        """Nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(_Plain):
    """Scale updates longer than C down to C: Δ · min(1, C/‖Δ‖).

    Guarantees:
        * ‖output‖₂ <= C, over all tensors concatenated (the Frobenius norm of matrices, never the
          spectral norm).
        * Adding or removing one user moves the sum by at most C; replacing one by at most 2C.

    Reference: McMahan et al., "Learning Differentially Private Recurrent Language Models" (2018),
    Algorithm 1, flat clipping.
    """

    l2_clip_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_clip_norm", positive_float("l2_clip_norm", self.l2_clip_norm))

    @property
    def name(self) -> str:
        """Its name."""
        return "clip"

    @property
    def l2_bound(self) -> float:
        """C."""
        return self.l2_clip_norm

    def length(self, norm: float, num_elements: int) -> float:
        """Return the smaller of the norm and (just below) C."""
        return min(norm, self.l2_clip_norm * _ROUNDING)

    def apply(self, update: Tree) -> Tree:
        """Return the clipped update."""
        return _applied(self, update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalise(_Plain):
    """Replace the length of an update by (almost) C: C · Δ/(r + ‖Δ‖).

    Guarantees:
        * ‖output‖₂ <= C (strictly below when r > 0).
        * Adding or removing one user moves the sum by at most C; replacing one by at most 2C.

    With r = 0 this is the normalised update of DP-NormFedAvg (Das et al. 2021); r > 0 is the
    regulariser of DP-NSGD (Yang et al. 2022, Algorithm 2), scaled by C.
    """

    l2_clip_norm: float
    regulariser: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_clip_norm", positive_float("l2_clip_norm", self.l2_clip_norm))
        finite_float("regulariser", self.regulariser, Range.AT_LEAST_ZERO)

    @property
    def name(self) -> str:
        """Its name."""
        return "normalise"

    @property
    def l2_bound(self) -> float:
        """C."""
        return self.l2_clip_norm

    def length(self, norm: float, num_elements: int) -> float:
        """Return C ‖Δ‖/(r + ‖Δ‖), or just below it."""
        return self.l2_clip_norm * (norm / (self.regulariser + norm)) * _ROUNDING

    def apply(self, update: Tree) -> Tree:
        """Return the normalised update; the zero update stays zero."""
        return _applied(self, update)


@dataclass(frozen=True, slots=True)
class Unbounded(_Plain):
    """Let every finite update through. Only a plan without noise, and without an ε, accepts it."""

    @property
    def name(self) -> str:
        """Its name."""
        return "none"

    @property
    def l2_bound(self) -> float:
        """Infinity."""
        return math.inf

    def length(self, norm: float, num_elements: int) -> float:
        """Return the norm."""
        return norm

    def apply(self, update: Tree) -> Tree:
        """Return the update, refusing only what is not finite."""
        return _applied(self, update)


class Around(AsAWhole):
    """A bound around another, `bound`, whose name and l2 norm it keeps."""

    __slots__ = ()

    bound: Bound

    @property
    def name(self) -> str | None:
        """The inner bound's."""
        return self.bound.name

    @property
    def l2_bound(self) -> float:
        """The inner bound's."""
        return self.bound.l2_bound

    @property
    def granularity(self) -> float | None:
        """No grid."""
        return None

    def length(self, norm: float, num_elements: int) -> float:
        """Return what the inner bound allows."""
        return self.bound.length(norm, num_elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditioned(Around):
    """Multiply the update by a public multiplier (1/A), *then* bound it.

    Guarantees:
        * The output has the inner bound's norm, whatever the multiplier: precondition first,
          bound second. The reverse order would have sensitivity C · max(1/A).
        * A mixture comes first of all and is public, so it costs nothing: whoever takes part
          still moves the sum by at most the inner bound. (Its public part is bounded with the
          user's own: without users it is not in the sum.)

    Reference: Li et al., "Private Adaptive Optimization with Side Information" (2022),
    Algorithm 1, lines 5 and 6, where ψ mixes with public moments and divides; and the server-side
    variant discussed with Algorithm 3.
    """

    multiplier: Mapping[str, np.ndarray] = field(repr=False)
    bound: Bound
    mixture: Mixture | None = None

    def __post_init__(self) -> None:
        inner = self.bound
        if inner.multiplier or inner.mixture is not None or inner.granularity is not None:
            raise ValueError(
                f"{self.bound!r} preconditions or rounds already; precondition once, then bound, "
                "then round: Rounded(bound=Preconditioned(multiplier=..., bound=Clip(...)))"
            )

    def apply(self, update: Tree) -> Tree:
        """Return the preconditioned, then bounded update."""
        return _applied(self, update)
