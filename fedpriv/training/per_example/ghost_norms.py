"""Per-example gradients of one parameter, in a form that gives norms and weighted sums cheaply.

A bounded sum needs the norm of each gradient and then one weighted sum over examples; it never
needs the gradients themselves. For a dense layer each is an outer product δ aᵀ of what came back
and what went in, so that norms and sum are matrix products over the batch and nothing of the size
(examples, parameters) exists. Norms are float64 throughout: whoever computes one too small leaves
the bound. Sums are float32, one rounding an example and a coordinate.

The parts of one example may cancel. Then the gradient is as small as the rounding of a float32 sum
over its parts, and dividing by its norm would make that rounding as long as the bound, or longer.
Parts that do not cancel are never added up before the batch is; those that do are added up in
float64 once, and norm and sum are both taken from the result.

Reference for the outer products: Goodfellow, "Efficient Per-Example Gradient Computations" (2015);
for the time axis: Li et al., "Large Language Models Can Be Strong Differentially Private Learners"
(2022), section 4; for one backward pass serving both: Bu et al., "Differentially Private
Optimization on Large Model at Small Cost" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

SLICE = 1 << 22  # float64 numbers that a step through rows holds at once
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Before:
    """Map of one parameter's updates before their norm is taken: (own Δ + offset) · m.

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


class Summands:
    """Gradients whose norms were taken, to be summed with weights."""

    def kept(self, good: Tensor) -> Self:
        """Return the gradients with zeros where `good` (bool `(b,)`) is false."""
        return type(self)(*(zeroed(rows, good) for rows in vars(self).values()))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ w_i g_i, float32 of the parameter's shape; weights are float64 `(b,)`."""
        raise NotImplementedError


class Factor(Summands):
    """Gradients of one parameter for the b examples of a chunk."""

    def squares(self, before: Before) -> Tensor:
        """Return every ‖(-own g + offset) · m‖², float64 `(b,)`; not finite where g is not."""
        return self.measured(before)[0]

    def measured(self, before: Before) -> tuple[Tensor, Summands]:
        """Return what `squares` does, and the summands that have these very norms.

        A gradient that is a sum of several parts may nearly cancel. Its norm is then as small as
        the rounding of a sum taken another way, which a weight of C / norm would enlarge beyond
        the bound. So what was measured is what is summed; a factor of one part sums itself, and
        has `squares`.
        """
        return self.squares(before), self

    def grouped(self, groups: Groups) -> Factor:
        """Return the means over groups, in the place of examples."""
        return self if groups.are_single else self.means(groups)

    def means(self, groups: Groups) -> Factor:
        """Return the means over groups, of which one has several members."""
        raise NotImplementedError


@dataclass(frozen=True)
class Groups:
    """Assignment of a chunk's examples to groups.

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
class Dense(Factor):
    """The gradients themselves, `(b, *shape)`: small parameters, and the general path."""

    gradients: Tensor

    def squares(self, before: Before) -> Tensor:
        """Return the squared norms."""
        return row_squares(self.gradients, before)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum."""
        flat = self.gradients.flatten(1)
        narrow = weights.clamp(-_LARGEST, _LARGEST).to(flat.dtype)
        return (narrow @ flat).reshape(self.gradients.shape[1:])

    def means(self, groups: Groups) -> Dense:
        """Return the means."""
        return Dense(groups.shares(self.gradients).sum(1))


@dataclass(frozen=True)
class Untouched(Factor):
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


#: A sum whose norm is below this share of its parts' norms is made before it is measured: what
#: float32 leaves of the others is then below 2^-18 of them, times the root of the number of parts.
_CANCELS = 2.0**-6
#: Pairs of parts an example, on average, up to which products of pairs cost less than the sum made.
_FEW_PAIRS = 24


@dataclass(frozen=True)
class Outer(Factor):
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

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, one product."""
        return weighted(self.left, weights).T @ self.right

    def means(self, groups: Groups) -> Factor:
        """Return the means: sums of outer products."""
        return summed_outer(groups.shares(self.left), groups.take(self.right))


def summed_outer(left: Tensor, right: Tensor) -> Factor:
    """Return Σ_t left_t right_tᵀ of `(b, t, out)` and `(b, t, in)`, made or not as is smaller."""
    steps, out = left.shape[1:]
    if out * right.shape[2] <= steps * (out + right.shape[2]):
        return Dense(left.transpose(1, 2) @ right)
    return SummedOuter(left, right)


@dataclass(frozen=True)
class SummedOuter(Factor):
    """Each gradient is a sum over steps: `(b, t, out)` and `(b, t, in)`, larger when made."""

    left: Tensor
    right: Tensor

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

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, one product over examples and steps."""
        return weighted(self.left, weights).flatten(0, 1).T @ self.right.flatten(0, 1)

    def means(self, groups: Groups) -> Factor:
        """Return the means: more steps."""
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
class PartlyMade(Summands):
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


@dataclass(frozen=True)
class Rows(Factor):
    """Each gradient adds values `(b, t, width)` to the rows ids `(b, t)` of a table of zeros."""

    ids: Tensor
    values: Tensor
    num_rows: int

    def measured(self, before: Before) -> tuple[Tensor, Summands]:
        """Return the squared norms, and the rows: what an example names twice is added up first."""
        num_examples, _, width = self.values.shape
        examples = torch.arange(num_examples, device=self.ids.device)
        named, inverse = torch.unique(
            examples[:, None] * self.num_rows + self.ids, return_inverse=True
        )
        sums = self.values.new_zeros((len(named), width), dtype=torch.float64)
        sums.index_add_(0, inverse.flatten(), self.values.double().flatten(0, 1))
        made = sums.to(self.values.dtype)
        owner, rows = named // self.num_rows, named % self.num_rows
        here = Before(
            before.own,
            None if before.offset is None else before.offset[rows],
            None if before.multiplier is None else before.multiplier[rows],
        )
        squares = here.of(made).square_().sum(1)
        if here.offset is not None and here.cross is not None:
            squares -= (here.cross * here.offset).sum(1)
        total = squares.new_full((num_examples,), before.constant)
        total.index_add_(0, owner, squares).clamp_(min=0.0)
        return total, MadeRows(owner, rows, made, self.num_rows)

    def means(self, groups: Groups) -> Factor:
        """Return the means: more rows named."""
        ids, values = groups.take(self.ids), groups.shares(self.values)
        return Rows(ids.flatten(1, 2), values.flatten(1, 2), self.num_rows)


@dataclass(frozen=True)
class MadeRows(Summands):
    """Rows of a table, each named once an example.

    Attributes:
        owner: int64, whose row it is, by place in the chunk.
        rows: int64, which row.
        values: `(number, width)`.
        num_rows: Of the table.
    """

    owner: Tensor
    rows: Tensor
    values: Tensor
    num_rows: int

    def kept(self, good: Tensor) -> MadeRows:
        """Return the good ones and zeros."""
        return MadeRows(self.owner, self.rows, zeroed(self.values, good[self.owner]), self.num_rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, dense."""
        total = self.values.new_zeros((self.num_rows, self.values.shape[1]))
        return total.index_add_(0, self.rows, weighted(self.values, weights[self.owner]))
