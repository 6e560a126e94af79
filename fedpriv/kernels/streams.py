"""Rows of correlated noise: a fresh row less what the strategy makes of earlier ones.

With C a lower-triangular strategy of unit diagonal, row t of C⁻¹ z is

    e_t = z_t - Σ_{k >= 1} c_k e_{t-k},

worked in one pass over the rows that are kept. In whole numbers the fresh row lies on a grid finer
than the sum's by 2^bits, and e_t is rounded to the sum's, half up.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int64, njit, types

from fedpriv.kernels.bits import INT64

_F32, _F64 = types.Array(float32, 1, "C"), types.Array(float64, 1, "C", readonly=True)
_RING32, _RING64 = types.Array(float32, 2, "C"), types.Array(float64, 2, "C")
_RING_INT, _INT = types.Array(int64, 2, "C"), types.Array(int64, 1, "C")
_BLOCK = 4096


@njit(nogil=True, cache=True)
def _check_ring(length: int, past: int, first: int, count: int) -> None:
    if first < 1 or count < 0 or past + count > length:
        raise ValueError("the ring has no room for the fresh rows and those before them")


@njit(nogil=True, cache=True)
def _check_buffers(size: int, buffers: np.ndarray, outputs: int, decays: int) -> None:
    if buffers.shape != (outputs, size) or decays != outputs:
        raise ValueError("row, buffers, outputs and decays do not fit together")


@njit([(_RING32, _F64, int64, int64)], nogil=True, cache=True, fastmath={"contract"})
def band_rows(ring: np.ndarray, coefficients: np.ndarray, first: int, count: int) -> None:
    """Turn fresh rows into rows of a banded strategy, in place.

    Several rows are made in one pass, block by block, so that the rows that are kept are read from
    memory once for all of them.

    Args:
        ring: float32 `(bands - 1 + ahead, n)`, row t at t modulo its length: the rows before, and
            the fresh ones, which become e_t.
        coefficients: float64 `(bands - 1,)`: c_1, c_2, ...
        first: Number of the first fresh row.
        count: How many fresh rows there are, at most `ahead`.

    Raises:
        ValueError: If the ring has no room for them and the rows before.
    """
    length = ring.shape[0]
    _check_ring(length, coefficients.size, first, count)
    for start in range(0, ring.shape[1], _BLOCK):
        stop = min(start + _BLOCK, ring.shape[1])
        for t in range(first, first + count):
            row = ring[t % length, start:stop]
            for k in range(1, coefficients.size + 1):
                weight, past = np.float32(coefficients[k - 1]), ring[(t - k) % length, start:stop]
                if t - k >= 1 and weight != 0.0:
                    for i in range(past.size):
                        row[i] -= weight * past[i]


@njit([(_RING_INT, INT64, int64, int64, int64, int64)], nogil=True, cache=True)
def band_rows_whole(
    ring: np.ndarray, coefficients: np.ndarray, first: int, count: int, bits: int, scale: int
) -> None:
    """As `band_rows`, in whole numbers.

    Args:
        ring: int64 `(bands - 1 + ahead, n)`; fresh rows are in steps of 2^-bits, and become e_t in
            whole steps.
        coefficients: int64 `(bands - 1,)`, times 2^scale.
        first: As of `band_rows`.
        count: As of `band_rows`.
        bits: By how much fresh rows are finer than the grid.
        scale: Of the coefficients, at least `bits`.

    Raises:
        ValueError: As `band_rows`.
    """
    length = ring.shape[0]
    _check_ring(length, coefficients.size, first, count)
    sums = np.empty(_BLOCK, np.int64)
    down, half = scale - bits, (1 << bits) >> 1
    half_down = (1 << down) >> 1
    for start in range(0, ring.shape[1], _BLOCK):
        stop = min(start + _BLOCK, ring.shape[1])
        for t in range(first, first + count):
            row = ring[t % length, start:stop]
            sums[:] = 0
            for k in range(1, coefficients.size + 1):
                weight, past = coefficients[k - 1], ring[(t - k) % length, start:stop]
                if t - k >= 1 and weight != 0:
                    for i in range(past.size):
                        sums[i] += weight * past[i]
            for i in range(row.size):
                row[i] = (row[i] - ((sums[i] + half_down) >> down) + half) >> bits


@njit([(_F32, _RING32, _F64, _F64)], nogil=True, cache=True, fastmath={"contract"})
def buffer_row(
    fresh: np.ndarray, buffers: np.ndarray, outputs: np.ndarray, decays: np.ndarray
) -> None:
    """Turn a fresh row into the row of a buffered strategy, in place, and move its buffers on.

    Args:
        fresh: float32 `(n,)`, z_t; becomes e_t = z_t - Σ outputs_i buffer_i.
        buffers: float32 `(d, n)`; buffer_i becomes decays_i buffer_i + e_t.
        outputs: float64 `(d,)`.
        decays: float64 `(d,)`.

    Raises:
        ValueError: If the arrays do not fit together.
    """
    _check_buffers(fresh.size, buffers, outputs.size, decays.size)
    for i in range(fresh.size):
        row = fresh[i]
        for k in range(outputs.size):
            row -= np.float32(outputs[k]) * buffers[k, i]
        for k in range(outputs.size):
            buffers[k, i] = np.float32(decays[k]) * buffers[k, i] + row
        fresh[i] = row


@njit([(_INT, _RING64, _F64, _F64, int64)], nogil=True, cache=True)
def buffer_row_whole(
    fresh: np.ndarray, buffers: np.ndarray, outputs: np.ndarray, decays: np.ndarray, bits: int
) -> None:
    """As `buffer_row`, in whole numbers; buffers in float64, whose rounding the caller accounts.

    Args:
        fresh: int64 `(n,)`, z_t in steps of 2^-bits; becomes e_t in whole steps.
        buffers: float64 `(d, n)`.
        outputs: float64 `(d,)`.
        decays: float64 `(d,)`.
        bits: By how much the fresh row is finer than the grid.

    Raises:
        ValueError: As `buffer_row`.
    """
    _check_buffers(fresh.size, buffers, outputs.size, decays.size)
    finer, half = np.float64(1 << bits), (1 << bits) >> 1
    for i in range(fresh.size):
        offset = 0.0
        for k in range(outputs.size):
            offset += outputs[k] * buffers[k, i]
        row = (fresh[i] - np.int64(np.rint(offset * finer)) + half) >> bits
        for k in range(outputs.size):
            buffers[k, i] = decays[k] * buffers[k, i] + np.float64(row)
        fresh[i] = row


@njit([(_INT, _INT, int64, int64)], nogil=True, cache=True)
def merge_whole(own: np.ndarray, children: np.ndarray, weight: int, scale: int) -> None:
    """Turn whole numbers into (w own + (1 - w) children), rounded half up, in place.

    Args:
        own: int64 `(n,)`.
        children: int64 `(n,)`.
        weight: w times 2^scale.
        scale: How fine weights are.

    Raises:
        ValueError: If they differ in length.
    """
    if children.size != own.size:
        raise ValueError("a node and its children differ in length")
    rest, half = (1 << scale) - weight, (1 << scale) >> 1
    for i in range(own.size):
        own[i] = (weight * own[i] + rest * children[i] + half) >> scale
