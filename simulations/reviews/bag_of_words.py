"""Texts as rows of word numbers: the tokeniser, and the compact form that features are made from.

The tokeniser is plain on purpose: lower case; HTML line breaks (`<br />`) become spaces; a word is
a run of `a-z`, `0-9` and `'`, without apostrophes at its ends; everything else separates words.

>>> plain_words("It's GREAT!<br /><br />'Really' 10/10")
["it's", 'great', 'really', '10', '10']
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from fedpriv.datasets.arrays import offsets, ranges
from fedpriv.datasets.dataset import shape_of
from fedpriv.hashes import Progress

TOKENISER = "lower case, <br> to space, runs of [a-z0-9'] without outer apostrophes; version 1"

_BREAK = re.compile(r"<br\s{0,8}/?>")
_WORD = re.compile(r"[a-z0-9](?:[a-z0-9']*[a-z0-9])?")


def plain_words(text: str) -> list[str]:
    """Return the words of a text, see the module's description."""
    return _WORD.findall(_BREAK.sub(" ", text.lower()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """Texts with labels.

    Attributes:
        texts: n of them.
        labels: int64 (n,).
    """

    texts: tuple[str, ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordRows:
    """Labelled texts as word numbers, row after row.

    The numbers mean nothing by themselves (they go by first occurrence in some file): which words
    count, and in which order, a vocabulary says.

    Attributes:
        words: The word of each number.
        ids: Word numbers of all rows, int32 (total,).
        starts: Where each row begins in `ids`, int64 (n + 1,).
        labels: int64 (n,).
    """

    words: tuple[str, ...]
    ids: np.ndarray
    starts: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: np.ndarray) -> WordRows:
        """Return the rows at positions, in the order given."""
        lengths = (self.starts[1:] - self.starts[:-1])[index]
        return WordRows(
            words=self.words,
            ids=self.ids[ranges(self.starts[:-1][index], lengths)],
            starts=offsets(lengths),
            labels=self.labels[index],
        )


def word_rows(parts: Sequence[Texts], *, progress: Progress | None = None) -> tuple[WordRows, ...]:
    """Return texts as rows of word numbers, all parts over one table of words.

    Args:
        parts: For example the training and the test texts.
        progress: Called with the texts done and their total.
    """
    table: defaultdict[str, int] = defaultdict()
    table.default_factory = table.__len__
    total = sum(len(part) for part in parts)
    done = 0
    made = []
    for part in parts:
        rows: list[np.ndarray] = []
        for text in part.texts:
            rows.append(np.fromiter(map(table.__getitem__, plain_words(text)), np.int32))
            done += 1
            if progress is not None and (done % 500 == 0 or done == total):
                progress(done, total)
        made.append((rows, part.labels))
    words = tuple(table)
    return tuple(
        WordRows(
            words=words,
            ids=np.concatenate([np.empty(0, np.int32), *rows]),
            starts=offsets(np.array([len(row) for row in rows], dtype=np.int64)),
            labels=labels.astype(np.int64),
        )
        for rows, labels in made
    )


Provenance = Literal["private", "public"]

PAD, START, OTHER = 0, 1, 2
RESERVED = 3


def most_frequent(rows: WordRows, size: int) -> tuple[str, ...]:
    """Return the `size` words that occur most often in rows (fewer if there are not as many).

    Equally frequent words go by the alphabet, so the result depends on the rows alone.
    """
    counts = np.bincount(rows.ids, minlength=len(rows.words))
    present = np.flatnonzero(counts)
    names = np.array([rows.words[number] for number in present], dtype=np.str_)
    best = present[np.lexsort((names, -counts[present]))[:size]]
    return tuple(rows.words[number] for number in best)


def document_frequency(rows: WordRows, vocabulary: Sequence[str]) -> np.ndarray:
    """Return in how many rows each word of a vocabulary occurs, int64 (len(vocabulary),)."""
    counts = count_words(rows, vocabulary, len(vocabulary))
    return np.bincount(counts.indices, minlength=len(vocabulary))


def count_words(
    rows: WordRows, vocabulary: Sequence[str], width: int = 10_000
) -> sparse.csr_matrix:
    """Return how often each vocabulary word occurs in each row, float32 (n, width).

    Column j is the word of rank j, of at most `width`; columns past the vocabulary stay empty.
    """
    ranks = _ranks(rows, vocabulary)[rows.ids]
    known = ranks >= 0
    before = offsets(known)
    return _tally(ranks[known], before[rows.starts], width)


def padded_ids(
    rows: WordRows, vocabulary: Sequence[str], *, length: int = 290, size: int = 10_000
) -> np.ndarray:
    """Return each row as `length` ids in Keras' convention, int32 (n, length).

    A row is the start id and then its words; one that is too long loses its beginning, one that is
    too short is padded in front. Words of rank `size - 3` and beyond become the id for other words,
    so that every id is below `size`.
    """
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
    """Return how often each id below `size` occurs in each sequence, float32 (n, size).

    Padding is counted too.
    """
    n, length = sequences.shape
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
    return _with_data(x, x.data * scale.astype(np.float32)[x.indices])


def unit_rows(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return rows of L2 norm 1; a row of zeros stays one."""
    squares = sparse.csr_matrix((x.data.astype(np.float64) ** 2, x.indices, x.indptr), x.shape)
    norms = np.sqrt(np.asarray(squares.sum(axis=1)).reshape(-1))
    norms[norms == 0] = 1.0
    return _with_data(x, (x.data / np.repeat(norms, np.diff(x.indptr))).astype(np.float32))


def _ranks(rows: WordRows, vocabulary: Sequence[str]) -> np.ndarray:
    """Return each word number's rank in a vocabulary, -1 if it is not there."""
    ranks = {word: rank for rank, word in enumerate(vocabulary)}
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


def column_sums(x: sparse.csr_matrix | np.ndarray) -> np.ndarray:
    """Return the sum of each feature over the rows, float64 (num_features,)."""
    return np.asarray(x.sum(axis=0, dtype=np.float64)).reshape(-1)


def mean_magnitude(x: sparse.csr_matrix | np.ndarray) -> np.ndarray:
    """Return the mean of |x_ij| over the rows i, of at least one, float64 (num_features,)."""
    return column_sums(abs(x)) / shape_of(x)[0]
