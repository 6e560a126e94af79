"""What softmax regression on bags of words does to each example: right or not, and its tags' ranks.

`fedpriv.kernels.tag_scores.measure` adds the same up; the two never disagree, since the logits and
the ranks are made by one code.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import math

import numpy as np
from numba import boolean, njit

from fedpriv.kernels.bits import FLOAT32, INT32, INT64, MATRIX32, UINT8, UINT16
from fedpriv.kernels.sparse_softmax import row_scales
from fedpriv.kernels.tag_scores import check_rows, classes_ahead, row_logits

TOP = 5


@njit(
    [
        (INT64, INT32, c, INT32, INT64, INT32, INT64, boolean, MATRIX32, FLOAT32)
        for c in (FLOAT32, UINT8, UINT16)
    ],
    nogil=True,
    cache=True,
    error_model="numpy",
)
def score_each(
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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Score some examples one by one; arguments as of `fedpriv.kernels.tag_scores.measure`.

    Returns:
        Of each chosen example: whether its label scored highest, uint8; how many of its tags are
        among the five highest, uint8; and nDCG@5, float64: with the tag at rank r (from 1) worth
        1 / log2(1 + r) where r is at most 5, the sum over its tags divided by the highest that any
        ranking could reach, and 0 of an example without tags. Ties go to the lower number; a score
        that is NaN is beaten by none, and its model is no model.

    Raises:
        ValueError: If a word, a tag or a label is outside the kernel.
    """
    num_classes = bias.size
    if kernel.shape[1] != num_classes:
        raise ValueError("kernel and bias do not belong together")
    check_rows(indptr, indices, counts, labels, tag_indptr, tag_indices, chosen)
    scales = row_scales(indptr, counts, chosen, unit_norm)
    logits = np.empty(num_classes, np.float32)
    right = np.zeros(chosen.size, np.uint8)
    found = np.zeros(chosen.size, np.uint8)
    gain = np.zeros(chosen.size, np.float64)
    for k in range(chosen.size):
        example = chosen[k]
        row_logits(logits, indptr, indices, counts, example, scales[k], kernel, bias)
        right[k] = classes_ahead(logits, labels[example]) == 0
        reached = best = 0.0
        for t in range(tag_indptr[example], tag_indptr[example + 1]):
            place = t - tag_indptr[example]
            if place < TOP:
                best += 1.0 / math.log2(2.0 + place)
            ahead = classes_ahead(logits, tag_indices[t])
            if ahead < TOP:
                found[k] += 1
                reached += 1.0 / math.log2(2.0 + ahead)
        if best > 0.0:
            gain[k] = reached / best
    return right, found, gain
