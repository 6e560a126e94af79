"""Stacks of single examples' updates of a linear model on sparse inputs.

An example's update is minus the outer product of its inputs x and its residual r, the loss's
derivative by the logits; with a public multiplier m and mixture (own, offset) the norm to bound is

    ‖(own u + offset) m‖² = Σ over touched coordinates + (‖offset m‖² - its part on those),

so each example costs what it stores, and only the sum is dense.
"""

from __future__ import annotations

import math
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
# Where update and offset nearly cancel, their norm has lost digits: such an example is made dense.
_CANCELS = 1e-4
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


def _merge(
    rows: sparse.csr_matrix, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, sparse.csr_matrix]:
    """Return how updates of groups are merged by the rows of the matrix that each group touches.

    Args:
        rows: Of the examples.
        group: int64, of each example.

    Returns:
        The group `(m,)` of each merged row, which row of the matrix it is, and CSR `(m, examples)`:
        its product with the examples' coefficients has the merged rows.
    """
    example = np.repeat(np.arange(size_of(rows)[0]), np.diff(rows.indptr))
    names = group[example] * size_of(rows)[1] + rows.indices
    order = np.argsort(names, kind="stable")
    first = np.flatnonzero(np.diff(names[order], prepend=-1))
    place, column = np.divmod(names[order][first], size_of(rows)[1])
    entries = (rows.data[order], example[order], np.append(first, len(order)))
    return place, column, sparse.csr_matrix(entries, shape=(len(first), size_of(rows)[0]))


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
        starts = np.arange(len(self.own) + 1)
        means = MeanStack(layout=self.layout, rows=self.rows, own=self.own, starts=starts)
        return means.mixed(mixture)

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
        weights = _times(np.ones((len(touched), 1)), self.multiplier, touched)
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
        sums = self.layout.tensors(_times(found, self.multiplier, touched), touched)
        return add_sums(total, sums, factors, besides)


@dataclass(frozen=True, kw_only=True)
class MeanStack(OuterStack):
    """Means over groups of examples, or single examples that are mixed with a public update.

    Attributes:
        own: float64 `(examples, num_classes)`: minus the residuals over the size of a group.
        starts: int64, where each group starts, and the end.
        offset: float64, of the matrix; None for zeros.
    """

    starts: np.ndarray = field(repr=False)
    offset: np.ndarray | None = field(default=None, repr=False)

    def mixed(self, mixture: Mixture) -> MeanStack:
        """Return own · Δ + offset of every contribution Δ."""
        share = float(np.float32(mixture.own))  # as `Mixture.of` has it
        shape = (size_of(self.rows)[1], self.layout.num_classes)
        offset = np.broadcast_to(self.layout.matrix(mixture.offset), shape)
        return replace(self, own=self.own * share, offset=offset)

    @cached_property
    def _merged(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each row that a group touches: the group, which row it is, and its update's part."""
        groups = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        place, row, merging = _merge(self.rows, groups)
        return place, row, np.asarray(merging @ self.own)

    @cached_property
    def _squared_norms(self) -> tuple[np.ndarray, np.ndarray]:
        """Squares of the norms, and which groups lost digits of theirs and are taken dense."""
        place, row, merged = self._merged
        number, energy, elsewhere = len(self.starts) - 1, 0.0, 0.0
        if self.offset is not None:
            offset = _times(self.offset, self.multiplier)
            energy = _squared(offset).sum()
            elsewhere = energy - np.bincount(place, _squared(offset[row]), number)
            merged = merged + self.offset[row]
        squared = np.bincount(place, _squared(_times(merged, self.multiplier, row)), number)
        squared = squared + np.maximum(elsewhere, 0.0)
        cancelling = np.flatnonzero(squared < _CANCELS * energy)
        for group in cancelling:
            squared[group] = np.square(self._dense(group)).sum()
        return squared, cancelling

    def norms(self) -> np.ndarray:
        """Return the norms."""
        found = np.sqrt(self._squared_norms[0])
        return np.where(found <= _TINY, 0.0, found)

    def add_to(
        self, total: RunningSum, factors: np.ndarray, besides: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Add the contributions; of who is left out nothing is multiplied."""
        place, row, merged = self._merged
        _, cancelling = self._squared_norms
        together = factors.copy()
        together[cancelling] = 0.0
        kept = together[place] != 0.0
        entries = (together[place[kept]], row[kept], np.arange(kept.sum() + 1))
        weights = sparse.csc_matrix(entries, shape=(size_of(self.rows)[1], int(kept.sum())))
        found = np.asarray(weights @ merged[kept])
        if self.offset is not None and together.any():
            found += math.fsum(together) * self.offset
        found = _times(found, self.multiplier)
        for group in cancelling[factors[cancelling] != 0.0]:
            found += factors[group] * self._dense(group)
        return add_sums(total, self.layout.tensors(found), factors, besides)

    def _dense(self, group: Any) -> np.ndarray:
        """Return the update of one group, with all rows."""
        members = slice(self.starts[group], self.starts[group + 1])
        found = np.asarray(self.rows[members].T @ self.own[members]) + self.offset
        return _times(found, self.multiplier)


def outer_stacks(
    rows: sparse.csr_matrix, residuals: np.ndarray, starts: np.ndarray | None, layout: Layout
) -> Iterator[OuterStack]:
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
        if starts is None:
            yield OuterStack(layout=layout, rows=here, own=own)
        else:
            sizes = np.diff(inside)
            own = own / np.repeat(sizes, sizes)[:, np.newaxis]
            yield MeanStack(layout=layout, rows=here, own=own, starts=inside)


def _times(
    matrix: np.ndarray, multiplier: np.ndarray | None, rows: np.ndarray | None = None
) -> np.ndarray:
    """Return a matrix, or some of its rows, times the multiplier."""
    if multiplier is None:
        return matrix
    return matrix * (multiplier if rows is None else multiplier[rows])


def _squared(rows: np.ndarray) -> np.ndarray:
    return np.einsum("mk,mk->m", rows, rows)
