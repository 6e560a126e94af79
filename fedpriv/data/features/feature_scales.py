"""Side information of AdaDPS without public data: one multiplier a feature.

A preconditioner divides by A; what is returned is `multiplier = 1 / A`, by which the update of a
feature's weights is multiplied before it is bounded (not the bias). The paper estimates all three
on the *private* training set and yet calls them known; that is `source="private"`, and no ε covers
it. The same functions over public rows are `source="public"`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from fedpriv.data.features.bag_of_words import RESERVED, Origin
from fedpriv.data.features.dataset import shape_of
from fedpriv.ranges import positive_float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureScales:
    """What is known beforehand about the scale of each feature.

    Attributes:
        multiplier: float32 (num_features,), positive.
        source: "private" or "public": whose examples it was estimated on.
        how: The formula, for a report.
    """

    multiplier: np.ndarray
    source: Origin
    how: str


def token_frequency(
    counts: sparse.csr_matrix, *, source: Origin, cap: float = 1e4, division: float = 100.0
) -> FeatureScales:
    """Return multipliers that grow as tokens get rarer: min(cap, max f / f_j) / division.

    f_j = (count_j + 0.1) / N + 1e-10, count_j the sum of column j over the N rows. As the paper has
    it with counts of padded ids, where the padding is the most frequent token.

    Args:
        counts: Features (N, num_features).
        source: Whose rows these are.
        cap: Largest ratio.
        division: Divides all multipliers.

    Raises:
        ValueError: If there are no rows, or a cap or division is not positive.
    """
    num_rows = _num_rows(counts)
    positive_float("cap", cap)
    positive_float("division", division)
    frequency = (_column_sums(counts) + 0.1) / num_rows + 1e-10
    return FeatureScales(
        multiplier=_rarity(frequency, cap, division),
        source=source,
        how=f"min({cap:g}, max f / f_j) / {division:g}, f_j the frequency of token j",
    )


def rows_with_feature(*parts: sparse.csr_matrix) -> tuple[np.ndarray, int]:
    """Return (in how many rows each feature is not 0, int64 (num_features,); how many rows).

    These are the document frequencies and documents of `tf_idf_mass`. The paper counts them over
    the training and the test set: `rows_with_feature(data.x_train, data.x_test)`.
    """
    width = shape_of(parts[0])[1]
    found = sum(np.bincount(x.indices[x.data != 0], minlength=width) for x in parts)
    return np.asarray(found, dtype=np.int64), sum(shape_of(x)[0] for x in parts)


def tf_idf_mass(
    counts: sparse.csr_matrix,
    frequency: np.ndarray,
    num_documents: int,
    *,
    source: Origin,
    length: int = 290,
    reserved: int = RESERVED,
    as_if_rows: int | None = None,
) -> FeatureScales:
    """Return multipliers 10 (sum_i tfidf_ij + 1e-10), the reserved ids' forced to 0.01.

    tf = count / length, idf = log10(num_documents / df_j), with 0.1 for a df of 0. Note that this
    gives *much* weight to tokens of large TF-IDF mass, unlike `token_frequency`.

    Args:
        counts: Features (N, num_features) over which is summed.
        frequency: Document frequencies df (num_features,), see `rows_with_feature`.
        num_documents: How many documents they were counted over.
        source: Whose rows these are; private if the counts or the frequencies are.
        length: Of a padded text.
        reserved: How many first ids are no words; 0 where columns are words.
        as_if_rows: Scale the sum to as many rows: the formula grows with N, so 250 public rows
            need 25,000 here to give multipliers as large as the paper's.

    Raises:
        ValueError: If there are no rows or documents, or the shapes do not fit.
    """
    num_rows = _num_rows(counts)
    width = shape_of(counts)[1]
    if frequency.shape != (width,):
        raise ValueError(f"{width:,} features but document frequencies {frequency.shape}")
    positive_float("num_documents", num_documents)
    positive_float("length", length)
    if frequency.max() > num_documents or frequency.min() < 0:
        raise ValueError(f"a document frequency is outside 0 to {num_documents:,} documents")
    idf = np.log10(num_documents / np.where(frequency > 0, frequency, 0.1))
    scale = 1.0 if as_if_rows is None else as_if_rows / num_rows
    mass = _column_sums(counts) / length * idf * scale
    multiplier = (10.0 * (mass + 1e-10)).astype(np.float32)
    # A token of every document has an idf, and so a mass, of 0: its multiplier is tiny, not zero.
    multiplier[:reserved] = 0.01
    return FeatureScales(
        multiplier=multiplier,
        source=source,
        how="10 (sum of TF-IDF + 1e-10), tf = count / length, idf = log10(documents / df)",
    )


def mean_magnitude(
    x: sparse.csr_matrix | np.ndarray,
    *,
    source: Origin,
    cap: float = 1e4,
    division: float = 100.0,
) -> FeatureScales:
    """Return multipliers min(cap, max a / a_j) / division, a_j the mean of |x_ij| over rows.

    For a linear model the gradient of weight j is proportional to x_ij, so a_j estimates its scale.
    A feature that is 0 in every row gets the cap.

    Raises:
        ValueError: If there are no rows, no feature is ever set, or a cap is not positive.
    """
    num_rows = _num_rows(x)
    positive_float("cap", cap)
    positive_float("division", division)
    magnitude = _column_sums(abs(x)) / num_rows
    if not magnitude.any():
        raise ValueError("every feature is 0 in every row; there is no magnitude to learn from")
    return FeatureScales(
        multiplier=_rarity(magnitude, cap, division),
        source=source,
        how=f"min({cap:g}, max a / a_j) / {division:g}, a_j the mean magnitude of feature j",
    )


def _rarity(scale: np.ndarray, cap: float, division: float) -> np.ndarray:
    floor = scale.max() / cap  # never divides by zero
    return (scale.max() / np.maximum(scale, floor) / division).astype(np.float32)


def _column_sums(x: sparse.csr_matrix | np.ndarray) -> np.ndarray:
    return np.asarray(x.sum(axis=0, dtype=np.float64)).reshape(-1)


def _num_rows(x: sparse.csr_matrix | np.ndarray) -> int:
    num_rows = shape_of(x)[0]
    if num_rows < 1:
        raise ValueError("side information needs at least one row to be estimated on")
    return num_rows
