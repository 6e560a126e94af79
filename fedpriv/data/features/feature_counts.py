"""What is counted of features for side information: sums, document frequencies, magnitudes.

Whose rows they are counted on is the caller's to say: `SideInformation` keeps it.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedpriv.data.features.dataset import shape_of


def column_sums(x: sparse.csr_matrix | np.ndarray) -> np.ndarray:
    """Return the sum of each feature over the rows, float64 (num_features,)."""
    return np.asarray(x.sum(axis=0, dtype=np.float64)).reshape(-1)


def rows_with_feature(*parts: sparse.csr_matrix) -> tuple[np.ndarray, int]:
    """Return (in how many rows each feature is not 0, int64 (num_features,); how many rows).

    These are the document frequencies and documents of TF-IDF. The paper counts them over the
    training and the test set: `rows_with_feature(data.x_train, data.x_test)`.
    """
    width = shape_of(parts[0])[1]
    found = sum(np.bincount(x.indices[x.data != 0], minlength=width) for x in parts)
    return np.asarray(found, dtype=np.int64), sum(shape_of(x)[0] for x in parts)


def mean_magnitude(x: sparse.csr_matrix | np.ndarray) -> np.ndarray:
    """Return the mean of |x_ij| over the rows i, float64 (num_features,).

    Raises:
        ValueError: If there are no rows.
    """
    num_rows = shape_of(x)[0]
    if num_rows < 1:
        raise ValueError("a mean magnitude needs at least one row to be estimated on")
    return column_sums(abs(x)) / num_rows
