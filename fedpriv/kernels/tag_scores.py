"""Measuring softmax regression on bags of words: one pass, one row of logits at a time.

It is one module, because what is compiled and kept is only made anew when its own module changes.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import math

import numpy as np
from numba import boolean, njit

from fedpriv.kernels.bits import FLOAT32, INT32, INT64, MATRIX32, UINT8, UINT16
from fedpriv.kernels.sparse_softmax import check_examples, row_scales, softmax_residual

_F = np.float32
TOP = 5
_MEASURED = [
    (INT64, INT32, c, INT32, INT64, INT32, INT64, boolean, MATRIX32, FLOAT32)
    for c in (FLOAT32, UINT8, UINT16)
]


@njit(nogil=True, cache=True, error_model="numpy")
def _checked_scales(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    tag_indptr: np.ndarray,
    tag_indices: np.ndarray,
    chosen: np.ndarray,
    unit_norm: bool,
    kernel: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """Return what each chosen row is multiplied by; look at what compiled loops would read beyond.

    Raises:
        ValueError: If the columns do not belong together, nor kernel and bias, or an example is
            outside them.
    """
    if kernel.shape[1] != bias.size:
        raise ValueError("kernel and bias do not belong together")
    if indptr.size != labels.size + 1 or tag_indptr.size != indptr.size:
        raise ValueError("offsets, labels and tags do not belong together")
    if counts.size != indices.size:
        raise ValueError("words and counts do not belong together")
    check_examples(tag_indptr, tag_indices.size, chosen)
    return row_scales(indptr, counts, chosen, unit_norm)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _row_logits(
    logits: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    example: int,
    scale: float,
    kernel: np.ndarray,
    bias: np.ndarray,
) -> None:
    """Write an example's logits.

    Raises:
        ValueError: If a word is outside the kernel.
    """
    for c in range(bias.size):
        logits[c] = bias[c]
    for j in range(indptr[example], indptr[example + 1]):
        if indices[j] < 0 or indices[j] >= len(kernel):
            raise ValueError("a word lies outside the vocabulary")
        value, row = _F(counts[j]) * scale, kernel[indices[j]]
        for c in range(bias.size):
            logits[c] += value * row[c]


@njit(nogil=True, cache=True, error_model="numpy")
def _classes_ahead(logits: np.ndarray, tag: int) -> int:
    """Return how many classes score higher than a tag; ties go to the lower number.

    Raises:
        ValueError: If there is no such class.
    """
    if tag < 0 or tag >= logits.size:
        raise ValueError("a tag lies outside the classes")
    own, ahead = logits[tag], 0
    for c in range(logits.size):
        ahead += (logits[c] > own) | ((logits[c] == own) & (c < tag))
    return ahead


@njit(_MEASURED, nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def measure(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    tag_indptr: np.ndarray,
    tag_indices: np.ndarray,
    chosen: np.ndarray,
    unit_norm: bool,
    kernel: np.ndarray,
    bias: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Score some examples, one by one.

    Args:
        indptr: int64 `(n + 1,)`, where each example starts in `indices` and `counts`.
        indices: int32, words.
        counts: float32, uint8 or uint16, occurrences.
        labels: int32 `(n,)`.
        tag_indptr: int64 `(n + 1,)`, where each example starts in `tag_indices`.
        tag_indices: int32, true tags.
        chosen: int64, which examples.
        unit_norm: Whether rows of inputs have l2 norm 1; else they sum to 1.
        kernel: float32 `(num_words, num_classes)`.
        bias: float32 `(num_classes,)`.

    Returns:
        Of each chosen example: whether its label scored highest, uint8; how many of its true tags
        are among the five highest, uint8; nDCG@5, float64: with the tag at rank r (from 1) worth
        1 / log2(1 + r) where r is at most 5, the sum over its tags divided by the highest that any
        ranking could reach, and 0 of an example without tags; and its cross-entropy in nats,
        float64. Ties go to the lower number.

    Raises:
        ValueError: If a word, a tag or a label is outside the kernel, or as `_checked_scales`.
    """
    scales = _checked_scales(
        indptr, indices, counts, labels, tag_indptr, tag_indices, chosen, unit_norm, kernel, bias
    )
    num_classes = bias.size
    logits = np.empty(num_classes, np.float32)
    shares = np.empty(num_classes, np.float32)
    right, found = np.zeros(chosen.size, np.uint8), np.zeros(chosen.size, np.uint8)
    gains, losses = np.zeros(chosen.size), np.empty(chosen.size)
    for k in range(chosen.size):
        example = chosen[k]
        _row_logits(logits, indptr, indices, counts, example, scales[k], kernel, bias)
        label = labels[example]
        if label < 0 or label >= num_classes:
            raise ValueError("a label lies outside the classes")
        peak, best = logits[0], 0
        for c in range(num_classes):
            shares[c] = logits[c]
            if logits[c] > peak:
                peak, best = logits[c], c
        right[k] = best == label
        reached = highest = 0.0
        for t in range(tag_indptr[example], tag_indptr[example + 1]):
            place = t - tag_indptr[example]
            if place < TOP:
                highest += 1.0 / math.log2(2.0 + place)
            ahead = _classes_ahead(logits, tag_indices[t])
            if ahead < TOP:
                found[k] += 1
                reached += 1.0 / math.log2(2.0 + ahead)
        if highest > 0.0:
            gains[k] = reached / highest
        # softmax(x) - onehot, at the label, is the probability less one.
        unsound = softmax_residual(shares, label, _F(1.0))
        total = np.float64(shares[best]) + (1.0 if best == label else 0.0)
        # log p(label) = logit - peak + log p(peak), and p(peak) is at least one in num_classes.
        losses[k] = -(np.float64(logits[label]) - np.float64(peak) + math.log(total) - unsound)
    return right, found, gains, losses
