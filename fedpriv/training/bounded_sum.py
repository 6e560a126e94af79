"""The one place where contributions are bounded, rounded and added.

A trainer makes *stacks*: contributions of some users, not bounded yet, where the engine that made
them keeps them. `sum_bounded` preconditions and bounds each by its norm, and adds it to one running
sum; a stack knows no bound, and a bound no stack.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import EXCESS, Bound, bounded_factors
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.sums import Block, PartialSum, RunningSum, Sum, beyond_bound, rows_of
from fedpriv.training.algorithm import Context
from fedpriv.training.failures import (
    contributes_zero,
    contributing_zero_on_failure,
    counted_failures,
)
from fedpriv.training.stopping import stop_if_asked
from fedpriv.tree import SMALL, Params, Tree

_Besides = Mapping[str, np.ndarray]


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


def sum_bounded(
    total: Sum,
    stacks: Sequence[Iterable[Stack]],
    bound: Bound,
    template: Params,
    context: Context,
) -> PartialSum:
    """Return the sum of contributions, each bounded, with the number of those that failed.

    A contribution Δ is mixed and multiplied, cut to the bound's limits, multiplied by the factor
    that the bound gives for its norm, and rounded to the bound's grid. The bound comes last:
    whatever is before, a user moves the sum by at most its norm.

    Guarantees:
        * Each user moves the sum by at most `bound.l2_bound` (l2).
        * A user that is not finite or is refused contributes zero, alone, and is counted.

    Args:
        total: Of the engine that made them, from `fedpriv.training.work.Trainer.empty_sum`.
        stacks: Not bounded yet; where there are several iterables, a thread takes each of them.
        bound: Of each contribution.
        template: Names and shapes of the sum.
        context: Its mixture, multiplier and clip norm.

    Returns:
        The sum; its `num_users` are the contributions of the stacks, those that count as zero
        included.

    Raises:
        TypeError: If one of the stacks is none.
        ValueError: If there are so many coordinates that rounding alone would fill the bound.
    """
    longest = bound.longest(tree.num_elements(template))

    def add(part: Iterable[Stack]) -> tuple[int, int]:
        with counted_failures() as failures:
            number = sum(_add(total, stack, bound, longest, context) for stack in part)
            return number, failures.count

    if len(stacks) == 1:
        found = [add(stacks[0])]
    else:
        with ThreadPoolExecutor(len(stacks), thread_name_prefix="users") as pool:
            calls = [pool.submit(copy_context().run, add, part) for part in stacks]
            found = [call.result() for call in calls]
    return PartialSum(
        total=total.result(),
        num_users=sum(number for number, _ in found),
        num_failed=sum(failed for _, failed in found),
        granularity=bound.granularity,
        l2_bound=bound.l2_bound,
    )


def _add(total: Any, stack: Stack, bound: Bound, longest: float, context: Context) -> int:
    """Bound the contributions of a stack, add them to a running sum, and return their number."""
    stop_if_asked()
    if not isinstance(stack, Stack):
        raise TypeError(f"a {type(stack).__name__} is no Stack; yield RowStack, say")
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
    return len(norms)


def template_with(own: Params, bound: Bound, clip_norm: float | None) -> Params:
    """Return names and shapes of a sum: of a contribution, and of what the bound has users add.

    Raises:
        ValueError: If both have a name: what a user adds would be in one tensor with its update.
    """
    besides = bound.besides(np.ones(1), clip_norm)
    if both := sorted(besides.keys() & own.keys()):
        raise ValueError(f"{both[0]!r} is a tensor of the model and of {bound!r}; rename one")
    return {**own, **{name: rows[0].astype(np.float32) for name, rows in besides.items()}}


def _bounded(
    bound: Bound, norms: np.ndarray, longest: float, clip_norm: float | None
) -> tuple[np.ndarray, _Besides]:
    """Return each user's factor, 0 of one that fails, and what it adds besides."""
    fine = np.isfinite(norms)
    for norm in norms[~fine]:
        why = f"the update's norm is {norm}; a diverged or hostile user contributes 0"
        contributes_zero(NotFiniteError(why))
    factors = np.zeros(len(norms))
    empty = bound.besides(np.ones(1), clip_norm)
    besides = {n: np.zeros((len(norms), *row.shape[1:])) for n, row in empty.items()}
    for users in (fine,) if bound.elementwise else np.flatnonzero(fine)[:, np.newaxis]:
        with nullcontext() if bound.elementwise else contributing_zero_on_failure():
            lengths = norms[users]
            lengths.setflags(write=False)  # it is held to them afterwards
            added = bound.besides(lengths, clip_norm)
            found = bounded_factors(bound, lengths, longest, clip_norm)
            parts = [found * lengths, *added.values()]
            flat = [a.reshape(len(lengths), math.prod(a.shape[1:])) for a in parts]
            sizes = np.linalg.norm(np.concatenate(flat, axis=1), axis=1)
            within = sizes <= bound.l2_bound * (1.0 + EXCESS)
            for length in lengths[~within]:
                contributes_zero(
                    ValueError(
                        f"an update of norm {length:g} is refused by {bound!r}, or made longer "
                        f"than its {bound.l2_bound:g}: inputs are longer than stated, the loss is "
                        "another, or its factors are wrong"
                    )
                )
            factors[users] = np.where(within, found, 0.0)
            if added and np.isfinite(longest):
                shares = longest / np.maximum(sizes, longest)
                factors[users] *= shares
                added = {n: a * shares.reshape(-1, *(1,) * (a.ndim - 1)) for n, a in added.items()}
            for name, rows in added.items():
                besides[name][users] = rows
    return factors, besides


