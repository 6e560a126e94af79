"""Gradients of a table of which an example names few rows, some of them more than once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.training.per_example.ghost.norms import (
    Before,
    Factor,
    Groups,
    Summands,
    weighted,
    zeroed,
)


@dataclass(frozen=True)
class Rows:
    """Each gradient adds values `(b, t, width)` to the rows ids `(b, t)` of a table of zeros."""

    ids: Tensor
    values: Tensor
    num_rows: int

    def squares(self, before: Before) -> Tensor:
        """Return the squared norms."""
        return self.measured(before)[0]

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

    def grouped(self, groups: Groups) -> Factor:
        """Return the means: more rows named."""
        if groups.are_single:
            return self
        ids, values = groups.take(self.ids), groups.shares(self.values)
        return Rows(ids.flatten(1, 2), values.flatten(1, 2), self.num_rows)


@dataclass(frozen=True)
class MadeRows:
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
