"""Gradients that are outer products, and sums of them: over a time axis, over a group.

The parts of one example may cancel. Then the gradient is as small as the rounding of a float32 sum
over its parts, and dividing by its norm would make that rounding as long as the bound, or longer.
Parts that do not cancel are never added up before the batch is; those that do are added up in
float64 once, and norm and sum are both taken from the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.training.per_example.ghost.norms import (
    SLICE,
    Before,
    Dense,
    Factor,
    Groups,
    Summands,
    row_squares,
    weighted,
    zeroed,
)

#: A sum whose norm is below this share of its parts' norms is made before it is measured: what
#: float32 leaves of the others is then below 2^-18 of them, times the root of the number of parts.
_CANCELS = 2.0**-6
#: Pairs of parts an example, on average, up to which products of pairs cost less than the sum made.
_FEW_PAIRS = 24


@dataclass(frozen=True)
class Outer:
    """Each gradient is left rightᵀ: `(b, out)` and `(b, in)`."""

    left: Tensor
    right: Tensor

    def squares(self, before: Before) -> Tensor:
        """Return the squared norms, by one or two products with the batch."""
        left, right = self.left.double(), self.right.double()
        left_squares, right_squares = left.square(), right.square()
        if before.squared is None:
            own = left_squares.sum(1) * right_squares.sum(1)
        else:
            own = ((left_squares @ before.squared) * right_squares).sum(1)
        total = own * before.own**2
        if before.cross is not None:
            total -= 2 * before.own * ((left @ before.cross) * right).sum(1)
            total += before.constant
        return total.clamp_(min=0.0)

    def measured(self, before: Before) -> tuple[Tensor, Outer]:
        """Return the squared norms, and this."""
        return self.squares(before), self

    def kept(self, good: Tensor) -> Outer:
        """Return the good ones and zeros."""
        return Outer(zeroed(self.left, good), zeroed(self.right, good))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, one product."""
        return weighted(self.left, weights).T @ self.right

    def grouped(self, groups: Groups) -> Factor:
        """Return the means: sums of outer products."""
        if groups.are_single:
            return self
        return summed_outer(groups.shares(self.left), groups.take(self.right))


def summed_outer(left: Tensor, right: Tensor) -> Factor:
    """Return Σ_t left_t right_tᵀ of `(b, t, out)` and `(b, t, in)`, made or not as is smaller."""
    steps, out = left.shape[1:]
    if out * right.shape[2] <= steps * (out + right.shape[2]):
        return Dense(left.transpose(1, 2) @ right)
    return SummedOuter(left, right)


