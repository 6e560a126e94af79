"""Rows as a proof wants them: finite, each entry stored once, within a ball."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from scipy import sparse


def shortened(rows: Any, length: float = 1.0) -> Any:
    """Return rows within ‖x‖₂ <= length, float64: none is refused, and one not finite is zero.

    Args:
        rows: One (d,), or several (n, d), dense or CSR, whose entries of one place are added up. A
            constant column for a bias counts.
        length: r.
    """
    if sparse.issparse(rows):
        kept = _merged(sparse.csr_matrix(rows, dtype=np.float64, copy=True))
        lines = _lines(kept)
        most = np.zeros(len(kept.indptr) - 1)
        with np.errstate(invalid="ignore"):  # NaN stays NaN
            np.maximum.at(most, lines, np.abs(kept.data))
        scale = _scales(most, lambda sizes: np.bincount(
            lines, (kept.data / sizes[lines]) ** 2, minlength=len(most)
        ), length)  # fmt: skip
        kept.data = np.where(scale[lines] > 0.0, kept.data, 0.0) * scale[lines]
        return kept
    given = np.asarray(rows, np.float64)
    flat = given.reshape(1, -1) if given.ndim == 1 else given
    most = np.abs(flat).max(axis=1, initial=0.0)
    scale = _scales(most, lambda sizes: ((flat / sizes[:, None]) ** 2).sum(axis=1), length)
    found = np.where(scale[:, None] > 0.0, flat, 0.0) * scale[:, None]
    return found.reshape(given.shape)


def finite_rows(
    rows: np.ndarray | sparse.csr_matrix,
) -> tuple[np.ndarray | sparse.csr_matrix, np.ndarray]:
    """Return rows of which those that are not finite are zeros, and ‖x‖₂² float64.

    Zeros and not a weight of zero: zero times infinity is no number, in everybody's result. The
    squares of such rows are infinite, or no number.

    Args:
        rows: (n, d), dense or CSR; not changed.
    """
    if isinstance(rows, np.ndarray):
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("nd,nd->n", rows, rows, dtype=np.float64)
        odd = ~np.isfinite(squares)
        return (np.where(odd[:, np.newaxis], 0, rows) if odd.any() else rows), squares
    if not _is_merged(rows):
        rows = _merged(rows.copy())
    lines = _lines(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = np.square(rows.data, dtype=np.float64)
        squares = np.bincount(lines, wide, minlength=len(rows.indptr) - 1)
    odd = ~np.isfinite(squares)
    if odd.any():
        kept = np.where(odd[lines], 0, rows.data)
        rows = sparse.csr_matrix((kept, rows.indices, rows.indptr), shape=_shape(rows))
    return rows, squares


def _scales(
    most: np.ndarray, squares: Callable[[np.ndarray], np.ndarray], length: float
) -> np.ndarray:
    """Return what each row is multiplied by, 0 for one that is not finite; no square overflows."""
    finite = np.isfinite(most)
    sizes = np.where(finite & (most > 0.0), most, 1.0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # A part in 2^40 for the rounding of the norm itself, which is sizes times the root.
        scale = length * (1.0 - 2.0**-40) / np.sqrt(squares(sizes)) / sizes
        scale = np.minimum(1.0, scale)
    return np.where(finite, scale, 0.0)


def _lines(rows: sparse.csr_matrix) -> np.ndarray:
    """Return the row of each stored entry."""
    return np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))


def _is_merged(rows: sparse.csr_matrix) -> bool:
    """Return whether no entry is stored twice, whatever a matrix is marked as."""
    bare = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=_shape(rows))
    return bool(bare.has_canonical_format)


def _merged(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return the very matrix with each entry stored once: libraries add up what is there twice."""
    rows.has_canonical_format = rows.has_sorted_indices = False  # it may be marked otherwise
    with np.errstate(over="ignore", invalid="ignore"):
        rows.sum_duplicates()
    return rows


def _shape(rows: sparse.csr_matrix) -> tuple[int, int]:
    return cast(tuple[int, int], rows.shape)
