"""Every example's gradient of one parameter, kept in the smallest form that answers two questions.

A bounded sum needs the norm of each gradient and then one weighted sum over examples; it never
needs the gradients themselves. For a dense layer each is an outer product δ aᵀ of what came back
and what went in, so that norms and sum are matrix products over the batch and nothing of the size
(examples, parameters) exists. Norms are float64 throughout: whoever computes one too small leaves
the bound. Sums are float32, one rounding an example and a coordinate.

Reference for the outer products: Goodfellow, "Efficient Per-Example Gradient Computations" (2015);
for the time axis: Li et al., "Large Language Models Can Be Strong Differentially Private Learners"
(2022), section 4; for one backward pass serving both: Bu et al., "Differentially Private
Optimization on Large Model at Small Cost" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

_SLICE = 1 << 22  # float64 numbers that a step through rows holds at once
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Before:
    """What one parameter's updates go through before a norm is taken: (own Δ + offset) · m.

    Attributes:
        own: Weight of the example's own update.
        offset: float32 of the parameter's shape; None for zeros.
        multiplier: float32 of the parameter's shape; None for ones.
    """

    own: float = 1.0
    offset: Tensor | None = None
    multiplier: Tensor | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether updates stay as they are, but for `own`."""
        return self.offset is None and self.multiplier is None

    @cached_property
    def squared(self) -> Tensor | None:
        """m², float64."""
        return None if self.multiplier is None else self.multiplier.double().square_()

    @cached_property
    def cross(self) -> Tensor | None:
        """Offset · m², float64."""
        if self.offset is None:
            return None
        return self.offset.double() if self.squared is None else self.offset * self.squared

    @cached_property
    def constant(self) -> float:
        """Σ (offset · m)², what the norm of a zero update is made of."""
        if self.offset is None or self.cross is None:
            return 0.0
        return float((self.cross * self.offset).sum())

    def of(self, gradients: Tensor) -> Tensor:
        """Return (own Δ + offset) · m of gradients `(n, *shape)`, in float64."""
        updates = gradients.to(torch.float64, copy=True).mul_(-self.own)
        if self.offset is not None:
            updates += self.offset
        if self.multiplier is not None:
            updates *= self.multiplier
        return updates


class Factor(Protocol):
    """Gradients of one parameter for the b examples of a chunk."""

    def squares(self, before: Before) -> Tensor:
        """Return every ‖(-own g + offset) · m‖², float64 `(b,)`; not finite where g is not."""
        ...

    def kept(self, good: Tensor) -> Factor:
        """Return the gradients with zeros where `good` (bool `(b,)`) is false."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ w_i g_i, float32 of the parameter's shape; weights are float64 `(b,)`."""
        ...

    def grouped(self, groups: Groups) -> Factor:
        """Return the means over groups, in the place of examples."""
        ...


@dataclass(frozen=True)
class Groups:
    """Which examples of a chunk make up which group.

    Attributes:
        places: int64 `(groups, largest)`, positions in the chunk; anything where not `member`.
        member: bool of that shape.
    """

    places: Tensor
    member: Tensor

    @classmethod
    def of_sizes(cls, sizes: list[int], device: torch.device) -> Groups:
        """Return consecutive groups of these sizes, each at least 1."""
        size = torch.tensor(sizes, device=device)
        steps = torch.arange(int(size.max()), device=device)
        member = steps[None, :] < size[:, None]
        places = (size.cumsum(0) - size)[:, None] + steps[None, :]
        return cls(places.clamp_(max=sum(sizes) - 1), member)

    @property
    def are_single(self) -> bool:
        """Whether each is one example; then means are the gradients themselves."""
        return self.places.shape[1] == 1

    def take(self, rows: Tensor) -> Tensor:
        """Return `(groups, largest, ...)`, zero where a group has no more members."""
        taken = rows[self.places]
        return taken.masked_fill_(~_against(self.member, taken), 0)

    def shares(self, rows: Tensor) -> Tensor:
        """Return what `take` does, divided by the size of the group."""
        taken = self.take(rows)
        return taken.div_(_against(self.member.sum(1), taken))