@dataclass(frozen=True, slots=True)
class RowStack(Stack):
    """Contributions of some users as arrays.

    Attributes:
        rows: Float (users, ...) by name, or of a tensor that is mostly zero some rows of each user.
    """

    rows: Mapping[str, np.ndarray | Block] = field(repr=False)

    @classmethod
    def of(cls, update: Tree) -> RowStack:
        """Return the contribution of one user."""
        return cls({name: rows_of(tensor) for name, tensor in update.items()})

    def _each(self, change: Callable[[np.ndarray], np.ndarray]) -> Self:
        found = {
            name: rows._replace(values=change(rows.values))
            if isinstance(rows, Block)
            else change(rows)
            for name, rows in self.rows.items()
        }
        return replace(self, rows=found)

    def mixed(self, mixture: Mixture) -> Self:
        """Return own · Δ + offset, dense."""
        own, found = np.float32(mixture.own), dict[str, np.ndarray | Block]()
        for name, rows in self.rows.items():
            offset = mixture.offset[name]
            if isinstance(rows, Block):
                whole = np.tile(offset, (len(rows.starts) - 1, *(1,) * offset.ndim))
                whole[rows.owners, rows.rows] += own * rows.values
                found[name] = whole
            else:
                found[name] = own * rows + offset
        return replace(self, rows=found)

    def times(self, multiplier: Params) -> Self:
        """Return the contributions times factors by name."""
        found = dict(self.rows)
        for name in found.keys() & multiplier.keys():
            rows, factor = found[name], multiplier[name]
            if isinstance(rows, Block):
                own = factor.ndim == rows.values.ndim and len(factor) > 1  # a number for each row
                values = rows.values * (factor[rows.rows] if own else factor)
                found[name] = rows._replace(values=values)
            else:
                found[name] = rows * factor
        return replace(self, rows=found)

    def limited(self, low: float, high: float) -> Self:
        """Return every coordinate within limits, which hold 0."""
        return self._each(
            lambda a: np.where(np.isfinite(a), np.clip(a, low, high, dtype=np.float64), a)
        )

    def multiples_of(self, spacing: float) -> Self:
        """Return every coordinate rounded, in its dtype or float32."""

        def rounded(array: np.ndarray) -> np.ndarray:
            whole = np.rint(np.divide(array, spacing, dtype=np.float64)) * spacing
            return whole.astype(np.result_type(array.dtype, np.float32))

        return self._each(rounded)

    def norms(self) -> np.ndarray:
        """Return the norms."""
        found: Any = 0.0
        for rows in self.rows.values():
            lengths = _norms_by_user(rows) if isinstance(rows, Block) else row_norms(rows)
            found = np.hypot(found, lengths)
        return found

    def add_to(self, total: RunningSum, factors: np.ndarray, besides: _Besides) -> np.ndarray:
        """Add the contributions."""
        return total.add_block(self.rows, factors, besides)


def _norms_by_user(block: Block) -> np.ndarray:
    """Return the l2 norm of each user's rows, float64."""
    lengths, owners, number = row_norms(block.values), block.owners, len(block.starts) - 1
    unit = np.ones(number)
    if block.values.dtype != np.float32:  # whose squares neither overflow float64 nor vanish
        most = np.zeros(number)
        np.maximum.at(most, owners, lengths)
        unit = np.where((most > 0.0) & np.isfinite(most), most, 1.0)
    return unit * np.sqrt(np.bincount(owners, np.square(lengths / unit[owners]), number))


def row_norms(values: np.ndarray) -> np.ndarray:
    """Return the l2 norm of each of `(rows, ...)`, float64."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    if flat.dtype == np.float32 and flat.size > SMALL:
        from fedpriv.kernels.sums import squares

        return np.sqrt(squares(np.ascontiguousarray(flat)))
    largest = np.abs(flat.astype(np.float64)).max(axis=1, initial=0.0)  # squares may overflow
    unit = np.where((largest > 0.0) & np.isfinite(largest), largest, 1.0)
    return unit * np.linalg.norm(flat / unit[:, np.newaxis], axis=1)
