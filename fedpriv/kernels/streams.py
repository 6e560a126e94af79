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


@njit([(_F32, _RING32, _F64, int64)], nogil=True, cache=True, fastmath={"contract"})
def band_row(fresh: np.ndarray, ring: np.ndarray, weights: np.ndarray, slot: int) -> None:
    """Turn a fresh row into the row of a banded strategy, in place, and keep it in the ring.

    Args:
        fresh: float32 `(n,)`, z_t; becomes e_t.
        ring: float32 `(bands - 1, n)`, the last rows.
        weights: float64 `(bands - 1,)`, the coefficient of each row of the ring.
        slot: Which of the ring's rows e_t takes the place of.
    """
    sums = np.empty(_BLOCK, np.float32)
    for start in range(0, fresh.size, _BLOCK):
        stop = min(start + _BLOCK, fresh.size)
        for i in range(start, stop):
            sums[i - start] = fresh[i]
        for k in range(weights.size):
            weight = np.float32(weights[k])
            if weight != 0.0:
                past = ring[k]
                for i in range(start, stop):
                    sums[i - start] -= weight * past[i]
        kept = ring[slot]
        for i in range(start, stop):
            fresh[i] = sums[i - start]
            kept[i] = sums[i - start]


@njit([(_INT, _RING_INT, INT64, int64, int64, int64)], nogil=True, cache=True)
def band_row_whole(
    fresh: np.ndarray, ring: np.ndarray, weights: np.ndarray, slot: int, bits: int, scale: int
) -> None:
    """As `band_row`, in whole numbers.

    Args:
        fresh: int64 `(n,)`, z_t in steps of 2^-bits; becomes e_t in whole steps.
        ring: int64 `(bands - 1, n)`.
        weights: int64 `(bands - 1,)`, the coefficients times 2^scale.
        slot: As of `band_row`.
        bits: By how much the fresh row is finer than the grid.
        scale: Of the weights, at least `bits`.
    """
    sums = np.empty(_BLOCK, np.int64)
    down = scale - bits
    half_down = (1 << down) >> 1
    half = (1 << bits) >> 1
    for start in range(0, fresh.size, _BLOCK):
        stop = min(start + _BLOCK, fresh.size)
        for i in range(stop - start):
            sums[i] = 0
        for k in range(weights.size):
            weight = weights[k]
            if weight != 0:
                past = ring[k]
                for i in range(start, stop):
                    sums[i - start] += weight * past[i]
        kept = ring[slot]
        for i in range(start, stop):
            row = (fresh[i] - ((sums[i - start] + half_down) >> down) + half) >> bits
            fresh[i] = row
            kept[i] = row


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
    """
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
    """
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
    """
    rest, half = (1 << scale) - weight, (1 << scale) >> 1
    for i in range(own.size):
        own[i] = (weight * own[i] + rest * children[i] + half) >> scale
