"""Stacks of single examples' updates of a linear model on sparse inputs.

An example's update is minus the outer product of its inputs x and its residual r, the loss's
derivative by the logits. It costs what the example stores, and only the sum is dense.

Means over groups, and mixtures with a public offset, have numbers for the rows of the matrix that a
group touches. On all other rows a mixture is the offset, the same for every group. Norms and sums
are made of the numbers of contributions themselves, and of no differences, so that nothing cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from scipy import sparse

from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.sums import RunningSum
from fedpriv.training.bounded_sum import RowStack, Stack
from fedpriv.training.per_example.example_sum import Examples, add_sums
from fedpriv.tree import Params, RowSparse, Tree

# Squares of anything shorter lose digits in float64; it counts as the zero vector, and is shorter
# than any bound.
_TINY = 1e-140
# Numbers of merged rows that are held at once.
_HELD = 1 << 22


def canonical(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return inputs as float64 rows, sorted and merged if they were not; `x` stays as it is.

    Raises:
        ValueError: If `x` is not CSR or its indices lie outside it.
    """
    if getattr(x, "format", None) != "csr":
        raise ValueError(f"inputs are {type(x).__name__}; give a scipy.sparse CSR matrix")
    x.check_format(full_check=True)
    found = sparse.csr_matrix(x, dtype=np.float64, copy=x.dtype != np.float64)
    if not found.has_canonical_format:
        found = found.copy()
        found.sum_duplicates()
    return found


