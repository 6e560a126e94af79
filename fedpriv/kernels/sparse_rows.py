"""Sums of outer products of sparse rows, and their norms, without making any of them dense.

An example's update of a linear model is an outer product: its sparse row of inputs times one
number for each class. Norms follow from the stored entries alone; only the sum is dense.

Rows are those of a canonical CSR matrix (no index twice in a row), chosen by `chosen`. A
`multiplier` is float32: `(0, 0)` for none, `(num_rows, 1)` for one number a row, or
`(num_rows, num_classes)`. Everything is added in float64 and in the order written, with no
reassociation: a multiplier of ones, of either shape, changes no bit.

Arrays that do not fit together, or rows and columns outside them, are refused with a `ValueError`
before anything is written.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import numpy as np
from numba import float64, njit, types

from fedpriv.kernels.bits import FLOAT32, INT32, INT64, MATRIX32

_FLOAT64 = types.Array(float64, 1, "C", readonly=True)
_MATRIX64 = types.Array(float64, 2, "C", readonly=True)
_TOTAL = types.Array(float64, 2, "C")
_F = np.float64


@njit(nogil=True, cache=True)
def _check_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    chosen: np.ndarray,
    num_rows: int,
) -> None:
    """Refuse rows of `x` outside it, and columns outside `num_rows`."""
    if values.size != indices.size:
        raise ValueError("indices and values differ in length")
    for i in range(chosen.size):
        if chosen[i] < 0 or chosen[i] >= indptr.size - 1:
            raise ValueError("a chosen row lies outside the matrix")
        first, last = indptr[chosen[i]], indptr[chosen[i] + 1]
        if first < 0 or last < first or last > indices.size:
            raise ValueError("a row lies outside its columns")
        for j in range(first, last):
            if indices[j] < 0 or indices[j] >= num_rows:
                raise ValueError("a column lies outside the kernel")


@njit(nogil=True, cache=True)
def _check_factors(multiplier: np.ndarray, num_rows: int, num_classes: int) -> None:
    """Refuse a multiplier of another shape than the kernel's, its rows' or none's."""
    rows, columns = multiplier.shape
    # Without a row there is none; loops look at the columns.
    if (rows != 0 or columns > 1) and (
        rows != num_rows or (columns != 1 and columns != num_classes)
    ):
        raise ValueError("the multiplier has not the shape of the kernel, or of its rows")


@njit(nogil=True, cache=True)
def _check_groups(starts: np.ndarray, chosen: int) -> None:
    """Refuse groups outside the chosen rows."""
    for group in range(starts.size - 1):
        if starts[group] < 0 or starts[group + 1] < starts[group] or starts[group + 1] > chosen:
            raise ValueError("a group lies outside the chosen rows")