@dataclass(frozen=True)
class SummedOuter:
    """Each gradient is a sum over steps: `(b, t, out)` and `(b, t, in)`, larger when made."""

    left: Tensor
    right: Tensor

    def squares(self, before: Before) -> Tensor:
        """Return the squared norms."""
        return self.measured(before)[0]

    def measured(self, before: Before) -> tuple[Tensor, Summands]:
        """Return the squared norms, and this, with those made that nearly cancel."""
        lengths = self._lengths(before)
        own = self._own_squares(before, lengths)
        cancels = own < (_CANCELS * lengths.sum(1)).square()
        total = own
        if before.cross is not None:
            along = ((self.left.double() @ before.cross) * self.right).sum((1, 2))
            total = (own - 2 * before.own * along + before.constant).clamp_(min=0.0)
        if not bool(cancels.any()):
            return total, self
        places = cancels.nonzero()[:, 0]
        made = Dense(_made(self.left[places], self.right[places]))
        total[places] = made.squares(before)
        rest = SummedOuter(zeroed(self.left, ~cancels), zeroed(self.right, ~cancels))
        return total, PartlyMade(rest, places, made)

    def _lengths(self, before: Before) -> Tensor:
        """Return every part's own norm behind the multiplier, float64 `(b, t)`."""
        left, right = self.left.double().square(), self.right.double().square()
        if before.squared is None:
            found = left.sum(2) * right.sum(2)
        else:
            found = ((left.flatten(0, 1) @ before.squared) * right.flatten(0, 1)).sum(1)
        return found.reshape(self.left.shape[:2]).sqrt_() * before.own

    def _own_squares(self, before: Before, lengths: Tensor) -> Tensor:
        """Return the squared norms without the offset."""
        if before.squared is None:
            found = self._by_steps()
        else:
            # What is not a number is no zero, and stays in.
            present = lengths != 0
            pairs = torch.triu(present[:, :, None] & present[:, None, :]).nonzero()
            few = len(pairs) <= _FEW_PAIRS * len(self.left)
            found = self._by_pairs(pairs, before.squared) if few else self._by_making(before)
        return found.clamp_(min=0.0) * before.own**2

    def _by_steps(self) -> Tensor:
        """Return Σ_st (left_s · left_t)(right_s · right_t)."""
        steps, out = self.left.shape[1:]
        step = max(1, SLICE // (steps * (steps + out + self.right.shape[2])))
        found = []
        for left, right in zip(self.left.split(step), self.right.split(step), strict=True):
            wide_left, wide_right = left.double(), right.double()
            products = wide_left @ wide_left.transpose(1, 2)
            products *= wide_right @ wide_right.transpose(1, 2)
            found.append(products.sum((1, 2)))
        return torch.cat(found)

    def _by_pairs(self, pairs: Tensor, squared: Tensor) -> Tensor:
        """Return Σ_st (left_s · left_t)ᵀ m² (right_s · right_t), products element by element."""
        step = max(1, SLICE // (self.left.shape[2] + self.right.shape[2]))
        total = squared.new_zeros(len(self.left))
        for example, one, other in (part.unbind(1) for part in pairs.split(step)):
            left = self.left[example, one].double() * self.left[example, other]
            right = self.right[example, one].double() * self.right[example, other]
            products = ((left @ squared) * right).sum(1)
            total.index_add_(0, example, torch.where(one == other, products, 2 * products))
        return total

    def _by_making(self, before: Before) -> Tensor:
        """Return the squared norms of the gradients themselves, some examples at a time."""
        alone = Before(multiplier=before.multiplier)
        step = max(1, SLICE // (self.left.shape[2] * self.right.shape[2]))
        pairs = zip(self.left.split(step), self.right.split(step), strict=True)
        return torch.cat([row_squares(_summed(*pair), alone) for pair in pairs])

    def kept(self, good: Tensor) -> SummedOuter:
        """Return the good ones and zeros."""
        return SummedOuter(zeroed(self.left, good), zeroed(self.right, good))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, one product over examples and steps."""
        return weighted(self.left, weights).flatten(0, 1).T @ self.right.flatten(0, 1)

    def grouped(self, groups: Groups) -> Factor:
        """Return the means: more steps."""
        if groups.are_single:
            return self
        left, right = groups.shares(self.left), groups.take(self.right)
        return summed_outer(left.flatten(1, 2), right.flatten(1, 2))


def _summed(left: Tensor, right: Tensor) -> Tensor:
    """Return Σ_t left_t right_tᵀ in float64, `(b, out, in)`."""
    return left.double().transpose(1, 2) @ right.double()


def _made(left: Tensor, right: Tensor) -> Tensor:
    """Return Σ_t left_t right_tᵀ, added up in float64 and rounded once, example by example."""
    pairs = zip(left.split(1), right.split(1), strict=True)
    return torch.cat([_summed(*pair).to(left.dtype) for pair in pairs])


@dataclass(frozen=True)
class PartlyMade:
    """Summands of which some examples' gradients were made.

    Attributes:
        rest: All examples, zero where they were made.
        places: int64, which were made.
        made: Their gradients.
    """

    rest: SummedOuter
    places: Tensor
    made: Dense

    def kept(self, good: Tensor) -> PartlyMade:
        """Return the good ones and zeros."""
        return PartlyMade(self.rest.kept(good), self.places, self.made.kept(good[self.places]))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of both."""
        made = self.made.weighted_sum(weights[self.places])
        return self.rest.weighted_sum(weights).add_(made)
