"""The one place where contributions are bounded, rounded and added.

A trainer makes *stacks*: contributions of some users, not bounded yet, where the engine that made
them keeps them. `add_bounded` preconditions and bounds each by its norm, and adds it to one running
sum; a stack knows no bound, and a bound no stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound, bounded_factors
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.sums import Block, RunningSum, beyond_bound, rows_of
from fedpriv.training.failures import contributes_zero
from fedpriv.tree import Params, RowSparse, Tensor, Tree

if TYPE_CHECKING:
    from fedpriv.training.work import Context

_Besides = Mapping[str, np.ndarray]
# Part of a bound by which a contribution may be longer: room for rounding (`CHECKED_EXCESS`).
_EXCESS = 2.0**-15


class NotFiniteError(ValueError):
    """An update whose norm is not finite: training diverged, or a user is hostile."""


class Stack(ABC):
    """Contributions of some users, not bounded yet, in the memory of the engine that made them."""

    __slots__ = ()

    @abstractmethod
    def mixed(self, mixture: Mixture) -> Stack:
        """Return own · Δ + offset of every contribution Δ."""

    @abstractmethod
    def times(self, multiplier: Params) -> Stack:
        """Return every contribution times factors by name; names left out stay as they are."""

    def limited(self, low: float, high: float) -> Stack:
        """Return every coordinate within limits; what is not finite stays so.

        Raises:
            NotImplementedError: If the engine never forms coordinates.
        """
        raise NotImplementedError(f"{type(self).__name__} has no limits ({low} to {high})")

    def multiples_of(self, spacing: float) -> Stack:
        """Return every coordinate rounded to a whole multiple of the spacing, a power of two.

        Raises:
            NotImplementedError: If the engine never forms coordinates.
        """
        raise NotImplementedError(f"{type(self).__name__} has no multiples of {spacing}")

    @abstractmethod
    def norms(self) -> np.ndarray:
        """Return the l2 norms over all tensors, float64 (users,), in the order of the users."""

    @abstractmethod
    def add_to(self, total: Any, factors: np.ndarray, besides: _Besides) -> np.ndarray:
        """Add contributions times their factors, and what comes besides, to the engine's sum.

        Args:
            total: From `Trainer.empty_sum`.
            factors: float64 (users,); 0 leaves a user out, whatever its contribution holds.
            besides: float64 (users, ...) by name, added as they are.

        Returns:
            Positions of users who are longer than the bound on its grid, and add nothing.
        """


def add_bounded(
    total: Any, stacks: Iterable[Stack], bound: Bound, longest: float, context: Context
) -> int:
    """Bound all contributions of a round, and add them to an engine's running sum.

    A contribution Δ is mixed and multiplied, cut to the bound's limits, multiplied by the factor
    that the bound gives for its norm, and rounded to the bound's grid. The bound comes last:
    whatever is before, a user moves the sum by at most its norm.

    Guarantees:
        * Each user moves the sum by at most `bound.l2_bound` (l2).
        * A user that is not finite or is refused contributes zero, alone, and is counted.

    Args:
        total: From `fedpriv.training.work.Trainer.empty_sum`.
        stacks: Not bounded yet.
        bound: Of each contribution.
        longest: As of `Bound.longest`.
        context: Its mixture, multiplier and clip norm.

    Returns:
        How many contributions there were, those that count as zero included.

    Raises:
        TypeError: If one of the stacks is none.
    """
    number = 0
    for stack in stacks:
        if not isinstance(stack, Stack):
            raise TypeError(
                f"a {type(stack).__name__} is no Stack; yield UserStack or RowStack, say"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite adds nothing
            if context.mixture is not None:
                stack = stack.mixed(context.mixture)
            if context.multiplier:
                stack = stack.times(context.multiplier)
            if bound.limits is not None:
                stack = stack.limited(*bound.limits)
            if bound.multiple_of is not None:
                stack = stack.multiples_of(bound.multiple_of)
            norms = stack.norms()
            factors, besides = _bounded(bound, norms, longest, context.clip_norm)
            for _ in stack.add_to(total, factors, besides):
                contributes_zero(beyond_bound())
        number += len(norms)
    return number


def template_with(own: Params, bound: Bound, clip_norm: float | None) -> Params:
    """Return names and shapes of a sum: of a contribution, and of what the bound has users add."""
    besides = bound.besides(np.ones(1), clip_norm)
    return {**own, **{name: rows[0].astype(np.float32) for name, rows in besides.items()}}


def _bounded(
    bound: Bound, norms: np.ndarray, longest: float, clip_norm: float | None
) -> tuple[np.ndarray, _Besides]:
    """Return each user's factor, 0 of one that fails, and what it adds besides."""
    fine = np.isfinite(norms)
    lengths = np.where(fine, norms, 0.0)
    factors = bounded_factors(bound, lengths, longest, clip_norm)
    # A bound of one's own may not bound: what it makes longer than it states is refused.
    within = fine & np.isfinite(factors)
    within &= np.abs(factors) * lengths <= bound.l2_bound * (1.0 + _EXCESS)
    for norm in norms[~fine]:
        why = f"the update's norm is {norm}; a diverged or hostile user contributes 0"
        contributes_zero(NotFiniteError(why))
    for norm in norms[fine & ~within]:
        contributes_zero(
            ValueError(
                f"an update of norm {norm:g} is refused by a bound of {bound.l2_bound:g}, or made "
                "longer than that by it: inputs are longer than stated, or its loss is another"
            )
        )
    factors = np.where(within, factors, 0.0)
    besides = bound.besides(lengths, clip_norm)
    if besides and np.isfinite(longest):
        rows = [(factors * lengths)[:, None]]
        rows += [array.reshape(len(norms), -1) for array in besides.values()]
        shares = np.minimum(1.0, longest / np.linalg.norm(np.concatenate(rows, axis=1), axis=1))
        factors = factors * shares
        besides = {n: a * shares.reshape(-1, *(1,) * (a.ndim - 1)) for n, a in besides.items()}
    return factors, besides


