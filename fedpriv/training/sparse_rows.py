"""Products with a few rows of a sparse matrix, without building matrices.

SciPy's matrix classes check and copy their arrays at every slice and product, which for a user of
twenty sentences costs more than the arithmetic. The compiled loops beneath them take plain arrays
and *add* into a result, so a local step updates a user's rows in place. They are SciPy's own
module, not its public face; the tests hold them to the public classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import _sparsetools  # type: ignore[attr-defined]

from fedpriv.data.examples import row_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRows:
    """Rows of a sparse matrix.

    Attributes:
        indptr: int `(n + 1,)`, where each row starts in `indices`.
        indices: int32 `(nnz,)`, columns.
        values: float32 `(nnz,)`, entries.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def take(self, rows: np.ndarray) -> tuple[SparseRows, np.ndarray | slice]:
        """Return some rows, and where their entries lie; consecutive rows are not copied."""
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and np.all(np.diff(rows) == 1):
            first, last = int(rows[0]), int(rows[-1])
            entries: np.ndarray | slice = slice(int(self.indptr[first]), int(self.indptr[last + 1]))
            indptr = self.indptr[first : last + 2] - self.indptr[first]
        else:
            indptr, entries = row_positions(self.indptr, rows)
        taken = SparseRows(
            indptr=indptr.astype(np.int32),
            indices=self.indices[entries],
            values=self.values[entries],
        )
        return taken, entries

    def with_values(self, values: np.ndarray) -> SparseRows:
        """Return the same pattern with other entries."""
        return SparseRows(indptr=self.indptr, indices=self.indices, values=values)

    def over(self, indices: np.ndarray) -> SparseRows:
        """Return the same entries over other columns."""
        return SparseRows(indptr=self.indptr, indices=indices, values=self.values)

    def times(self, dense: np.ndarray) -> np.ndarray:
        """Return the product with a dense float32 matrix `(columns, k)`, float32 `(n, k)`."""
        out = np.zeros((len(self), dense.shape[1]), np.float32)
        self.add_times(dense, out)
        return out

    def add_times(self, dense: np.ndarray, out: np.ndarray) -> None:
        """Add the product with a dense float32 matrix `(columns, k)` into `out` `(n, k)`."""
        columns, width = dense.shape
        _sparsetools.csr_matvecs(
            len(self),
            columns,
            width,
            self.indptr,
            self.indices,
            self.values,
            dense.reshape(-1),
            out.reshape(-1),
        )

    def add_transposed_times(self, dense: np.ndarray, out: np.ndarray) -> None:
        """Add the transpose's product with a dense float32 `(n, k)` into `out` `(columns, k)`."""
        columns, width = out.shape
        # The arrays of a matrix by rows are those of its transpose by columns.
        _sparsetools.csc_matvecs(
            columns,
            len(self),
            width,
            self.indptr,
            self.indices,
            self.values,
            dense.reshape(-1),
            out.reshape(-1),
        )
