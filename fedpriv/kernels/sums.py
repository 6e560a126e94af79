"""Adding updates into a running sum: scaled, rounded and added in one pass over memory.

Rows of a row-sparse tensor arrive as their numbers and a matrix of values; a dense tensor is a
matrix of one row. `factor * value` is taken in float64 and rounded to the nearest whole number
(ties to even) where the sum is of whole numbers.

Arrays that do not fit together, or rows outside the sum, are refused with a `ValueError` before
anything is written.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int32, int64, njit, types

from fedpriv.kernels.bits import INT64


def _matrix(kind: types.Type, *, readonly: bool = False) -> types.Array:
    return types.Array(kind, 2, "C", readonly=readonly)


def _flat(kind: types.Type, *, readonly: bool = False) -> types.Array:
    return types.Array(kind, 1, "C", readonly=readonly)


_VALUES = [_matrix(kind, readonly=True) for kind in (float32, float64)]
_KINDS = (int32, int64, float64)
_MOST = 2.0**24  # of `fedpriv.sums.BITS`


@njit(nogil=True, cache=True)
def _check_rows(total: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    if rows.size != len(values) or values.shape[1] != total.shape[1]:
        raise ValueError("the rows do not fit the sum: their number or width differs")
    for i in range(rows.size):
        if rows[i] < 0 or rows[i] >= len(total):
            raise ValueError("a row lies outside the sum")


@njit(
    [float64(_matrix(int32), INT64, v, float64) for v in _VALUES],
    nogil=True,
    cache=True,
    fastmath={"reassoc"},
)
def add_whole(total: np.ndarray, rows: np.ndarray, values: np.ndarray, factor: float) -> float:
    """Add `rint(factor * values)` to some rows of an int32 matrix, in place.

    A magnitude beyond 2^24, or what is no number, is added as 0.

    Returns:
        The sum of squares of the whole numbers, infinite if one was beyond 2^24. It is exact below
        2^53, and not smaller than that where the true one is not: each square is a whole number.
    """
    _check_rows(total, rows, values)
    squared, beyond = 0.0, 0
    for i in range(rows.size):
        out, row = total[rows[i]], values[i]
        for c in range(row.size):
            whole = np.rint(np.float64(row[c]) * factor)
            fits = abs(whole) <= _MOST  # false of what is no number
            whole = whole if fits else 0.0
            beyond += not fits
            out[c] += np.int32(whole)
            squared += whole * whole
    return squared if beyond == 0 else np.inf


@njit([(_matrix(float64), INT64, v, float64) for v in _VALUES], nogil=True, cache=True)
def add_real(total: np.ndarray, rows: np.ndarray, values: np.ndarray, factor: float) -> None:
    """Add `factor * values` to some rows of a float64 matrix, in place."""
    _check_rows(total, rows, values)
    for i in range(rows.size):
        out, row = total[rows[i]], values[i]
        for c in range(row.size):
            out[c] += np.float64(row[c]) * factor


@njit(nogil=True, cache=True)
def _check_block(
    rows: np.ndarray, starts: np.ndarray, values: np.ndarray, factors: np.ndarray
) -> None:
    if starts.size != factors.size + 1 or rows.size != len(values):
        raise ValueError("the users' rows, their starts and their factors differ in number")
    last = np.int64(0)
    for u in range(starts.size):
        if starts[u] < last or starts[u] > rows.size:
            raise ValueError("a user's rows lie outside the block")
        last = starts[u]


@njit(
    [
        (_matrix(int32), INT64, INT64, v, _flat(float64, readonly=True), _flat(float64))
        for v in _VALUES
    ],
    nogil=True,
    cache=True,
)
def add_whole_block(
    total: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    values: np.ndarray,
    factors: np.ndarray,
    squared: np.ndarray,
) -> None:
    """Add the rows of several users to an int32 matrix, as `add_whole` does of one.

    Args:
        total: Changed in place.
        rows: int64, all users' rows, one user after another.
        starts: int64 `(users + 1,)`, where each user's rows start.
        values: `(rows, width)`.
        factors: float64 `(users,)`; a user of 0 is left out.
        squared: float64 `(users,)`; each user's sum of squares is added.
    """
    _check_block(rows, starts, values, factors)
    if squared.size != factors.size:
        raise ValueError("there is not one sum of squares for each user")
    for u in range(factors.size):
        _check_rows(total, rows[starts[u] : starts[u + 1]], values[starts[u] : starts[u + 1]])
    for u in range(factors.size):
        if factors[u] != 0.0:
            first, last = starts[u], starts[u + 1]
            squared[u] += add_whole(total, rows[first:last], values[first:last], factors[u])


@njit(
    [(_matrix(float64), INT64, INT64, v, _flat(float64, readonly=True)) for v in _VALUES],
    nogil=True,
    cache=True,
)
def add_real_block(
    total: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    values: np.ndarray,
    factors: np.ndarray,
) -> None:
    """Add the rows of several users to a float64 matrix, as `add_real` does of one."""
    _check_block(rows, starts, values, factors)
    for u in range(factors.size):
        _check_rows(total, rows[starts[u] : starts[u + 1]], values[starts[u] : starts[u + 1]])
    for u in range(factors.size):
        if factors[u] != 0.0:
            first, last = starts[u], starts[u + 1]
            add_real(total, rows[first:last], values[first:last], factors[u])


@njit(
    [(_matrix(a), INT64, _matrix(b, readonly=True)) for a in _KINDS for b in _KINDS if a == b]
    + [(_matrix(int64), INT64, _matrix(int32, readonly=True))],
    nogil=True,
    cache=True,
)
def add_rows(total: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Add values to some rows of a matrix of the same kind (or int32 to int64), in place."""
    _check_rows(total, rows, values)
    for i in range(rows.size):
        out, row = total[rows[i]], values[i]
        for c in range(row.size):
            out[c] += row[c]


