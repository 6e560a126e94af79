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
_MOST = 2.0**24  # of `fedpriv.sums.BITS`


@njit(
    [
        (_matrix(int32), INT64, INT64, v, _flat(float64, readonly=True), _flat(float64))
        for v in _VALUES
    ],
    nogil=True,
    cache=True,
    fastmath={"reassoc"},
)
def add_whole_block(
    total: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    values: np.ndarray,
    factors: np.ndarray,
    squared: np.ndarray,
) -> None:
    """Add `rint(factor * values)` of several users to rows of an int32 matrix.

    A magnitude beyond 2^24, or what is no number, is added as 0.

    Args:
        total: Changed in place.
        rows: int64, all users' rows, one user after another.
        starts: int64 `(users + 1,)`, where each user's rows start.
        values: `(rows, width)`.
        factors: float64 `(users,)`; a user of 0 is left out.
        squared: float64 `(users,)`; each user's sum of squares of whole numbers is added, infinite
            if one was beyond 2^24. It is exact below 2^53, and not smaller than that where the true
            one is not: each square is a whole number.
    """
    if starts.size != factors.size + 1 or rows.size != len(values):
        raise ValueError("the users' rows, their starts and their factors differ in number")
    if squared.size != factors.size or values.shape[1] != total.shape[1]:
        raise ValueError("the sums of squares differ in number, or the rows in width")
    last = np.int64(0)
    for u in range(starts.size):
        if starts[u] < last or starts[u] > rows.size:
            raise ValueError("a user's rows lie outside the block")
        last = starts[u]
    for i in range(rows.size):
        if rows[i] < 0 or rows[i] >= len(total):
            raise ValueError("a row lies outside the sum")
    for u in range(factors.size):
        if factors[u] == 0.0:
            continue
        square, beyond = 0.0, 0
        for i in range(starts[u], starts[u + 1]):
            out, row = total[rows[i]], values[i]
            for c in range(row.size):
                whole = np.rint(np.float64(row[c]) * factors[u])
                fits = abs(whole) <= _MOST  # false of what is no number
                whole = whole if fits else 0.0
                beyond += not fits
                out[c] += np.int32(whole)
                square += whole * whole
        squared[u] += square if beyond == 0 else np.inf


@njit([(_VALUES[0],)], nogil=True, cache=True, fastmath={"reassoc", "contract"})
def squares(values: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each row of a float32 matrix, in float64."""
    found = np.zeros(len(values))
    for i in range(len(values)):
        row, total = values[i], 0.0
        for c in range(row.size):
            total += np.float64(row[c]) * np.float64(row[c])
        found[i] = total
    return found


@njit(
    [
        (_flat(whole, readonly=True), _flat(kind, readonly=True), float64, float64, _flat(float32))
        for whole in (int32, int64)
        for kind in (float32, int64)
    ],
    nogil=True,
    cache=True,
)
def release_whole(
    total: np.ndarray, noise: np.ndarray, unit: float, step: float, out: np.ndarray
) -> None:
    """Fill `out` with `float32((total + rint(noise / unit)) * step)`.

    Args:
        total: Whole numbers `(n,)`.
        noise: float32 or int64 `(n,)`; over its unit and with the total of a magnitude below 2^53,
            which is not checked.
        unit: Of the noise, what one of the total's steps is.
        step: What one of them is in the mean.
        out: float32 `(n,)`, overwritten.
    """
    if noise.size != total.size or out.size != total.size:
        raise ValueError("noise, sum and mean differ in length")
    for i in range(total.size):
        whole = np.float64(total[i]) + np.rint(np.float64(noise[i]) / unit)
        out[i] = np.float32(whole * step)
