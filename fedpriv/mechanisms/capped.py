"""Contributions whose every coordinate lies within [0, C]: losses at several candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpriv import tree
from fedpriv.ranges import positive_float, positive_int
from fedpriv.sums import BITS, most_each
from fedpriv.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """Cap each coordinate of a vector of losses at C, and what is below 0 at 0.

    Capped values are rounded to a grid of 2^24 steps to the l2 bound C√n, and never above C.

    Attributes:
        cap: C.
        num_coordinates: n, of the vector.

    Guarantees:
        * Each coordinate of an output lies in [0, C]: one user more raises every sum by at most C,
          and lowers none.
        * ‖output‖₂ <= C√n.

    A vector that is not finite is refused whole, so that its user contributes zero: a single
    infinite loss, taken for C, would say more of the user than the others do.
    """

    cap: float
    num_coordinates: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "cap", positive_float("cap", self.cap))
        number = positive_int("num_coordinates", self.num_coordinates)
        object.__setattr__(self, "num_coordinates", number)

    @property
    def name(self) -> str:
        """Its name."""
        return "capped"

    @property
    def l2_bound(self) -> float:
        """C√n."""
        return self.cap * math.sqrt(self.num_coordinates)

    @property
    def granularity(self) -> float:
        """The grid's spacing, l2_bound / 2^24."""
        return self.l2_bound * 2.0**-BITS

    @property
    def most(self) -> float:
        """The largest multiple of the granularity within the cap."""
        return self.granularity * most_each(self.num_coordinates)

    @property
    def multiplier(self) -> Mapping[str, np.ndarray]:
        """Nothing."""
        return {}

    @property
    def mixture(self) -> None:
        """Nothing."""
        return None

    def length(self, norm: float, num_elements: int) -> float:
        """Return the norm, or the bound where that is less."""
        return min(norm, self.l2_bound)

    def sum_limit(self, num_users: int) -> float:
        """Return `num_users * l2_bound`."""
        return num_users * self.l2_bound

    def scaled(self, update: Tree) -> tuple[Tree, float]:
        """Return the capped vector, and 1.

        Raises:
            ValueError: If a loss is not finite.
        """
        dense = tree.to_dense(update)
        if not all(np.isfinite(array).all() for array in dense.values()):
            raise ValueError("a loss is not finite; its user contributes 0")
        return {
            name: np.clip(array, 0.0, self.most, dtype=np.float64) for name, array in dense.items()
        }, 1.0

    def apply(self, update: Tree) -> Tree:
        """Return the capped vector on the grid, float64."""
        capped, _ = self.scaled(update)
        granularity = self.granularity
        return {
            name: np.rint(array / granularity) * granularity
            for name, array in tree.to_dense(capped).items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedTogether(Capped):
    """The same of losses that are computed many at once, as single examples' are.

    Guarantees:
        * Those of `Capped`, of real arithmetic: which examples share a product or a reduction may
          move the last bits of a loss, and so its rounding. So a mechanism of it is not exact
          (`fedpriv.privacy.mechanism.Mechanism.is_exact`).
    """

    @property
    def together(self) -> bool:
        """True."""
        return True