def with_ones(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return rows with one input more, which is always 1."""
    (number, width), ends = size_of(rows), rows.indptr[1:]
    data, indices = np.insert(rows.data, ends, 1.0), np.insert(rows.indices, ends, width)
    indptr = rows.indptr + np.arange(number + 1)
    return sparse.csr_matrix((data, indices, indptr), shape=(number, width + 1))


def size_of(x: sparse.csr_matrix) -> tuple[int, int]:
    """Return the numbers of rows and of columns."""
    return cast(tuple[int, int], x.shape)


def positions(index: np.ndarray, num_examples: int) -> np.ndarray:
    """Return positions in a training set as int64.

    Raises:
        ValueError: If one lies outside it.
    """
    found = np.ascontiguousarray(index)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ValueError(f"positions {found.dtype}{found.shape} must be a flat array of integers")
    found = found.astype(np.int64, copy=False)
    if found.size and not 0 <= found.min() <= found.max() < num_examples:
        raise ValueError(f"positions {found.min()}..{found.max()} leave 0..{num_examples - 1}")
    return found


def joined(index: Examples, num_examples: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return positions, int64, those of groups one after the other, and where each group starts.

    Raises:
        ValueError: If a group is empty (it has no mean), or a position out of range.
    """
    if isinstance(index, np.ndarray):
        return positions(index, num_examples), None
    sizes = [len(group) for group in index]
    if 0 in sizes:
        raise ValueError(f"group {sizes.index(0)} is empty and has no mean; leave it out")
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    chosen = np.concatenate([np.asarray(g) for g in index]) if sizes else np.zeros(0, np.int64)
    return positions(chosen, num_examples), starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The tensors of a linear model as one matrix: the bias is the weight of an input of 1.

    Attributes:
        name: Of the weights among the params; the bias, which is last, is "bias".
        shape: Of the weights there: `(num_inputs,)` or `(num_inputs, num_classes)`.
        num_classes: Columns of the matrix.
        bias: Whether there is one.
    """

    name: str
    shape: tuple[int, ...]
    num_classes: int
    bias: bool

    def matrix(self, arrays: Mapping[str, np.ndarray], absent: float = 0.0) -> np.ndarray:
        """Return arrays that broadcast to the tensors, float64: one column if all are equal."""
        found = [_matrix(arrays.get(self.name, absent), (self.shape[0], self.num_classes))]
        if self.bias:
            found.append(_matrix(arrays.get("bias", absent), (1, self.num_classes)))
        columns = max(part.shape[1] for part in found)
        return np.concatenate([np.broadcast_to(part, (len(part), columns)) for part in found])

    @property
    def height(self) -> int:
        """Rows of the matrix."""
        return self.shape[0] + self.bias

    def tensors(self, matrix: np.ndarray, rows: np.ndarray | None = None) -> Tree:
        """Return the tensors of a matrix, or of some of its rows, the bias's among them."""
        bias = {"bias": matrix[-1]} if self.bias else {}
        inner = slice(0, -1 if self.bias else None)
        values = matrix[inner].reshape(-1, *self.shape[1:])
        if rows is None:
            return {self.name: values, **bias}
        sparse_rows = RowSparse(rows=rows[inner], values=values, num_rows=self.shape[0])
        return {self.name: sparse_rows, **bias}


def _matrix(array: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return float64 of a shape, or of one column where columns are equal."""
    array = np.asarray(array, np.float64)
    if array.ndim == 1 and shape[1] == 1:
        array = array.reshape(-1, 1)
    columns = shape[1] if array.ndim and array.shape[-1] != 1 else 1
    return np.broadcast_to(array, (shape[0], columns))


def _blocks(
    rows: sparse.csr_matrix, starts: np.ndarray, num_classes: int
) -> Iterator[tuple[slice, slice]]:
    """Yield groups, and their examples, whose merged rows are held at once; at least one group."""
    stored = rows.indptr[starts].astype(np.int64) * num_classes
    first = 0
    while first < len(starts) - 1:
        last = max(first + 1, int(np.searchsorted(stored, stored[first] + _HELD, "right")) - 1)
        yield slice(first, last), slice(int(starts[first]), int(starts[last]))
        first = last


@dataclass(frozen=True, kw_only=True)
class OuterStack(Stack):
    """Updates of single examples: outer products of inputs and residuals.

    Attributes:
        layout: Of the model.
        rows: CSR `(examples, rows of the matrix)`, canonical.
        own: float64 `(examples, num_classes)`: minus the residuals.
        multiplier: float64, of the matrix or one column of it; None for ones.
    """

    layout: Layout
    rows: sparse.csr_matrix = field(repr=False)
    own: np.ndarray = field(repr=False)
    multiplier: np.ndarray | None = field(default=None, repr=False)

    def mixed(self, mixture: Mixture) -> MeanStack:
        """Return own · Δ + offset: an example is a group of one."""
        return self.means(np.arange(len(self.own) + 1)).mixed(mixture)

    def times(self, multiplier: Params) -> OuterStack:
        """Return every contribution times factors by name."""
        return replace(self, multiplier=self.layout.matrix(multiplier, absent=1.0))

    @cached_property
    def _touched(self) -> tuple[np.ndarray, sparse.csr_matrix]:
        """Rows of the matrix that some example touches, and the inputs of those alone."""
        indices, num_rows = self.rows.indices, size_of(self.rows)[1]
        if len(indices) < num_rows:
            touched, places = np.unique(indices, return_inverse=True)
        else:  # counting is quicker than sorting
            found = np.bincount(indices, minlength=num_rows) > 0
            touched, places = np.flatnonzero(found), (np.cumsum(found) - 1)[indices]
        entries = (self.rows.data, places, self.rows.indptr)
        return touched, sparse.csr_matrix(entries, shape=(len(self.own), len(touched)))

    def norms(self) -> np.ndarray:
        """Return the norms: no two examples touch the same number."""
        touched, inputs = self._touched
        weights = (
            np.ones((len(touched), 1)) if self.multiplier is None else self.multiplier[touched]
        )
        # Of residuals near zero the squares would vanish, and not their products with the inputs.
        columns = np.sqrt(inputs.multiply(inputs) @ np.square(weights)) * self.own
        return RowStack({self.layout.name: columns}).norms()

    def add_to(
        self, total: RunningSum, factors: np.ndarray, besides: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Add the contributions; of who is left out nothing is multiplied: 0 · ∞ is no 0."""
        touched, inputs = self._touched
        kept = factors != 0.0
        found = np.asarray(inputs[kept].T @ (self.own[kept] * factors[kept, np.newaxis]))
        if self.multiplier is not None:
            found = found * self.multiplier[touched]
        return add_sums(total, self.layout.tensors(found, touched), factors, besides)

    def means(self, starts: np.ndarray) -> MeanStack:
        """Return the means over groups of examples, not multiplied.

        Args:
            starts: int64, where each group starts, and the end.
        """
        sizes, width = np.diff(starts), size_of(self.rows)[1]
        own = self.own / np.repeat(sizes, sizes)[:, np.newaxis]
        example = np.repeat(np.arange(len(own)), np.diff(self.rows.indptr))
        touched = np.repeat(np.arange(len(sizes)), sizes)[example] * width + self.rows.indices
        order = np.argsort(touched, kind="stable")
        first = np.flatnonzero(np.diff(touched[order], prepend=-1))
        entries = (self.rows.data[order], example[order], np.append(first, len(order)))
        merging = sparse.csr_matrix(entries, shape=(len(first), len(own)))
        group, row = np.divmod(touched[order][first], width)
        values = np.asarray(merging @ own)
        return MeanStack(layout=self.layout, number=len(sizes), group=group, row=row, values=values)


@dataclass(frozen=True, kw_only=True)
class MeanStack(Stack):
    """Means over groups of examples, by the rows of the matrix that each group touches.

    Attributes:
        layout: Of the model.
        number: How many groups there are.
        group: int64 `(m,)`, sorted: the group of each of its rows.
        row: int64 `(m,)`, which row of the matrix it is.
        values: float64 `(m, num_classes)`.
        elsewhere: float64, of the matrix: the rows that a group does not touch; None for zeros.
    """

    layout: Layout
    number: int
    group: np.ndarray = field(repr=False)
    row: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)
    elsewhere: np.ndarray | None = field(default=None, repr=False)

    def mixed(self, mixture: Mixture) -> MeanStack:
        """Return own · Δ + offset of every contribution Δ."""
        offset = self.layout.matrix(mixture.offset)
        offset = np.broadcast_to(offset, (len(offset), self.layout.num_classes))
        share = float(np.float32(mixture.own))  # as `Mixture.of` has it
        return replace(self, values=self.values * share + offset[self.row], elsewhere=offset)

    def times(self, multiplier: Params) -> MeanStack:
        """Return every contribution times factors by name."""
        factors, elsewhere = self.layout.matrix(multiplier, absent=1.0), self.elsewhere
        if elsewhere is not None:
            elsewhere = elsewhere * factors
        return replace(self, values=self.values * factors[self.row], elsewhere=elsewhere)

    def _untouched(self, height: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield groups, and bool `(groups, height)`: the rows that each does not touch."""
        step = max(1, _HELD // height)
        for first in range(0, self.number, step):
            groups = slice(first, min(first + step, self.number))
            here = slice(*np.searchsorted(self.group, (groups.start, groups.stop)))
            found = np.ones((groups.stop - first, height), bool)
            found[self.group[here] - first, self.row[here]] = False
            yield groups, found

    def norms(self) -> np.ndarray:
        """Return the norms."""
        squares = np.bincount(self.group, _squared(self.values), self.number).astype(np.float64)
        if self.elsewhere is not None:
            energy = _squared(self.elsewhere)
            for groups, rows in self._untouched(len(energy)):
                squares[groups] += np.where(rows, energy, 0.0).sum(axis=1)
        found = np.sqrt(squares)
        return np.where(found <= _TINY, 0.0, found)

    def add_to(
        self, total: RunningSum, factors: np.ndarray, besides: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Add the contributions; of those left out nothing is multiplied."""
        kept, height = factors[self.group] != 0.0, self.layout.height
        entries = (factors[self.group[kept]], self.row[kept], np.arange(kept.sum() + 1))
        weights = sparse.csc_matrix(entries, shape=(height, int(kept.sum())))
        found = np.asarray(weights @ self.values[kept])
        if self.elsewhere is not None and factors.any():
            shares = [factors[groups] @ rows for groups, rows in self._untouched(height)]
            found += np.sum(shares, axis=0)[:, np.newaxis] * self.elsewhere
        return add_sums(total, self.layout.tensors(found), factors, besides)


def outer_stacks(
    rows: sparse.csr_matrix, residuals: np.ndarray, starts: np.ndarray | None, layout: Layout
) -> Iterator[OuterStack | MeanStack]:
    """Yield minus the gradients, of as many examples or groups at once as memory allows.

    Args:
        rows: Of the examples, canonical, group after group; with a bias their last input is 1.
        residuals: The loss's derivatives by the logits, float64 `(examples, num_classes)`.
        starts: int64, where each group starts, and the end; None for examples alone.
        layout: Of the model.
    """
    edges = np.arange(len(residuals) + 1) if starts is None else starts
    for groups, examples in _blocks(rows, edges, layout.num_classes):
        inside, own = edges[groups.start : groups.stop + 1] - examples.start, -residuals[examples]
        here = rows if len(own) == len(residuals) else rows[examples]
        stack = OuterStack(layout=layout, rows=here, own=own)
        yield stack if starts is None else stack.means(inside)


def _squared(rows: np.ndarray) -> np.ndarray:
    return np.einsum("mk,mk->m", rows, rows)