@dataclass(frozen=True, slots=True)
class UserStack(Stack):
    """The contribution of one user, as dense or row-sparse arrays."""

    update: Tree = field(repr=False)

    def mixed(self, mixture: Mixture) -> UserStack:
        """Return own · Δ + offset, dense."""
        return UserStack(mixture.of(self.update))

    def times(self, multiplier: Params) -> UserStack:
        """Return the contribution times factors by name."""
        return UserStack(tree.multiply(self.update, multiplier))

    def limited(self, low: float, high: float) -> UserStack:
        """Return every coordinate within limits."""
        dense = tree.to_dense(self.update)
        return UserStack({n: _limited(array, low, high) for n, array in dense.items()})

    def multiples_of(self, spacing: float) -> UserStack:
        """Return every coordinate rounded."""
        return UserStack({n: _rounded(tensor, spacing) for n, tensor in self.update.items()})

    def norms(self) -> np.ndarray:
        """Return the norm."""
        return np.array([tree.l2_norm(self.update)])

    def add_to(self, total: RunningSum, factors: np.ndarray, besides: _Besides) -> np.ndarray:
        """Add the contribution."""
        tensors = {name: rows_of(tensor) for name, tensor in self.update.items()}
        return total.add_block(tensors, factors, besides)


@dataclass(frozen=True, slots=True)
class RowStack(Stack):
    """Contributions of many users as dense arrays, float (users, ...) by name."""

    rows: Mapping[str, np.ndarray] = field(repr=False)

    def mixed(self, mixture: Mixture) -> RowStack:
        """Return own · Δ + offset."""
        own = np.float32(mixture.own)
        return RowStack({n: own * rows + mixture.offset[n] for n, rows in self.rows.items()})

    def times(self, multiplier: Params) -> RowStack:
        """Return the contributions times factors by name."""
        changed = {n: rows * multiplier[n] for n, rows in self.rows.items() if n in multiplier}
        return RowStack({**self.rows, **changed})

    def limited(self, low: float, high: float) -> RowStack:
        """Return every coordinate within limits."""
        return RowStack({n: _limited(array, low, high) for n, array in self.rows.items()})

    def multiples_of(self, spacing: float) -> RowStack:
        """Return every coordinate rounded."""
        return RowStack({n: np.asarray(_rounded(a, spacing)) for n, a in self.rows.items()})

    def norms(self) -> np.ndarray:
        """Return the norms, taken of contributions over their largest number."""
        number = len(next(iter(self.rows.values())))
        flat = [rows.reshape(number, -1).astype(np.float64) for rows in self.rows.values()]
        values = np.concatenate(flat, axis=1)
        largest = np.abs(values).max(axis=1, initial=0.0)
        unit = np.where((largest > 0.0) & np.isfinite(largest), largest, 1.0)
        return unit * np.linalg.norm(values / unit[:, np.newaxis], axis=1)

    def add_to(self, total: RunningSum, factors: np.ndarray, besides: _Besides) -> np.ndarray:
        """Add the contributions."""
        return total.add_block(self.rows, factors, besides)


