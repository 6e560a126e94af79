"""Features of the words of an example: weighted by rarity, and hashed pairs of them.

One call for the examples of one user or one block; nothing of another's enters.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import math

import numpy as np
from numba import float64, int64, njit, uint64

from fedpriv.kernels.bits import FLOAT32, INT32, INT64

_F, _I, _U = np.float32, np.int32, np.uint64
# Fixed for good: models that were trained with pairs lie by it.
_SEED = np.uint64(0x9E3779B97F4A7C15)


@njit([int64(uint64, uint64, uint64)], nogil=True, cache=True)
def pair_row(first: int, second: int, num_pairs: int) -> int:
    """Return the row, 0 to `num_pairs - 1`, of two words in increasing order.

    The finaliser of SplitMix64 (Steele, Lea, Flood 2014) on both numbers.
    """
    mixed = ((first << _U(32)) | second) + _SEED
    mixed = (mixed ^ (mixed >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> _U(27))) * _U(0x94D049BB133111EB)
    return np.int64((mixed ^ (mixed >> _U(31))) % num_pairs)


@njit(
    [(INT64, INT32, FLOAT32, FLOAT32, int64, int64, int64, float64)],
    nogil=True,
    cache=True,
    error_model="numpy",
)
def word_features(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    weights: np.ndarray,
    num_words: int,
    num_pairs: int,
    most_paired: int,
    pair_weight: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return examples with other values and with rows for pairs; rows are not normalised.

    Args:
        indptr: int64 `(n + 1,)`, where each example starts in `indices` and `counts`.
        indices: int32, words, increasing within an example.
        counts: float32, occurrences.
        weights: float32 `(num_words,)`, by which the root of a count is multiplied; empty for
            counts as they are.
        num_words: How many words there are.
        num_pairs: How many rows pairs of words share, which lie behind the words'; 0 for none.
        most_paired: How many words of an example are paired, those with the highest numbers.
        pair_weight: Times the root of the product of two words' values.

    Returns:
        int64 `(n + 1,)`, int32 and float32: rows increase within an example; pairs that fall on
        one row are one entry, their sum.

    Raises:
        ValueError: If a word or an example is outside the arrays, or not every word has a weight.
    """
    if weights.size != 0 and weights.size != num_words:
        raise ValueError("there is not one weight for each word")
    most = np.int64(0)
    for k in range(indptr.size - 1):
        first, last = indptr[k], indptr[k + 1]
        if first < 0 or last < first or last > indices.size or last > counts.size:
            raise ValueError("an example lies outside the words")
        paired = min(last - first, most_paired) if num_pairs else np.int64(0)
        most += last - first + paired * (paired - 1) // 2
    starts = np.zeros(indptr.size, np.int64)
    rows, values = np.empty(most, np.int32), np.empty(most, np.float32)
    end = np.int64(0)
    for k in range(indptr.size - 1):
        first, last = indptr[k], indptr[k + 1]
        begun = end
        for j in range(first, last):
            word, value = indices[j], counts[j]
            if word < 0 or word >= num_words:
                raise ValueError("a word lies outside the vocabulary")
            if weights.size:
                value = _F(math.sqrt(value)) * weights[word]
            rows[end], values[end] = word, value
            end += 1
        paired = min(last - first, most_paired) if num_pairs else np.int64(0)
        if paired > 1:
            number = paired * (paired - 1) // 2
            found, strength = np.empty(number, np.int64), np.empty(number, np.float32)
            at, lowest = np.int64(0), end - paired
            for one in range(lowest, end):
                for other in range(one + 1, end):
                    found[at] = pair_row(_U(rows[one]), _U(rows[other]), _U(num_pairs))
                    product = np.float64(values[one]) * np.float64(values[other])
                    strength[at] = _F(pair_weight * math.sqrt(product))
                    at += 1
            before = np.int64(-1)
            for place in np.argsort(found, kind="mergesort"):
                if found[place] == before:
                    values[end - 1] += strength[place]
                else:
                    before = found[place]
                    rows[end], values[end] = _I(num_words + before), strength[place]
                    end += 1
        starts[k + 1] = starts[k] + end - begun
    return starts, rows[:end].copy(), values[:end].copy()
