"""The examples of tag prediction: sparse word counts, a label, the post's tags."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedpriv.checkpoints.vocabulary import WordFeatures

# SciPy is slow to import: what builds a matrix loads it, `fedpriv --help` does not.
if TYPE_CHECKING:
    from scipy import sparse

INPUTS = ("tff", "unit-norm")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TagExamples:
    """n examples in compressed sparse rows; arrays may be read-only views of a file.

    Attributes:
        indptr: int64 (n + 1,), row starts in `indices`, from 0.
        indices: int32 (nnz,), word numbers, strictly increasing within a row.
        counts: unsigned integer (nnz,), occurrences of the word in sentence and title; float32
            values of `with_features`.
        num_tokens: int32 (n,), all tokens of sentence and title, out-of-vocabulary included.
        labels: int32 (n,), the post's tag that comes first in the tag order.
        tag_indptr: int64 (n + 1,), row starts in `tag_indices`, from 0.
        tag_indices: int32, the post's tags that are in the tag list, strictly increasing.
        num_words: size of the vocabulary, with the rows of pairs where there are any.
        num_tags: size of the tag list.
    """

    indptr: np.ndarray
    indices: np.ndarray
    counts: np.ndarray
    num_tokens: np.ndarray
    labels: np.ndarray
    tag_indptr: np.ndarray
    tag_indices: np.ndarray
    num_words: int
    num_tags: int

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> TagExamples:
        """Return the examples at the given row numbers, in that order (a copy)."""
        rows = np.asarray(rows, dtype=np.int64)
        indptr, words = row_positions(self.indptr, rows)
        tag_indptr, tags = row_positions(self.tag_indptr, rows)
        return TagExamples(
            indptr=indptr,
            indices=self.indices[words],
            counts=self.counts[words],
            num_tokens=self.num_tokens[rows],
            labels=self.labels[rows],
            tag_indptr=tag_indptr,
            tag_indices=self.tag_indices[tags],
            num_words=self.num_words,
            num_tags=self.num_tags,
        )

    def with_features(self, made: WordFeatures, rows: np.ndarray) -> TagExamples:
        """Return the examples at the given row numbers, weighted and with pairs (a copy).

        Their `counts` are float32 and to be scaled to unit norm. Only these rows are read.

        Raises:
            ValueError: a word is outside the vocabulary.
        """
        chosen = self.take(rows)
        indptr, indices, values = made.made(chosen.indptr, chosen.indices, chosen.counts)
        return replace(
            chosen, indptr=indptr, indices=indices, counts=values, num_words=made.num_rows
        )

    def features(self, inputs: str = "tff") -> sparse.csr_array:
        """Return the model's inputs, float32 (n, num_words).

        Args:
            inputs: "tff" is TensorFlow Federated's mean of one-hot words over the tokens that are
                in the vocabulary, so a row sums to 1 (TFF 0.87, value for value; versions before
                counted unknown tokens too); "unit-norm" scales every row to L2 norm 1. Rows
                without a known word stay zero.

        Raises:
            ValueError: unknown `inputs`.
        """
        from scipy import sparse

        return sparse.csr_array(
            (self.values(inputs), self.indices, self.indptr), shape=(len(self), self.num_words)
        )

    def values(self, inputs: str = "tff") -> np.ndarray:
        """Return the stored entries of `features`, float32 (nnz,), without building a matrix.

        Raises:
            ValueError: unknown `inputs`.
        """
        values = self.counts.astype(np.float32)
        lengths = np.diff(self.indptr)
        if inputs == "tff":
            values /= np.repeat(_row_sums(values, lengths), lengths)
        elif inputs == "unit-norm":
            values /= np.repeat(np.sqrt(_row_sums(np.square(values), lengths)), lengths)
        else:
            raise ValueError(f"inputs {inputs!r} is unknown; choose one of {INPUTS}")
        return values


def row_positions(indptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the new row starts, and where the entries of `rows` lie, for a gather.

    >>> starts, entries = row_positions(np.array([0, 2, 2, 5]), np.array([2, 0]))
    >>> starts.tolist(), entries.tolist()
    ([0, 3, 5], [2, 3, 4, 0, 1])
    """
    starts = indptr[rows]
    lengths = indptr[rows + 1] - starts
    new = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=new[1:])
    return new, np.arange(new[-1]) + np.repeat(starts - new[:-1], lengths)


def _row_sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows, weights=values, minlength=len(lengths)).astype(np.float32)