@dataclass(frozen=True, slots=True)
class SparseStack(Stack):
    """Contributions of several users who each move a few rows of one tensor.

    Attributes:
        name: Of that tensor.
        block: Its rows; float32, of a tensor of two axes.
        num_rows: Length of its first axis.
        dense: The other tensors, float32 (users, ...) by name.
        sound: Who could be trained, bool (users,); the norm of the others is NaN.
        squares: Sums of squares over all of them, float64 (users,); None where not known.
    """

    name: str
    block: Block = field(repr=False)
    num_rows: int
    dense: Mapping[str, np.ndarray] = field(repr=False)
    sound: np.ndarray
    squares: np.ndarray | None = field(default=None, repr=False)

    def _with(self, values: np.ndarray, dense: Mapping[str, np.ndarray]) -> SparseStack:
        block = self.block._replace(values=values)
        return replace(self, block=block, dense=dense, squares=None)

    def mixed(self, mixture: Mixture) -> Stack:
        """Return own · Δ + offset, dense: all rows of every user."""
        number, values = len(self.block.starts) - 1, self.block.values
        whole = np.zeros((number, self.num_rows, values.shape[1]), values.dtype)
        whole[np.repeat(np.arange(number), np.diff(self.block.starts)), self.block.rows] = values
        whole[~self.sound] = np.nan  # which no sum takes
        return RowStack({self.name: whole, **self.dense}).mixed(mixture)

    def times(self, multiplier: Params) -> SparseStack:
        """Return the contributions times factors by name."""
        values, factor = self.block.values, multiplier.get(self.name)
        if factor is not None:
            values = values * (factor[self.block.rows] if len(factor) == self.num_rows else factor)
        dense = RowStack(self.dense).times(multiplier).rows
        return self._with(values, dense)

    def limited(self, low: float, high: float) -> SparseStack:
        """Return every coordinate within limits, which hold 0."""
        return self._with(
            _limited(self.block.values, low, high), RowStack(self.dense).limited(low, high).rows
        )

    def multiples_of(self, spacing: float) -> SparseStack:
        """Return every coordinate rounded."""
        values = np.asarray(_rounded(self.block.values, spacing))
        return self._with(values, RowStack(self.dense).multiples_of(spacing).rows)

    def norms(self) -> np.ndarray:
        """Return the norms."""
        if self.squares is not None:
            return np.where(self.sound, np.sqrt(self.squares), np.nan)
        number, values = len(self.block.starts) - 1, self.block.values.astype(np.float64)
        owners = np.repeat(np.arange(number), np.diff(self.block.starts))
        found = np.bincount(owners, np.square(values).sum(axis=1), number)
        squares = found.astype(np.float64)  # of no rows at all they would be whole numbers
        if self.dense:
            squares += np.square(RowStack(self.dense).norms())
        return np.where(self.sound, np.sqrt(squares), np.nan)

    def add_to(self, total: RunningSum, factors: np.ndarray, besides: _Besides) -> np.ndarray:
        """Add the contributions."""
        return total.add_block({self.name: self.block, **self.dense}, factors, besides)


def _limited(array: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return numbers within limits, float64; what is not finite stays so."""
    return np.where(np.isfinite(array), np.clip(array, low, high, dtype=np.float64), array)


def _rounded(tensor: Any, spacing: float) -> Tensor:
    """Return whole multiples of a power of two, in the tensor's dtype or float32."""
    if isinstance(tensor, RowSparse):
        values: Any = _rounded(tensor.values, spacing)
        return RowSparse(rows=tensor.rows, values=values, num_rows=tensor.num_rows)
    whole = np.rint(np.divide(tensor, spacing, dtype=np.float64)) * spacing
    return whole.astype(np.result_type(tensor.dtype, np.float32))
