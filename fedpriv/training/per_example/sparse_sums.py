"""Bounded sums of single examples' updates of a linear model on sparse inputs.

An example's update is minus the outer product of its inputs x and its residual r, the loss's
derivative by the logits; with a public multiplier m and mixture (own, offset) the norm to bound is

    ‖(own u + offset) m‖² = Σ over touched coordinates + (‖offset m‖² - its part on those),

so each example costs what it stores, and only the sum is dense.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy import sparse

from fedpriv.training.per_example.example_sum import Bounding, Examples
from fedpriv.training.work import Context

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Public:
    """A round's public part in the shapes of a linear model: one matrix and one row of biases.

    Attributes:
        own: Weight of an example's own update.
        multiplier: float64 `(num_inputs, 1)`, or with all classes; None for ones.
        bias_multiplier: float64 `(num_classes,)`.
        offset: float64 `(num_inputs, num_classes)`; None for zeros.
        bias_offset: float64 `(num_classes,)`.
    """

    own: float
    multiplier: np.ndarray | None
    bias_multiplier: np.ndarray
    offset: np.ndarray | None
    bias_offset: np.ndarray

    @classmethod
    def of(cls, context: Context, name: str, shape: tuple[int, int]) -> Public:
        """Return the mixture and multiplier of a context.

        Args:
            context: Any.
            name: The matrix's name among the params; the other is "bias".
            shape: (num_inputs, num_classes).
        """
        multiplier, offset, own = None, None, 1.0
        bias_multiplier, bias_offset = np.ones(shape[1]), np.zeros(shape[1])
        if name in context.multiplier:
            multiplier = _matrix(context.multiplier[name], shape)
        if "bias" in context.multiplier:
            bias_multiplier = bias_multiplier * context.multiplier["bias"]
        if context.mixture is not None:
            own = float(np.float32(context.mixture.own))  # as `Mixture.of` has it
            offset = np.broadcast_to(_matrix(context.mixture.offset[name], shape), shape)
            bias_offset = bias_offset + context.mixture.offset["bias"]
        return cls(
            own=own,
            multiplier=multiplier,
            bias_multiplier=bias_multiplier,
            offset=offset,
            bias_offset=bias_offset,
        )

    def times_multiplier(self, matrix: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
        """Return some rows of a matrix times the multiplier."""
        return matrix if self.multiplier is None else matrix * self.multiplier[rows]


def _matrix(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return float64 `(num_inputs, num_classes)`, or `(num_inputs, 1)` where columns are equal."""
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


def bounded_outer_sum(
    x: sparse.csr_matrix,
    chosen: np.ndarray,
    starts: np.ndarray | None,
    residuals: np.ndarray,
    public: Public,
    bounding: Bounding,
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ bound(mean over a group of -(x_i ⊗ residual_i)), and the same of the biases.

    Args:
        x: All inputs, canonical.
        chosen: int64, the examples, group after group.
        starts: int64, where each group starts in `chosen`, and its end; None for examples alone.
        residuals: float64 `(chosen, num_classes)`.
        public: Of the round.
        bounding: From norms to factors, 0 of an update that fails.

    Returns:
        float64 `(num_inputs, num_classes)` and `(num_classes,)`. A group whose norm is not finite
        contributes zero.
    """
    shape = (size_of(x)[1], residuals.shape[1])
    if not len(chosen):
        return np.zeros(shape), np.zeros(shape[1])
    rows = x[chosen]
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite contributes zero
        if starts is None and public.offset is None:
            return _sum_alone(rows, -public.own * residuals, public, bounding)
        starts = np.arange(len(chosen) + 1) if starts is None else starts
        sizes = np.diff(starts)
        own = residuals * np.repeat(-public.own / sizes, sizes)[:, np.newaxis]
        total, bias_total = np.zeros(shape), np.zeros(shape[1])
        for groups, examples in _blocks(rows, starts, shape[1]):
            inside = starts[groups.start : groups.stop + 1] - examples.start
            found = _sum_groups(rows[examples], own[examples], inside, public, bounding)
            total += found[0]
            bias_total += found[1]
    return total, bias_total


def _sum_alone(
    rows: sparse.csr_matrix, own: np.ndarray, public: Public, bounding: Bounding
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums over examples alone, of which no two touch the same numbers."""
    biases = own * public.bias_multiplier
    columns, places = np.unique(rows.indices, return_inverse=True)
    entries = (rows.data, places, rows.indptr)  # of the columns that are touched alone
    touched = sparse.csr_matrix(entries, shape=(size_of(rows)[0], len(columns)))
    ones = np.ones((len(columns), 1))
    weights = ones if public.multiplier is None else np.square(public.multiplier[columns])
    squared = (touched.multiply(touched) @ weights * np.square(own)).sum(axis=1)
    squared += np.square(biases).sum(axis=1)
    factors = bounding(np.sqrt(squared))
    kept = factors != 0.0
    # Of the others nothing is multiplied: 0 times infinity is no zero.
    found = touched[kept].T @ (own[kept] * factors[kept, np.newaxis])
    total = np.zeros((size_of(rows)[1], own.shape[1]))
    total[columns] = public.times_multiplier(found, columns)
    return total, factors[kept] @ biases[kept]


def _sum_groups(
    rows: sparse.csr_matrix,
    own: np.ndarray,
    starts: np.ndarray,
    public: Public,
    bounding: Bounding,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums over means of groups, with the offset added to each."""
    number, shape = len(starts) - 1, (size_of(rows)[1], own.shape[1])
    biases = np.add.reduceat(own, starts[:-1], axis=0)
    biases = (biases + public.bias_offset) * public.bias_multiplier
    squared = np.square(biases).sum(axis=1)
    place, column, merging = _merge(rows, np.repeat(np.arange(number), np.diff(starts)))
    merged, energy = merging @ own, 0.0
    update = merged
    if public.offset is not None:
        offset = public.times_multiplier(public.offset, slice(None))
        energy = _squared(offset).sum()
        replaced = np.bincount(place, _squared(offset[column]), number)
        squared += np.maximum(energy - replaced, 0.0)
        update = merged + public.offset[column]
    touched = _squared(public.times_multiplier(update, column))
    squared += np.bincount(place, touched, number)
    cancels = squared < _CANCELS * energy
    squared[cancels] = 0.0  # taken one by one below
    factors = bounding(np.sqrt(squared))
    kept = factors != 0.0
    there = kept[place]
    entries = (factors[place[there]], column[there], np.arange(there.sum() + 1))
    weights = sparse.csc_matrix(entries, shape=(shape[0], int(there.sum())))
    total = np.asarray(weights @ merged[there])
    if public.offset is not None and kept.any():
        total += math.fsum(factors) * public.offset
    total = public.times_multiplier(total, slice(None))
    bias_total = factors[kept] @ biases[kept]
    for group in np.flatnonzero(cancels):
        members = slice(starts[group], starts[group + 1])
        dense = np.asarray(rows[members].T @ own[members]) + public.offset
        dense = public.times_multiplier(dense, slice(None))
        norm = math.sqrt(float(np.square(dense).sum() + np.square(biases[group]).sum()))
        factor = bounding(np.array([norm]))[0]
        total += factor * dense
        bias_total = bias_total + factor * biases[group]
    return total, bias_total


def _squared(rows: np.ndarray) -> np.ndarray:
    return np.einsum("mk,mk->m", rows, rows)
