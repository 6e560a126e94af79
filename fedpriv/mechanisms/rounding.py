"""Bounded updates on a grid, so that their sum is one of integers and exact.

The grid is public and so is the bound: `granularity = l2_bound / 2**24`. Rounding each of d
coordinates to the nearest multiple moves an update by at most `granularity · √d / 2`, and the bound
is tightened by that much *before* rounding, so that what is summed still never exceeds it. At five
million parameters the bound loses a part in 15,000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bound import Around, Bound, Mixture, scaled
from fedpriv.sums import BITS
from fedpriv.tree import RowSparse, Tensor, Tree

# Absorb float64's own rounding of products, and of a norm summed over so many coordinates.
_SLACK, _SLACK_EACH = 2.0**-40, 2.0**-53
# Of a mixture the square of a norm may be the 10^4th part of that of its offset, from which it was
# made by sums and differences (`fedpriv.training.per_example.sparse_sums`): it has lost as much.
_SLACK_EACH_MIXED = 2.0**14 * _SLACK_EACH


class _OnAGrid(Around):
    """What rounds to whole multiples of `granularity`; preconditions as the bound inside does."""

    __slots__ = ()

    @property
    def granularity(self) -> float:
        """The grid's spacing, l2_bound / 2^24."""
        return self.l2_bound * 2.0**-BITS

    @property
    def multiplier(self) -> Mapping[str, np.ndarray]:
        """The inner bound's."""
        return self.bound.multiplier

    @property
    def mixture(self) -> Mixture | None:
        """The inner bound's."""
        return self.bound.mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded(_OnAGrid):
    """Bound an update, then round it to whole multiples of `granularity`.

    Guarantees:
        * Every coordinate of an output is a whole multiple of `granularity`, at most 2^24 of them.
        * ‖output‖₂ <= l2_bound, the inner bound's, rounding included.
        * Adding or removing one user moves the sum by at most l2_bound, as without rounding.

    Attributes:
        bound: The bound that comes first; finite.
    """

    bound: Bound

    def __post_init__(self) -> None:
        _check_finite(self.bound)

    def length(self, norm: float, num_elements: int) -> float:
        """Return what the inner bound allows, less what rounding may add.

        Raises:
            ValueError: If there are so many coordinates that rounding alone would fill the bound.
        """
        share = 1.0 - _SLACK - num_elements * _SLACK_EACH
        share -= math.sqrt(num_elements) * 2.0 ** -(BITS + 1)
        if share < 0.5:
            raise ValueError(
                f"{num_elements} coordinates are too many for a grid of 2^{BITS} steps; sum them "
                "as floats (exact-sum false)"
            )
        return min(self.bound.length(norm, num_elements), self.l2_bound * share)

    def sum_limit(self, num_users: int) -> float:
        """Return `num_users * l2_bound`."""
        return self.bound.sum_limit(num_users)

    def apply(self, update: Tree) -> Tree:
        """Return the bounded update on the grid, float64."""
        update, factor = scaled(self, update)
        return {name: self._rounded(tensor, factor) for name, tensor in update.items()}

    def _rounded(self, tensor: Tensor, factor: float) -> Tensor:
        if isinstance(tensor, RowSparse):
            values = self._rounded(tensor.values, factor)
            assert isinstance(values, np.ndarray)
            return RowSparse(rows=tensor.rows, values=values, num_rows=tensor.num_rows)
        granularity = self.granularity
        return np.rint(np.multiply(tensor, factor / granularity, dtype=np.float64)) * granularity


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedSum(_OnAGrid):
    """Bound each contribution, sum in float64, then round the sum once to a grid.

    For sums whose contributions are never formed, such as those of single examples' gradients.

    Guarantees:
        * Whoever joins or leaves moves the *rounded* sum by at most l2_bound: of d coordinates each
          moves by less than a granularity more than before rounding, and what float64 does to the
          two sums is at most `float_error`. Contributions are shortened by as much beforehand,
          and by what float64 may have got wrong of their norms.

    Attributes:
        bound: Of each contribution; finite and on no grid.
        float_error: How far float64 takes two neighbouring sums apart, over l2_bound, beside the
            contribution itself (`fedpriv.training.per_example.example_sum.SumsApart`).
        mixed_error: The same where contributions are mixed with a public update; None refuses that.
    """

    bound: Bound
    float_error: float
    mixed_error: float | None = None

    def __post_init__(self) -> None:
        _check_finite(self.bound)
        if self.bound.mixture is not None and self.mixed_error is None:
            raise ValueError(
                "contributions are mixed with a public update, and no float64 error of such sums "
                "is given (mixed_error); sum floats (exact-sum false)"
            )

    @property
    def error(self) -> float:
        """How far float64 may take two neighbouring sums apart, with what is inside the bound."""
        if self.mixture is None or self.mixed_error is None:
            return self.float_error
        return self.mixed_error

    @property
    def inside(self) -> Bound:
        """What bounds each contribution: this bound, without the grid."""
        return _Shortened(bound=self)

    def length(self, norm: float, num_elements: int) -> float:
        """Return what the inner bound allows, less what float64 and rounding may add.

        Raises:
            ValueError: If that would fill half the bound.
        """
        error, each = self.error, _SLACK_EACH if self.mixture is None else _SLACK_EACH_MIXED
        share = 1.0 - _SLACK - error - num_elements * each - math.sqrt(num_elements) * 2.0**-BITS
        if not share >= 0.5:
            raise ValueError(
                f"{num_elements} coordinates and a float64 error of {error:.2g} are too "
                f"much for a grid of 2^{BITS} steps; sum floats (exact-sum false)"
            )
        return min(self.bound.length(norm, num_elements), self.l2_bound * share)

    def apply(self, update: Tree) -> Tree:
        """Return the bounded contribution, not rounded: its sum is."""
        return self.inside.apply(update)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shortened(Around):
    """A `RoundedSum` before the sum is rounded."""

    bound: RoundedSum

    @property
    def multiplier(self) -> Mapping[str, np.ndarray]:
        return self.bound.multiplier

    @property
    def mixture(self) -> Mixture | None:
        return self.bound.mixture

    def apply(self, update: Tree) -> Tree:
        update, factor = self.scaled(update)
        return tree.scale(update, factor)


def _check_finite(bound: Bound) -> None:
    if not math.isfinite(bound.l2_bound) or bound.granularity is not None:
        raise ValueError(
            f"{bound!r} has no finite bound to make a grid of, or has a grid already; "
            "sum its updates as floats (exact-sum false)"
        )
