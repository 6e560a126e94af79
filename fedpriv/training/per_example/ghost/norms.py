"""Every example's gradient of one parameter, kept in the smallest form that answers two questions.

A bounded sum needs the norm of each gradient and then one weighted sum over examples; it never
needs the gradients themselves. For a dense layer each is an outer product δ aᵀ of what came back
and what went in, so that norms and sum are matrix products over the batch and nothing of the size
(examples, parameters) exists. Norms are float64 throughout: whoever computes one too small leaves
the bound. Sums are float32, one rounding an example and a coordinate. (Outer
products: `outer_factors`; rows of a table: `row_factors`.)

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

SLICE = 1 << 22  # float64 numbers that a step through rows holds at once
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

    @cached_property
    def squared(self) -> Tensor | None:
        """m², float64."""
        return None if self.multiplier is None else self.multiplier.double().square()

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

    def measured(self, before: Before) -> tuple[Tensor, Summands]:
        """Return what `squares` does, and the summands that have these very norms.

        A gradient that is a sum of several parts may nearly cancel. Its norm is then as small as
        the rounding of a sum taken another way, which a weight of C / norm would enlarge beyond
        the bound. So what was measured is what is summed.
        """
        ...

    def grouped(self, groups: Groups) -> Factor:
        """Return the means over groups, in the place of examples."""
        ...


class Summands(Protocol):
    """What is left of a factor once its norms are known."""

    def kept(self, good: Tensor) -> Summands:
        """Return the gradients with zeros where `good` (bool `(b,)`) is false."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ w_i g_i, float32 of the parameter's shape; weights are float64 `(b,)`."""
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


def zeroed(rows: Tensor, good: Tensor) -> Tensor:
    """Return rows `(b, ...)` with zeros where `good` (bool `(b,)`) is false."""
    return rows.masked_fill(~_against(good, rows), 0)


def weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """Return w_i · rows_i; what is beyond float32 saturates, so that it cannot become NaN."""
    scaled = rows * _against(weights, rows)
    return scaled.clamp_(-_LARGEST, _LARGEST).to(rows.dtype)


def row_squares(rows: Tensor, before: Before) -> Tensor:
    """Return the squared norms of `(b, *shape)` after `before`, some rows at a time."""
    step = max(1, SLICE // max(1, rows[0].numel()))
    parts = [before.of(part).flatten(1).square_().sum(1) for part in rows.split(step)]
    return torch.cat(parts)


@dataclass(frozen=True)
class Dense:
    """The gradients themselves, `(b, *shape)`: small parameters, and the general path."""

    gradients: Tensor

    def squares(self, before: Before) -> Tensor:
        """Return the squared norms."""
        return row_squares(self.gradients, before)

    def measured(self, before: Before) -> tuple[Tensor, Dense]:
        """Return the squared norms, and this."""
        return self.squares(before), self

    def kept(self, good: Tensor) -> Dense:
        """Return the good ones and zeros."""
        return Dense(zeroed(self.gradients, good))

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

    def measured(self, before: Before) -> tuple[Tensor, Untouched]:
        """Return the squared norms, and this."""
        return self.squares(before), self

    def kept(self, good: Tensor) -> Untouched:
        """Return the zeros."""
        return self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(self.like)

    def grouped(self, groups: Groups) -> Untouched:
        """Return zeros for groups."""
        return Untouched(len(groups.places), self.like)