@njit(
    [(INT64, INT32, FLOAT32, INT64, MATRIX32, FLOAT32)],
    nogil=True,
    cache=True,
)
def logits(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    chosen: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """Return `x @ kernel + bias` of the chosen rows, float64 `(chosen, num_classes)`.

    Args:
        indptr: int64 `(n + 1,)`, where each row starts in `indices` and `values`.
        indices: int32, columns of `x`.
        values: float32, entries of `x`.
        chosen: int64, rows of `x`.
        kernel: float32 `(num_rows, num_classes)`.
        bias: float32 `(num_classes,)`.
    """
    num_classes = kernel.shape[1]
    if bias.size != num_classes:
        raise ValueError("kernel and bias do not belong together")
    _check_rows(indptr, indices, values, chosen, kernel.shape[0])
    out = np.empty((chosen.size, num_classes))
    for i in range(chosen.size):
        row = out[i]
        if num_classes == 1:
            total = _F(bias[0])
            for j in range(indptr[chosen[i]], indptr[chosen[i] + 1]):
                total += _F(values[j]) * _F(kernel[indices[j], 0])
            row[0] = total
            continue
        for c in range(num_classes):
            row[c] = bias[c]
        for j in range(indptr[chosen[i]], indptr[chosen[i] + 1]):
            value, weights = _F(values[j]), kernel[indices[j]]
            for c in range(num_classes):
                row[c] += value * _F(weights[c])
    return out


@njit(
    [(INT64, INT32, FLOAT32, INT64, _MATRIX64, MATRIX32)],
    nogil=True,
    cache=True,
)
def squared_norms(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    chosen: np.ndarray,
    residuals: np.ndarray,
    multiplier: np.ndarray,
) -> np.ndarray:
    """Return `‖(x_i ⊗ residual_i) · multiplier‖²` of every chosen row, float64.

    Args:
        indptr: As in `logits`.
        indices: As in `logits`.
        values: As in `logits`.
        chosen: As in `logits`.
        residuals: float64 `(chosen, num_classes)`.
        multiplier: See the module.
    """
    num_classes = residuals.shape[1]
    if residuals.shape[0] != chosen.size:
        raise ValueError("there is not one residual for each chosen row")
    num_rows = multiplier.shape[0] if multiplier.size else 2**31
    _check_rows(indptr, indices, values, chosen, num_rows)
    _check_factors(multiplier, num_rows, num_classes)
    out = np.empty(chosen.size)
    squares = np.empty(num_classes)
    for i in range(chosen.size):
        first, last = indptr[chosen[i]], indptr[chosen[i] + 1]
        if multiplier.shape[1] > 1:
            squares[:] = 0.0
            for j in range(first, last):
                value, factors = _F(values[j]), multiplier[indices[j]]
                for c in range(num_classes):
                    product = value * _F(factors[c])
                    squares[c] += product * product
        else:
            total = 0.0
            for j in range(first, last):
                product = _F(values[j])
                if multiplier.size:
                    product *= _F(multiplier[indices[j], 0])
                total += product * product
            squares[:] = total
        norm = 0.0
        for c in range(num_classes):
            # In this order no factor overflows before the whole does.
            norm += residuals[i, c] * (residuals[i, c] * squares[c])
        out[i] = norm
    return out


@njit(
    [(INT64, INT32, FLOAT32, INT64, _MATRIX64, MATRIX32, _TOTAL)],
    nogil=True,
    cache=True,
)
def add_outer(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    chosen: np.ndarray,
    coefficients: np.ndarray,
    multiplier: np.ndarray,
    total: np.ndarray,
) -> None:
    """Add `Σ_i (x_i ⊗ coefficients_i) · multiplier` to a matrix, in place.

    Args:
        indptr: As in `logits`.
        indices: As in `logits`.
        values: As in `logits`.
        chosen: As in `logits`.
        coefficients: float64 `(chosen, num_classes)`.
        multiplier: See the module.
        total: float64 `(num_rows, num_classes)`.
    """
    num_classes = coefficients.shape[1]
    if coefficients.shape[0] != chosen.size or num_classes != total.shape[1]:
        raise ValueError("coefficients fit neither the chosen rows nor the sum")
    _check_rows(indptr, indices, values, chosen, total.shape[0])
    _check_factors(multiplier, total.shape[0], num_classes)
    for i in range(chosen.size):
        coefficient = coefficients[i]
        for j in range(indptr[chosen[i]], indptr[chosen[i] + 1]):
            value, row = _F(values[j]), indices[j]
            if multiplier.shape[1] > 1:
                for c in range(num_classes):
                    total[row, c] += value * coefficient[c] * _F(multiplier[row, c])
            elif multiplier.size:
                factor = _F(multiplier[row, 0])
                for c in range(num_classes):
                    total[row, c] += value * coefficient[c] * factor
            else:
                for c in range(num_classes):
                    total[row, c] += value * coefficient[c]


@njit(nogil=True, cache=True)
def _widest(indptr: np.ndarray, chosen: np.ndarray, starts: np.ndarray, num_rows: int) -> int:
    """Return how many rows of the kernel a group touches at most."""
    widest = 0
    for group in range(starts.size - 1):
        number = 0
        for i in range(starts[group], starts[group + 1]):
            number += indptr[chosen[i] + 1] - indptr[chosen[i]]
        widest = max(widest, number)
    return min(widest, num_rows)


@njit(nogil=True, cache=True)
def _merge(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    chosen: np.ndarray,
    coefficients: np.ndarray,
    first: int,
    last: int,
    place: np.ndarray,
    rows: np.ndarray,
    merged: np.ndarray,
) -> int:
    """Write one group's `Σ_i x_i ⊗ coefficients_i` into `rows` and `merged`; return its length.

    `place` holds -1 before and after.
    """
    number = 0
    for i in range(first, last):
        for j in range(indptr[chosen[i]], indptr[chosen[i] + 1]):
            row = indices[j]
            if place[row] < 0:
                place[row] = number
                rows[number] = row
                merged[number, :] = 0.0
                number += 1
            value, out, coefficient = _F(values[j]), merged[place[row]], coefficients[i]
            for c in range(coefficient.size):
                out[c] += value * coefficient[c]
    for k in range(number):
        place[rows[k]] = -1
    return number


@njit(
    [(INT64, INT32, FLOAT32, INT64, INT64, _MATRIX64, MATRIX32, MATRIX32)],
    nogil=True,
    cache=True,
)
def group_squared_norms(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    chosen: np.ndarray,
    starts: np.ndarray,
    coefficients: np.ndarray,
    offset: np.ndarray,
    multiplier: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the squares of `(Σ_i x_i ⊗ coefficients_i + offset) · multiplier` where rows touch.

    Args:
        indptr: As in `logits`.
        indices: As in `logits`.
        values: As in `logits`.
        chosen: As in `logits`; group after group.
        starts: int64 `(groups + 1,)`, where each group starts in `chosen`.
        coefficients: float64 `(chosen, num_classes)`.
        offset: float32 `(num_rows, num_classes)`, or `(0, 0)` for none.
        multiplier: See the module.

    Returns:
        Two float64 arrays `(groups,)`: each group's sum of squares over the rows of the kernel
        that its inputs touch, and the offset's own sum of squares over the same rows.
    """
    num_groups, num_classes = starts.size - 1, coefficients.shape[1]
    if coefficients.shape[0] != chosen.size:
        raise ValueError("there is not one row of coefficients for each chosen row")
    if offset.size != 0 and offset.shape[1] != num_classes:
        raise ValueError("offset and coefficients differ in classes")
    most = np.int64(2**31)
    for array in (offset, multiplier):
        if array.size:
            most = min(most, array.shape[0])
    _check_rows(indptr, indices, values, chosen, most)
    _check_groups(starts, chosen.size)
    _check_factors(multiplier, most, num_classes)
    num_rows = 0
    for i in range(chosen.size):
        for j in range(indptr[chosen[i]], indptr[chosen[i] + 1]):
            num_rows = max(num_rows, indices[j] + 1)
    widest = _widest(indptr, chosen, starts, num_rows)
    place = np.full(num_rows, -1, np.int32)
    rows = np.empty(widest, np.int64)
    merged = np.empty((widest, num_classes))
    whole, public = np.zeros(num_groups), np.zeros(num_groups)
    squares, offsets = np.empty(num_classes), np.empty(num_classes)
    for group in range(num_groups):
        number = _merge(
            indptr,
            indices,
            values,
            chosen,
            coefficients,
            starts[group],
            starts[group + 1],
            place,
            rows,
            merged,
        )
        squares[:] = 0.0
        offsets[:] = 0.0
        for k in range(number):
            row, own = rows[k], merged[k]
            for c in range(num_classes):
                factor = _F(1.0)
                if multiplier.size:
                    factor = _F(multiplier[row, c if multiplier.shape[1] > 1 else 0])
                value = own[c]
                if offset.size:
                    shift = _F(offset[row, c])
                    value += shift
                    shift *= factor
                    offsets[c] += shift * shift
                value *= factor
                squares[c] += value * value
        for c in range(num_classes):
            whole[group] += squares[c]
            public[group] += offsets[c]
    return whole, public


@njit(
    [(INT64, INT32, FLOAT32, INT64, INT64, _MATRIX64, _FLOAT64, MATRIX32, _TOTAL)],
    nogil=True,
    cache=True,
)
def add_groups(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    chosen: np.ndarray,
    starts: np.ndarray,
    coefficients: np.ndarray,
    factors: np.ndarray,
    multiplier: np.ndarray,
    total: np.ndarray,
) -> None:
    """Add `factor · (Σ_i x_i ⊗ coefficients_i) · multiplier` of every group to a matrix, in place.

    A group is merged before it is scaled, exactly as its norm was taken: where its members nearly
    cancel, scaling each would enlarge their rounding errors beyond the bound.

    Args:
        indptr: As in `logits`.
        indices: As in `logits`.
        values: As in `logits`.
        chosen: As in `group_squared_norms`.
        starts: As in `group_squared_norms`.
        coefficients: As in `group_squared_norms`.
        factors: float64 `(groups,)`; groups with 0 are left out whatever they hold.
        multiplier: See the module.
        total: float64 `(num_rows, num_classes)`.
    """
    num_classes = coefficients.shape[1]
    if coefficients.shape[0] != chosen.size or num_classes != total.shape[1]:
        raise ValueError("coefficients fit neither the chosen rows nor the sum")
    if factors.size != starts.size - 1:
        raise ValueError("there is not one factor for each group")
    _check_rows(indptr, indices, values, chosen, total.shape[0])
    _check_groups(starts, chosen.size)
    _check_factors(multiplier, total.shape[0], num_classes)
    widest = _widest(indptr, chosen, starts, total.shape[0])
    place = np.full(total.shape[0], -1, np.int32)
    rows = np.empty(widest, np.int64)
    merged = np.empty((widest, total.shape[1]))
    for group in range(starts.size - 1):
        if factors[group] == 0.0:
            continue
        number = _merge(
            indptr,
            indices,
            values,
            chosen,
            coefficients,
            starts[group],
            starts[group + 1],
            place,
            rows,
            merged,
        )
        for k in range(number):
            row, own = rows[k], merged[k]
            for c in range(own.size):
                value = factors[group] * own[c]
                if multiplier.size:
                    value *= _F(multiplier[row, c if multiplier.shape[1] > 1 else 0])
                total[row, c] += value


@njit([(MATRIX32, MATRIX32)], nogil=True, cache=True, fastmath={"reassoc"})
def squared_product(offset: np.ndarray, multiplier: np.ndarray) -> float:
    """Return `‖offset · multiplier‖²`.

    Args:
        offset: float32 `(num_rows, num_classes)`.
        multiplier: See the module.
    """
    _check_factors(multiplier, offset.shape[0], offset.shape[1])
    total = 0.0
    for row in range(offset.shape[0]):
        values = offset[row]
        if multiplier.shape[1] > 1:
            factors = multiplier[row]
            for c in range(values.size):
                product = _F(values[c]) * _F(factors[c])
                total += product * product
        else:
            factor = _F(multiplier[row, 0]) if multiplier.size else _F(1.0)
            for c in range(values.size):
                product = _F(values[c]) * factor
                total += product * product
    return total


@njit([(MATRIX32, MATRIX32, float64, _TOTAL)], nogil=True, cache=True)
def add_product(
    offset: np.ndarray, multiplier: np.ndarray, weight: float, total: np.ndarray
) -> None:
    """Add `weight · offset · multiplier` to a matrix, in place.

    Args:
        offset: float32 `(num_rows, num_classes)`.
        multiplier: See the module.
        weight: Any number.
        total: float64 `(num_rows, num_classes)`.
    """
    if total.shape != offset.shape:
        raise ValueError("offset and sum differ in shape")
    _check_factors(multiplier, offset.shape[0], offset.shape[1])
    for row in range(offset.shape[0]):
        values, out = offset[row], total[row]
        if multiplier.shape[1] > 1:
            factors = multiplier[row]
            for c in range(values.size):
                out[c] += weight * (_F(values[c]) * _F(factors[c]))
        else:
            factor = _F(multiplier[row, 0]) if multiplier.size else _F(1.0)
            for c in range(values.size):
                out[c] += weight * (_F(values[c]) * factor)
