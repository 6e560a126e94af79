"""Softmax regression on dense rows, fused: local SGD of one user.

A user has few distinct rows, often one, so a matrix product's start costs more than its arithmetic:
one call does all steps. Loops run over classes innermost, so that every number is added in one
order whatever the compiler vectorises.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import numpy as np
from numba import float64, njit

from fedpriv.kernels.bits import FLOAT32, INT64, MATRIX32
from fedpriv.kernels.sparse_softmax import scaled_softmax

_F = np.float32


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of float32 matrices `(a, b)` and `(b, c)`."""
    out = np.zeros((left.shape[0], right.shape[1]), np.float32)
    whole = left.shape[1] - left.shape[1] % 4
    for a in range(left.shape[0]):
        row = out[a]
        for b in range(0, whole, 4):
            l0, l1, l2, l3 = left[a, b], left[a, b + 1], left[a, b + 2], left[a, b + 3]
            r0, r1, r2, r3 = right[b], right[b + 1], right[b + 2], right[b + 3]
            for c in range(row.size):
                row[c] += (l0 * r0[c] + l1 * r1[c]) + (l2 * r2[c] + l3 * r3[c])
        for b in range(whole, left.shape[1]):
            factor, of = left[a, b], right[b]
            for c in range(row.size):
                row[c] += factor * of[c]
    return out


@njit(
    [(MATRIX32, INT64, INT64, INT64, INT64, MATRIX32, FLOAT32, float64, float64)],
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath={"contract"},
)
def train(
    x: np.ndarray,
    place: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    kernel: np.ndarray,
    multiplier: np.ndarray,
    learning_rate: float,
    pull: float,
) -> tuple[np.ndarray, float]:
    """Train one user; its update is kept as a product of its rows and residuals until the end.

    Args:
        x: float32 `(m, d)`, distinct rows.
        place: int64 `(n,)`, the row of each example.
        labels: int64 `(n,)`.
        order: int64, the examples in the order of the steps, all epochs.
        starts: int64 `(steps + 1,)`, where each step starts in `order`.
        kernel: float32 `(d, num_classes)`.
        multiplier: float32, 1/A for each row of the kernel at every step; empty for none.
        learning_rate: Local step size.
        pull: Share of the change that every step takes back (the proximal term).

    Returns:
        The kernel's change, float32, and a number that is not 0 if any logit was not finite.

    Raises:
        ValueError: If a place, label or step is outside the arrays, or these do not fit together.
    """
    (number, width), num_classes = x.shape, kernel.shape[1]
    if width != kernel.shape[0] or place.size != labels.size:
        raise ValueError("arrays of one user, or of the params, differ in length")
    if multiplier.size != 0 and multiplier.size != width:
        raise ValueError("the multiplier has not one number for each row of the kernel")
    for k in range(place.size):
        if place[k] < 0 or place[k] >= number:
            raise ValueError("an example lies outside the rows")
        if labels[k] < 0 or labels[k] >= num_classes:
            raise ValueError("a label lies outside the classes")
    for k in range(order.size):
        if order[k] < 0 or order[k] >= place.size:
            raise ValueError("a step has an example outside the user")
    for step in range(starts.size - 1):
        if starts[step] < 0 or starts[step + 1] <= starts[step] or starts[step + 1] > order.size:
            raise ValueError("a step has no examples, or lies outside their order")
    scaled = np.empty((width, number), np.float32)
    for m in range(number):
        for d in range(width):
            scaled[d, m] = x[m, d] * multiplier[d] if multiplier.size else x[m, d]
    before = _product(x, kernel)
    residual = np.zeros((number, num_classes), np.float32)
    gram = _product(x, scaled) if starts.size > 2 else np.zeros((0, 0), np.float32)
    counts = np.zeros(number, np.int64)
    unsound = _F(0.0)
    for step in range(starts.size - 1):
        first, last = starts[step], starts[step + 1]
        scale = _F(-learning_rate / (last - first))
        logits = before + _product(gram, residual) if step else before.copy()
        counts[:] = 0
        for k in range(first, last):
            counts[place[order[k]]] += 1
        for m in range(number):
            # Rows of later steps are looked at too: a logit that is not finite is the user's end.
            unsound += scaled_softmax(logits[m], scale * _F(counts[m]))
            for c in range(num_classes):
                kept = residual[m, c] * _F(1.0 - pull) if pull != 0.0 else residual[m, c]
                residual[m, c] = kept + logits[m, c]
        for k in range(first, last):
            residual[place[order[k]], labels[order[k]]] -= scale
    return _product(scaled, residual), unsound
