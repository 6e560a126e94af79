"""Sums of single examples' capped losses at every step size along a direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from fedpriv.mechanisms.bounds import Bound, Capped
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.line_search.candidates import LOSSES, taken_apart
from fedpriv.tree import Params

# Losses of so many examples and step sizes are held at a time.
_CHUNK = 1 << 13


@runtime_checkable
class ExampleLosses(Protocol):
    """A model on a training set that evaluates single examples at several points on a line."""

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], index: np.ndarray
    ) -> np.ndarray:
        """Return each example's loss at params + size · direction, float64 (examples, sizes).

        Losses are at least 0.

        Args:
            params: float32, not changed.
            direction: float32, of the same names and shapes.
            sizes: Step sizes.
            index: Positions in the training set.
        """
        ...


@runtime_checkable
class ChecksLosses(Protocol):
    """A model that has to be tried before it may be said that examples' losses are their own."""

    def check_losses(self) -> object:
        """Try it on synthetic examples; the training set is not looked at.

        Raises:
            ValueError: If one example's loss depends on another one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralLosses:
    """Sums capped losses of examples on the grid of the cap. A `fedpriv.training.work.Work`.

    Attributes:
        losses: The model on the private training set.
        number: |Φ|, how many step sizes there are.

    Guarantees:
        * One example more raises each sum by at most the cap, and lowers none: each is capped,
          and rounded to the grid, alone. An example with a loss that is not finite adds nothing.
    """

    losses: ExampleLosses = field(repr=False)
    number: int

    def template(self, params: Params) -> Params:
        """Return one number for each step size."""
        return {LOSSES: np.zeros(self.number, np.float32)}

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        data: object = None,
        user_ids: Sequence[str],
        key: Key,
    ) -> PartialSum:
        """Return the sums over examples.

        Args:
            params: Params, direction and step sizes (`candidates.along`).
            bound: A `Capped`.
            data: Not looked at: the model holds the training set.
            user_ids: Ids of `example_ids`.
            key: Not looked at: nothing is drawn.

        Raises:
            ValueError: If the bound is another, or the step sizes are not so many.
        """
        if not isinstance(bound, Capped):
            raise ValueError(f"{bound!r} bounds vectors as a whole; losses want Capped")
        own, direction, sizes = taken_apart(params)
        if len(sizes) != self.number:
            raise ValueError(f"{len(sizes)} step sizes were brought, and sums are of {self.number}")
        index = np.fromiter(map(int, user_ids), np.int64, len(user_ids))
        total, failed = np.zeros(self.number, np.int64), 0
        most, granularity = bound.most, bound.granularity
        for start in range(0, len(index), _CHUNK):
            part = index[start : start + _CHUNK]
            with np.errstate(over="ignore", invalid="ignore"):
                found = self.losses.losses_along(own, direction, [float(s) for s in sizes], part)
            finite = np.isfinite(found).all(axis=1)
            failed += int(len(part) - np.count_nonzero(finite))
            capped = np.clip(found[finite], 0.0, most)
            total += np.rint(capped / granularity).astype(np.int64).sum(axis=0)
        return PartialSum(
            total={LOSSES: total},
            granularity=granularity,
            num_users=len(index),
            num_failed=failed,
        )