def _against(values: Tensor, like: Tensor) -> Tensor:
    """Return values with axes of one appended, to broadcast against `like`."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def _zeroed(rows: Tensor, good: Tensor) -> Tensor:
    return rows.masked_fill(~_against(good, rows), 0)


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """Return w_i · rows_i; what is beyond float32 saturates, so that it cannot become NaN."""
    scaled = rows * _against(weights, rows)
    return scaled.clamp_(-_LARGEST, _LARGEST).to(rows.dtype)


def _row_squares(rows: Tensor, before: Before) -> Tensor:
    """Return the squared norms of `(b, *shape)` after `before`, some rows at a time."""
    step = max(1, _SLICE // max(1, rows[0].numel()))
    parts = [before.of(part).flatten(1).square_().sum(1) for part in rows.split(step)]
    return torch.cat(parts)


@dataclass(frozen=True)
class Dense:
    """The gradients themselves, `(b, *shape)`: small parameters, and the general path."""

    gradients: Tensor

    def squares(self, before: Before) -> Tensor:
        """Return the squared norms."""
        return _row_squares(self.gradients, before)

    def kept(self, good: Tensor) -> Dense:
        """Return the good ones and zeros."""
        return Dense(_zeroed(self.gradients, good))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum."""
        flat = self.gradients.flatten(1)
        narrow = weights.clamp(-_LARGEST, _LARGEST).to(flat.dtype)
        return (narrow @ flat).reshape(self.gradients.shape[1:])

    def grouped(self, groups: Groups) -> Dense:
        """Return the means."""
        return self if groups.are_single else Dense(groups.shares(self.gradients).sum(1))


@dataclass(frozen=True)
class Untouched:
    """Zeros: a parameter that the loss does not use."""

    num_examples: int
    like: Tensor

    def squares(self, before: Before) -> Tensor:
        """Return what the offset leaves."""
        return self.like.new_full((self.num_examples,), before.constant, dtype=torch.float64)

    def kept(self, good: Tensor) -> Untouched:
        """Return the zeros."""
        return self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(self.like)

    def grouped(self, groups: Groups) -> Untouched:
        """Return zeros for groups."""
        return Untouched(len(groups.places), self.like)


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

    def kept(self, good: Tensor) -> Outer:
        """Return the good ones and zeros."""
        return Outer(_zeroed(self.left, good), _zeroed(self.right, good))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, one product."""
        return _weighted(self.left, weights).T @ self.right

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
        """Return the squared norms: by products between steps where nothing comes before."""
        steps, out = self.left.shape[1:]
        width = self.right.shape[2]
        held = steps * (steps + out + width) if before.is_nothing else out * width
        step = max(1, _SLICE // held)
        found = []
        for left, right in zip(self.left.split(step), self.right.split(step), strict=True):
            if before.is_nothing:
                wide_left, wide_right = left.double(), right.double()
                products = wide_left @ wide_left.transpose(1, 2)
                products *= wide_right @ wide_right.transpose(1, 2)
                found.append(products.sum((1, 2)) * before.own**2)
            else:
                found.append(_row_squares(left.transpose(1, 2) @ right, before))
        return torch.cat(found).clamp_(min=0.0)

    def kept(self, good: Tensor) -> SummedOuter:
        """Return the good ones and zeros."""
        return SummedOuter(_zeroed(self.left, good), _zeroed(self.right, good))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, one product over examples and steps."""
        return _weighted(self.left, weights).flatten(0, 1).T @ self.right.flatten(0, 1)

    def grouped(self, groups: Groups) -> Factor:
        """Return the means: more steps."""
        if groups.are_single:
            return self
        left, right = groups.shares(self.left), groups.take(self.right)
        return summed_outer(left.flatten(1, 2), right.flatten(1, 2))


@dataclass(frozen=True)
class Rows:
    """Each gradient adds values `(b, t, width)` to the rows ids `(b, t)` of a table of zeros."""

    ids: Tensor
    values: Tensor
    num_rows: int

    def squares(self, before: Before) -> Tensor:
        """Return the squared norms: a row that an example names twice is added up first."""
        num_examples, _, width = self.values.shape
        examples = torch.arange(num_examples, device=self.ids.device)
        named, inverse = torch.unique(
            examples[:, None] * self.num_rows + self.ids, return_inverse=True
        )
        sums = self.values.new_zeros((len(named), width), dtype=torch.float64)
        sums.index_add_(0, inverse.flatten(), self.values.double().flatten(0, 1))
        rows = named % self.num_rows
        here = Before(
            before.own,
            None if before.offset is None else before.offset[rows],
            None if before.multiplier is None else before.multiplier[rows],
        )
        squares = here.of(sums).square_().sum(1)
        if here.offset is not None and here.cross is not None:
            squares -= (here.cross * here.offset).sum(1)
        total = squares.new_full((num_examples,), before.constant)
        return total.index_add_(0, named // self.num_rows, squares).clamp_(min=0.0)

    def kept(self, good: Tensor) -> Rows:
        """Return the good ones and zeros."""
        return Rows(self.ids, _zeroed(self.values, good), self.num_rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, dense."""
        total = self.values.new_zeros((self.num_rows, self.values.shape[2]))
        values = _weighted(self.values, weights).flatten(0, 1)
        return total.index_add_(0, self.ids.flatten(), values)

    def grouped(self, groups: Groups) -> Factor:
        """Return the means: more rows named."""
        if groups.are_single:
            return self
        ids, values = groups.take(self.ids), groups.shares(self.values)
        return Rows(ids.flatten(1, 2), values.flatten(1, 2), self.num_rows)