@njit(
    [(_flat(kind, readonly=True),) for kind in (float32, float64)],
    nogil=True,
    cache=True,
    fastmath={"reassoc", "contract"},
)
def squares(values: np.ndarray) -> float:
    """Return the sum of squares of a flat float array, in float64."""
    total = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value * value
    return total


@njit(
    [(_flat(kind, readonly=True), _flat(float32), float64, float64) for kind in (int32, int64)],
    nogil=True,
    cache=True,
    fastmath={"reassoc"},
)
def release_whole(total: np.ndarray, noise: np.ndarray, granularity: float, share: float) -> float:
    """Turn noise into the mean of a sum on a grid, in place; return its sum of squares.

    Args:
        total: int32 or int64 `(n,)`, multiples of `granularity`.
        noise: float32 `(n,)`; becomes `(total + rint(noise / granularity)) * granularity * share`.
        granularity: The grid's spacing.
        share: One over the expected cohort size.
    """
    if noise.size != total.size:
        raise ValueError("noise and sum differ in length")
    squared = 0.0
    for i in range(total.size):
        whole = np.float64(total[i]) + np.rint(np.float64(noise[i]) / granularity)
        mean = np.float32(whole * granularity * share)
        noise[i] = mean
        squared += np.float64(mean) * np.float64(mean)
    return squared


@njit(
    [
        (_flat(kind, readonly=True), _flat(int64, readonly=True), float64, _flat(float32))
        for kind in (int32, int64)
    ],
    nogil=True,
    cache=True,
    fastmath={"reassoc"},
)
def release_on_grid(total: np.ndarray, noise: np.ndarray, step: float, out: np.ndarray) -> float:
    """Fill `out` with `float32((total + noise) * step)`; return its sum of squares.

    Args:
        total: Whole numbers `(n,)`.
        noise: int64 `(n,)`; with the total of a magnitude below 2^53, which is not checked.
        step: What one of them stands for in the mean.
        out: float32 `(n,)`, overwritten.
    """
    if noise.size != total.size or out.size != total.size:
        raise ValueError("noise, sum and mean differ in length")
    squared = 0.0
    for i in range(total.size):
        mean = np.float32(np.float64(np.int64(total[i]) + noise[i]) * step)
        out[i] = mean
        squared += np.float64(mean) * np.float64(mean)
    return squared


@njit(
    [(_flat(float64, readonly=True), _flat(float32), float64)],
    nogil=True,
    cache=True,
    fastmath={"reassoc"},
)
def release_real(total: np.ndarray, noise: np.ndarray, share: float) -> float:
    """Turn noise into `(total + noise) * share`, in place; return its sum of squares."""
    if noise.size != total.size:
        raise ValueError("noise and sum differ in length")
    squared = 0.0
    for i in range(total.size):
        mean = np.float32((total[i] + np.float64(noise[i])) * share)
        noise[i] = mean
        squared += np.float64(mean) * np.float64(mean)
    return squared


@njit([(_matrix(kind, readonly=True),) for kind in _KINDS], nogil=True, cache=True)
def touched(matrix: np.ndarray) -> np.ndarray:
    """Return which rows of a matrix hold anything but zeros, bool `(rows,)`."""
    found = np.zeros(len(matrix), np.bool_)
    for i in range(len(matrix)):
        row = matrix[i]
        for c in range(row.size):
            if row[c] != 0:
                found[i] = True
                break
    return found
