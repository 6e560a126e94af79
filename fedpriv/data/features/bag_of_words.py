"""Words by rank, and features from rows of words: counts, TF-IDF, padded sequences.

Two families, because the paper's and a careful one differ:

* *padded ids*, as the paper: Keras' convention (0 pads, 1 starts a text, 2 is any other word, the
  words follow from 3 by rank), texts padded and cut in front to 290 ids, and the features count
  *all* ids, padding included;
* *words*: the whole text, vocabulary words only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from fedpriv.data.features.dataset import shape_of
from fedpriv.data.features.word_rows import WordRows
from fedpriv.data.files.arrays import offsets, ranges

Provenance = Literal["private", "public"]

PAD, START, OTHER = 0, 1, 2
RESERVED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedWords:
    """Words by rank, and whose texts chose them.

    Attributes:
        words: The most frequent first.
        source: "private" if private texts chose them (no ε covers that), "public" if not.
    """

    words: tuple[str, ...]
    source: Provenance


def most_frequent(rows: WordRows, size: int, *, source: Provenance) -> RankedWords:
    """Return the `size` words that occur most often in rows (fewer if there are not as many).

    Equally frequent words go by the alphabet, so the result depends on the rows alone.
    """
    counts = np.bincount(rows.ids, minlength=len(rows.words))
    present = np.flatnonzero(counts)
    names = np.array([rows.words[number] for number in present], dtype=np.str_)
    best = present[np.lexsort((names, -counts[present]))[:size]]
    return RankedWords(words=tuple(rows.words[number] for number in best), source=source)


def document_frequency(rows: WordRows, vocabulary: RankedWords) -> np.ndarray:
    """Return in how many rows each word of a vocabulary occurs, int64 (len(words),)."""
    counts = count_words(rows, vocabulary, len(vocabulary.words))
    return np.bincount(counts.indices, minlength=len(vocabulary.words))


def count_words(rows: WordRows, vocabulary: RankedWords, width: int = 10_000) -> sparse.csr_matrix:
    """Return how often each vocabulary word occurs in each row, float32 (n, width).

    Column j is the word of rank j; columns past the vocabulary stay empty.

    Raises:
        ValueError: If the vocabulary has more words than there are columns.
    """
    if len(vocabulary.words) > width:
        raise ValueError(f"{len(vocabulary.words):,} words do not fit {width:,} columns")
    ranks = _ranks(rows, vocabulary)[rows.ids]
    known = ranks >= 0
    before = offsets(known)
    return _tally(ranks[known], before[rows.starts], width)


def padded_ids(
    rows: WordRows, vocabulary: RankedWords, *, length: int = 290, size: int = 10_000
) -> np.ndarray:
    """Return each row as `length` ids in Keras' convention, int32 (n, length).

    A row is the start id and then its words; one that is too long loses its beginning, one that is
    too short is padded in front. Words of rank `size - 3` and beyond become the id for other words,
    so that every id is below `size`.

    Raises:
        ValueError: If the length or the size leaves no room.
    """
    if length < 1 or size <= RESERVED:
        raise ValueError(f"length {length} and size {size} leave no room for words")
    ranks = _ranks(rows, vocabulary)
    inside = (ranks >= 0) & (ranks < size - RESERVED)
    codes = np.where(inside, ranks + RESERVED, OTHER).astype(np.int32)
    lengths = np.diff(rows.starts)
    kept = np.minimum(lengths, length)
    out = np.full((len(rows), length), PAD, np.int32)
    from_word = ranges(rows.starts[1:] - kept, kept)
    to_place = ranges(np.arange(len(rows)) * length + length - kept, kept)
    out.reshape(-1)[to_place] = codes[rows.ids[from_word]]
    begun = np.flatnonzero(lengths < length)
    out[begun, length - 1 - lengths[begun]] = START
    return out


def count_ids(sequences: np.ndarray, size: int = 10_000) -> sparse.csr_matrix:
    """Return how often each id occurs in each sequence, padding included, float32 (n, size).

    Raises:
        ValueError: If an id is not below `size`.
    """
    n, length = sequences.shape
    if sequences.size and not 0 <= sequences.min() <= sequences.max() < size:
        raise ValueError(f"an id is outside 0 to {size - 1:,}; give the size the ids were made for")
    return _tally(sequences.reshape(-1), np.arange(n + 1) * length, size)


def binary(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return 1 where a feature is not zero."""
    return _with_data(x, (x.data != 0).astype(np.float32))


def inverse_document_frequency(frequency: np.ndarray, num_documents: int) -> np.ndarray:
    """Return ln((1 + n) / (1 + df)) + 1, float32: finite for words that no document has.

    Args:
        frequency: In how many of the documents each word is.
        num_documents: n, how many documents there are.
    """
    return (np.log((1.0 + num_documents) / (1.0 + frequency)) + 1.0).astype(np.float32)


def scale_columns(x: sparse.csr_matrix, scale: np.ndarray) -> sparse.csr_matrix:
    """Return features times one number a column (TF-IDF: the inverse document frequencies)."""
    width = shape_of(x)[1]
    if scale.shape != (width,):
        raise ValueError(f"{width:,} columns but scales of shape {scale.shape}")
    return _with_data(x, x.data * scale.astype(np.float32)[x.indices])


def unit_rows(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return rows of L2 norm 1; a row of zeros stays one."""
    squares = sparse.csr_matrix((x.data.astype(np.float64) ** 2, x.indices, x.indptr), x.shape)
    norms = np.sqrt(np.asarray(squares.sum(axis=1)).reshape(-1))
    norms[norms == 0] = 1.0
    return _with_data(x, (x.data / np.repeat(norms, np.diff(x.indptr))).astype(np.float32))


def _ranks(rows: WordRows, vocabulary: RankedWords) -> np.ndarray:
    """Return each word number's rank in a vocabulary, -1 if it is not there."""
    ranks = {word: rank for rank, word in enumerate(vocabulary.words)}
    found = (ranks.get(word, -1) for word in rows.words)
    return np.fromiter(found, np.int32, len(rows.words))


def _tally(columns: np.ndarray, starts: np.ndarray, width: int) -> sparse.csr_matrix:
    ones = np.ones(len(columns), np.float32)
    entries = (ones, columns.astype(np.int32), starts.astype(np.int32))
    counts = sparse.csr_matrix(entries, shape=(len(starts) - 1, width))
    counts.sum_duplicates()
    return counts


def _with_data(x: sparse.csr_matrix, data: np.ndarray) -> sparse.csr_matrix:
    return sparse.csr_matrix((data, x.indices, x.indptr), shape=x.shape)
