"""Bounded sums of single examples' updates of a linear model on sparse inputs, exactly.

An example's update is minus the outer product of its inputs x and its residual r, the loss's
derivative by the logits; with a public multiplier m and mixture (own, offset) the norm to bound is

    ‖(own u + offset) m‖² = Σ over touched coordinates + (‖offset m‖² - its part on those),

so each example costs what it stores, and only the sum is dense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy import sparse

from fedpriv.mechanisms.bounds import Bound
from fedpriv.training.per_example.example_sum import Examples, factors_of

# Where update and offset nearly cancel, their norm has lost digits: such an example is made dense.
_CANCELS = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseRows:
    """A training set's inputs, rows of a canonical CSR matrix, and what is computed of them.

    Here that is done by compiled loops; on a device by
    `fedpriv.training.per_example.device_rows.DeviceRows`.

    Attributes:
        indptr: int64 `(num_examples + 1,)`.
        indices: int32, increasing within a row.
        values: float32; need not be finite.
        num_inputs: Columns.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    num_inputs: int

    @classmethod
    def of(cls, x: sparse.csr_matrix) -> SparseRows:
        """Return a CSR matrix's rows, sorted and merged if they were not; `x` stays as it is.

        Raises:
            ValueError: If `x` is not CSR or its indices lie outside it.
        """
        if getattr(x, "format", None) != "csr":
            raise ValueError(f"inputs are {type(x).__name__}; give a scipy.sparse CSR matrix")
        x.check_format(full_check=True)
        if not x.has_canonical_format:
            x = x.copy()
            x.sum_duplicates()
        return cls(
            indptr=np.ascontiguousarray(x.indptr, np.int64),
            indices=np.ascontiguousarray(x.indices, np.int32),
            values=np.ascontiguousarray(x.data, np.float32),
            num_inputs=cast(tuple[int, int], x.shape)[1],
        )

    @property
    def num_examples(self) -> int:
        """Rows."""
        return len(self.indptr) - 1

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The three arrays that compiled loops take."""
        return self.indptr, self.indices, self.values

    def logits(self, chosen: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Return `x @ kernel + bias` of some rows, float64 `(chosen, num_classes)`.

        Args:
            chosen: int64, within range (see `positions`).
            kernel: float32 `(num_inputs, num_classes)`.
            bias: float32 `(num_classes,)`.
        """
        from fedpriv.kernels.sparse_rows import logits

        return logits(*self.arrays, chosen, kernel, bias)

    def squared_norms(
        self, chosen: np.ndarray, coefficients: np.ndarray, multiplier: np.ndarray
    ) -> np.ndarray:
        """Return `‖(x_i ⊗ coefficients_i) · multiplier‖²` of some rows, float64 `(chosen,)`.

        Args:
            chosen: int64, within range.
            coefficients: float64 `(chosen, num_classes)`.
            multiplier: As in `LinearMap`.
        """
        from fedpriv.kernels.sparse_rows import squared_norms

        return squared_norms(*self.arrays, chosen, coefficients, multiplier)

    def add_outer(
        self,
        chosen: np.ndarray,
        coefficients: np.ndarray,
        multiplier: np.ndarray,
        total: np.ndarray,
    ) -> None:
        """Add `Σ_i (x_i ⊗ coefficients_i) · multiplier` to a matrix, in place.

        Args:
            chosen: int64, within range.
            coefficients: float64 `(chosen, num_classes)`.
            multiplier: As in `LinearMap`.
            total: float64 `(num_inputs, num_classes)`.
        """
        from fedpriv.kernels.sparse_rows import add_outer

        add_outer(*self.arrays, chosen, coefficients, multiplier, total)

    def group_squared_norms(
        self,
        chosen: np.ndarray,
        starts: np.ndarray,
        coefficients: np.ndarray,
        offset: np.ndarray,
        multiplier: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return squares of groups' `(Σ_i x_i ⊗ coefficients_i + offset) · multiplier`, touched.

        Args:
            chosen: int64, within range; group after group.
            starts: int64 `(groups + 1,)`, where each group starts in `chosen`.
            coefficients: float64 `(chosen, num_classes)`.
            offset: As in `LinearMap`.
            multiplier: As in `LinearMap`.

        Returns:
            Two float64 arrays `(groups,)`: each group's sum of squares over the rows of the matrix
            that its inputs touch, and the offset's own over the same rows.
        """
        from fedpriv.kernels.sparse_rows import group_squared_norms

        return group_squared_norms(*self.arrays, chosen, starts, coefficients, offset, multiplier)

    def add_groups(
        self,
        chosen: np.ndarray,
        starts: np.ndarray,
        coefficients: np.ndarray,
        factors: np.ndarray,
        multiplier: np.ndarray,
        total: np.ndarray,
    ) -> None:
        """Add `factor · (Σ_i x_i ⊗ coefficients_i) · multiplier` of every group, in place.

        A group is merged before it is scaled, as its norm was taken.

        Args:
            chosen: As in `group_squared_norms`.
            starts: As in `group_squared_norms`.
            coefficients: As in `group_squared_norms`.
            factors: float64 `(groups,)`; groups with 0 are left out whatever they hold.
            multiplier: As in `LinearMap`.
            total: float64 `(num_inputs, num_classes)`.
        """
        from fedpriv.kernels.sparse_rows import add_groups

        add_groups(*self.arrays, chosen, starts, coefficients, factors, multiplier, total)


def positions(index: np.ndarray, num_examples: int) -> np.ndarray:
    """Return positions in a training set as int64.

    Raises:
        ValueError: If one lies outside it: compiled loops would read beyond their arrays.
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
class LinearMap:
    """A bound's public part in the shapes of a linear model: one matrix and one row of biases.

    Attributes:
        own: Weight of an example's own update.
        multiplier: float32 `(num_inputs, 1)`, or with all classes, or `(0, 0)` for none.
        bias_multiplier: float64 `(num_classes,)`.
        offset: float32 `(num_inputs, num_classes)`, or `(0, 0)` for none.
        bias_offset: float64 `(num_classes,)`.
    """

    own: float
    multiplier: np.ndarray
    bias_multiplier: np.ndarray
    offset: np.ndarray
    bias_offset: np.ndarray

    @classmethod
    def of(cls, bound: Bound, name: str, shape: tuple[int, int]) -> LinearMap:
        """Return the mixture and multiplier of a bound.

        Args:
            bound: Any.
            name: The matrix's name among the params; the other is "bias".
            shape: (num_inputs, num_classes).
        """
        none, classes = np.zeros((0, 0), np.float32), shape[1:]
        multiplier, offset, own = none, none, 1.0
        bias_multiplier, bias_offset = np.ones(classes), np.zeros(classes)
        if name in bound.multiplier:
            multiplier = _matrix(bound.multiplier[name], shape, full=False)
        if "bias" in bound.multiplier:
            bias_multiplier = bias_multiplier * bound.multiplier["bias"]
        if bound.mixture is not None:
            own = float(np.float32(bound.mixture.own))  # as `Mixture.of` has it
            offset = _matrix(bound.mixture.offset[name], shape, full=True)
            bias_offset = bias_offset + bound.mixture.offset["bias"]
        return cls(
            own=own,
            multiplier=multiplier,
            bias_multiplier=bias_multiplier,
            offset=offset,
            bias_offset=bias_offset,
        )

    def times_multiplier(self, matrix: np.ndarray) -> np.ndarray:
        """Return a float64 matrix times the multiplier."""
        return matrix * self.multiplier if self.multiplier.size else matrix


def _matrix(array: np.ndarray, shape: tuple[int, int], *, full: bool) -> np.ndarray:
    """Return float32 `(num_inputs, num_classes)`; of one column if that is all there is."""
    array = np.asarray(array, np.float32)
    if array.ndim == 1 and shape[1] == 1:
        array = array.reshape(-1, 1)
    columns = shape[1] if full or (array.ndim and array.shape[-1] != 1) else 1
    return np.ascontiguousarray(np.broadcast_to(array, (shape[0], columns)))


def bounded_outer_sum(
    rows: SparseRows,
    chosen: np.ndarray,
    starts: np.ndarray | None,
    residuals: np.ndarray,
    public: LinearMap,
    bound: Bound,
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ bound(mean over a group of -(x_i ⊗ residual_i)), and the same of the biases.

    Args:
        rows: All inputs, wherever they are.
        chosen: int64, the examples, group after group.
        starts: int64, where each group starts in `chosen`, and its end; None for examples alone.
        residuals: float64 `(chosen, num_classes)`.
        public: Of the bound.
        bound: Without a grid.

    Returns:
        float64 `(num_inputs, num_classes)` and `(num_classes,)`. A group whose norm is not finite
        contributes zero.
    """
    from fedpriv.kernels.sparse_rows import add_product, squared_product

    num_classes = residuals.shape[1]
    total = np.zeros((rows.num_inputs, num_classes))
    if not len(chosen):
        return total, np.zeros(num_classes)
    alone = starts is None
    starts = np.arange(len(chosen) + 1) if starts is None else starts
    mixed = public.offset.size > 0
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite contributes zero
        sizes = np.diff(starts)
        weights = -public.own if alone else np.repeat(-public.own / sizes, sizes)[:, np.newaxis]
        own = residuals * weights
        biases = own if alone else np.add.reduceat(own, starts[:-1], axis=0)
        biases = (biases + public.bias_offset) * public.bias_multiplier
        squared = np.einsum("gk,gk->g", biases, biases)
        energy = 0.0
        if alone and not mixed:
            squared += rows.squared_norms(chosen, own, public.multiplier)
        else:
            touched, replaced = rows.group_squared_norms(
                chosen, starts, own, public.offset, public.multiplier
            )
            squared += touched
            if mixed:
                energy = squared_product(public.offset, public.multiplier)
                squared += np.maximum(energy - replaced, 0.0)
        cancels = squared < _CANCELS * energy
        num_elements = total.size + num_classes
        squared[cancels] = 0.0  # taken one by one below
        factors = factors_of(bound, np.sqrt(squared), num_elements)
        kept = factors != 0.0
        bias_total = factors[kept] @ biases[kept]
        if alone and not mixed:
            scaled = own[kept] * factors[kept, np.newaxis]
            rows.add_outer(chosen[kept], scaled, public.multiplier, total)
        else:
            rows.add_groups(chosen, starts, own, factors, public.multiplier, total)
        if mixed and np.any(kept):
            weight = math.fsum(factors)
            add_product(public.offset, public.multiplier, weight, total)
        for group in np.flatnonzero(cancels):
            members = slice(starts[group], starts[group + 1])
            update = np.zeros_like(total)
            rows.add_outer(chosen[members], own[members], _NONE, update)
            update = public.times_multiplier(update + public.offset)
            norm = math.sqrt(float(np.square(update).sum() + np.square(biases[group]).sum()))
            factor = factors_of(bound, np.array([norm]), num_elements)[0]
            total += factor * update
            bias_total = bias_total + factor * biases[group]
    return total, bias_total


_NONE = np.zeros((0, 0), np.float32)
