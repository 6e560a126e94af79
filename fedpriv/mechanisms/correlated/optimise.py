"""Optimised coefficients of banded and BLT strategies.

They minimise the root mean square of the noise in prefix sums, or in sums of what server
momentum makes of rows, at a fixed cost: error times sensitivity, for the number of rows and the
participation that they are for. Public numbers alone go in. Results are rounded to the multiples of
2^-16 that strategies have, and kept for the process; the same numbers give the same strategy.
"""

from __future__ import annotations

import functools

import numpy as np

from fedpriv.libraries import library
from fedpriv.mechanisms.correlated.noise import checked_rows
from fedpriv.mechanisms.correlated.toeplitz import (
    SCALE,
    Banded,
    Buffered,
    blt_column,
    column_sensitivity,
    inverse_series,
    on_scale,
    square_root_coefficients,
)
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.ranges import Range, finite_float, positive_int

MOST_BUFFERS = 6
_MOST = 1.0 - 2.0**-12  # of the sum of outputs, which rounding and least outputs leave below 1


def prefix_error(column: np.ndarray, momentum: float = 0.0) -> float:
    """Return the root mean square over rows of the noise that training follows, for z of 1.

    Args:
        column: float64 `(T,)`, the first column of C.
        momentum: β of the server; prefix sums of v_t = β v_{t-1} + x_t. 0 gives plain sums.
    """
    followed = _followed(inverse_series(column, len(column)), momentum)
    return float(np.sqrt(np.mean(np.cumsum(followed**2))))


def _followed(series: np.ndarray, momentum: float) -> np.ndarray:
    summed = np.cumsum(series)
    return (
        summed
        if momentum == 0.0
        else np.asarray(library("scipy.signal").lfilter([1.0], [1.0, -momentum], summed))
    )


def _followed_back(gradient: np.ndarray, momentum: float) -> np.ndarray:
    """Return the adjoint of `_followed`."""
    turned = gradient[::-1]
    if momentum:
        turned = library("scipy.signal").lfilter([1.0], [1.0, -momentum], turned)
    return np.cumsum(turned)[::-1]


def optimised_bands(bands: int, participation: Participation, *, momentum: float = 0.0) -> Banded:
    """Return the banded strategy with the least error.

    Args:
        bands: How many diagonals; with several rows a user, at most `min_separation` of them, so
            that a user's parts never add up.
        participation: The limit; its `num_rows` is T.
        momentum: β of the server's classic momentum, which is then part of the error.

    Raises:
        ValueError: If a number is out of range, or there are more bands than rows of one user are
            apart.
    """
    rows = _rows("banded", participation)
    beta = finite_float("momentum", momentum, Range.FRACTION)
    bands = min(positive_int("bands", bands), rows)
    apart = participation.min_separation
    if participation.count > 1 and bands > apart:
        raise ValueError(
            f"{bands} bands overlap where one user's rows are {apart} apart; give at most {apart} "
            "bands, or a larger min-separation"
        )
    return _bands(bands, rows, beta)


@functools.lru_cache(maxsize=32)
def _bands(bands: int, rows: int, beta: float) -> Banded:
    minimize = library("scipy.optimize").minimize
    fftconvolve = library("scipy.signal").fftconvolve

    left = np.arange(rows, 0, -1) / rows  # in how many of the prefixes a coefficient counts

    def error(free: np.ndarray) -> tuple[float, np.ndarray]:
        column = np.zeros(rows)
        column[0], column[1:bands] = 1.0, free
        inverse = inverse_series(column, rows)
        followed = _followed(inverse, beta)
        squared, length = float(np.sum(left * followed**2)), float(np.sum(column**2))
        if not np.isfinite(squared) or squared > 1e12:
            return 1e3, np.zeros(bands - 1)
        outer = _followed_back(2.0 * left * followed, beta)
        # d(1/c)/dc_k = -x^k / c²
        square = fftconvolve(inverse, inverse)[:rows]
        correlated = fftconvolve(outer, square[::-1])[rows - 1 :]
        gradient = -correlated[1:bands] / squared + 2.0 * free / length
        return float(np.log(squared) + np.log(length)), gradient

    start = square_root_coefficients(bands)[1:]
    found = start
    if bands > 1:
        found = minimize(error, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    coefficients = on_scale(np.concatenate([[1.0], np.clip(found, -1.0, 1.0)]))
    return Banded(coefficients=tuple(coefficients.tolist()), num_rows=rows, how="optimised")


def square_root_bands(bands: int, num_rows: int) -> Banded:
    """Return the first bands of (1 - x)^(-1/2)."""
    bands = min(positive_int("bands", bands), checked_rows("banded", num_rows))
    coefficients = on_scale(square_root_coefficients(bands))
    return Banded(coefficients=tuple(coefficients.tolist()), num_rows=num_rows, how="square-root")


def optimised_buffers(
    buffers: int, participation: Participation, *, momentum: float = 0.0
) -> Buffered:
    """Return the buffered strategy with the least error times sensitivity.

    Args:
        buffers: How many, 0 to 6.
        participation: The limit; its `num_rows` is T.
        momentum: As of `optimised_bands`.

    Raises:
        ValueError: If a number is out of range.
    """
    rows = _rows("blt", participation)
    beta = finite_float("momentum", momentum, Range.FRACTION)
    if type(buffers) is not int or not 0 <= buffers <= MOST_BUFFERS:
        raise ValueError(f"buffers {buffers!r} must be a whole number, 0 to {MOST_BUFFERS}")
    if buffers == 0 or rows == 1:
        return Buffered(outputs=(), decays=(), num_rows=rows)
    return _buffers(buffers, participation, rows, beta)


@functools.lru_cache(maxsize=32)
def _buffers(buffers: int, participation: Participation, rows: int, beta: float) -> Buffered:
    minimize = library("scipy.optimize").minimize

    def parameters(free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shares = np.exp(free[:buffers] - free[:buffers].max())
        shares *= min(float(_sigmoid(free[buffers])), _MOST) / shares.sum()
        return shares, _sigmoid(free[buffers + 1 :])

    def error(free: np.ndarray) -> float:
        column = blt_column(*parameters(free), rows)
        return float(
            np.log(prefix_error(column, beta)) + np.log(column_sensitivity(column, participation))
        )

    best, least = None, np.inf
    reach = np.log10(max(participation.min_separation, 4))
    for widest in (0.6 * reach, reach, 1.4 * reach):
        times = np.power(10.0, np.linspace(0.2, float(max(widest, 0.4)), buffers))
        start = np.concatenate([np.zeros(buffers), [0.5], np.log(times)])
        found = minimize(error, start, method="L-BFGS-B", options={"maxiter": 300})
        found = minimize(error, found.x, method="Nelder-Mead", options={"maxiter": 200 * buffers})
        if found.fun < least:
            best, least = found.x, float(found.fun)
    assert best is not None
    outputs, decays = parameters(best)
    step = 2.0**-SCALE
    outputs = np.maximum(np.floor(outputs / step) * step, step)  # down: their sum stays below 1
    decays = np.clip(on_scale(decays), step, 1.0 - step)
    order = np.argsort(decays)
    return Buffered(
        outputs=tuple(outputs[order].tolist()),
        decays=tuple(decays[order].tolist()),
        num_rows=rows,
    )


def _sigmoid(value: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-value))


def _rows(name: str, participation: Participation) -> int:
    if participation.num_rows is None:
        raise ValueError("coefficients are made for a number of rows; give num_rows")
    return checked_rows(name, participation.num_rows)
