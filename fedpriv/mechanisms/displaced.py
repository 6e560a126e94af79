"""Sensitivity that is proved of a whole training, and checks of what such a proof takes for given.

A training without noise is released once. How far one user moves its *result* follows from how long
its updates are; so they are looked at, and never shortened: a clipped step is no step of a convex
loss, and need not bring two runs closer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpriv import tree
from fedpriv.ranges import positive_float
from fedpriv.tree import RowSparse, Tensor, Tree

# float32's rounding of an update that is exactly as long as it may be.
_ROUNDING = 1.0 + 2.0**-16
# Float64 holds sums of 2^13 such multiples without rounding.
_FINE_BITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    """What neither preconditions nor rounds."""

    l2_bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_bound", positive_float("l2_bound", self.l2_bound))

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

    def length(self, norm: float, num_elements: int) -> float:
        """Return the norm."""
        return norm

    def sum_limit(self, num_users: int) -> float:
        """Return `num_users * l2_bound`."""
        return num_users * self.l2_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced(_Plain):
    """One user moves the result of a training by at most `l2_bound`; nothing is bounded here.

    Attributes:
        l2_bound: Δ, of a user who is there or not, from `fedpriv.training.permutation_sgd`.
    """

    @property
    def name(self) -> str:
        """Its name."""
        return "displaced"

    def scaled(self, update: Tree) -> tuple[Tree, float]:
        """Return the result as it is."""
        return update, 1.0

    def apply(self, update: Tree) -> Tree:
        """Return the result as it is."""
        return update


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(_Plain):
    """Refuse an update that is longer than a loss's Lipschitz constant allows; shorten none.

    Attributes:
        l2_bound: K η L₀ of K local steps.

    Guarantees:
        * ‖output‖₂ <= l2_bound, but for the rounding of float32, and every output is its input:
          what is longer raises, and its user contributes zero.
        * But that coordinates are rounded to whole multiples of a power of two, at most 2^-39 of
          the bound, so that float64 sums of up to 8,192 users are the same to the last bit in
          whatever order, on every carrier. Two runs drift apart by at most 2^-39 √d l2_bound more
          an update; `UserSchedule.sensitivity` has room for it.
    """

    @property
    def name(self) -> str:
        """Its name."""
        return "checked"

    def sum_limit(self, num_users: int) -> float:
        """Return `num_users * l2_bound`, with float32's rounding."""
        return num_users * self.l2_bound * _ROUNDING

    def scaled(self, update: Tree) -> tuple[Tree, float]:
        """Return the update, rounded, and 1.

        Raises:
            ValueError: If it is longer than the bound, or not finite.
        """
        norm = tree.l2_norm(update)
        if not norm <= self.l2_bound * _ROUNDING:
            raise ValueError(
                f"an update of norm {norm:g} is longer than {self.l2_bound:g}, the most that a "
                "loss of these constants can do; its inputs are longer than stated, or its loss "
                "is another"
            )
        spacing = math.ldexp(1.0, math.frexp(self.l2_bound)[1] - _FINE_BITS)
        return {name: _rounded(tensor, spacing) for name, tensor in update.items()}, 1.0

    def apply(self, update: Tree) -> Tree:
        """Return the update, rounded; errors are those of `scaled`."""
        return self.scaled(update)[0]


def _rounded(tensor: Tensor, spacing: float) -> Tensor:
    """Return whole multiples of a power of two, which the tensor's own dtype holds."""
    if isinstance(tensor, RowSparse):
        values = _rounded(tensor.values, spacing)
        assert isinstance(values, np.ndarray)
        return RowSparse(rows=tensor.rows, values=values, num_rows=tensor.num_rows)
    whole = np.rint(np.multiply(tensor, 1.0 / spacing, dtype=np.float64))
    return (whole * spacing).astype(np.result_type(tensor.dtype, np.float32))
