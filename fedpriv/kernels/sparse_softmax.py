"""Softmax regression on bags of words, fused: local SGD of users, and AdaGrad in the open.

One call trains a block of users, one after another: rows of the global kernel are read where they
lie, and only the user's own change of its own rows is kept, so nothing dense is made and no batch
is gathered. Everything depends on the user's examples, its order and the params alone.

A pass of AdaGrad (Duchi, Hazan and Singer 2011, diagonal form) is for models trained in the open,
on public examples or without privacy: every example is a step, on the rows of its own inputs.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import math

import numpy as np
from numba import boolean, float64, njit, types

from fedpriv.kernels.bits import FLOAT32, INT32, INT64, MATRIX32, UINT8, UINT16, as_float32

_F, _I = np.float32, np.int32
_VECTOR = types.Array(types.float32, 1, "C")
_MATRIX = types.Array(types.float32, 2, "C")
# Below this float32's exponential is under 1e-37, and the bit pattern made here would wrap.
_LOWEST = np.float32(-86.0)


@njit(nogil=True, cache=True, fastmath={"reassoc", "nnan", "nsz"})
def _largest(values: np.ndarray) -> float:
    largest = values[0]
    for c in range(values.size):
        largest = max(largest, values[c])
    return largest


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def scaled_softmax(logits: np.ndarray, scale: float) -> float:
    """Turn logits, float32 `(num_classes,)`, into `scale * softmax(logits)`, in place.

    Returns:
        The sum of `0 * logit`: not zero, but NaN, if any logit was not finite.
    """
    peak = _largest(logits)
    total = sound = _F(0.0)
    for c in range(logits.size):
        sound += logits[c] * _F(0.0)
        x = max(logits[c] - peak, _LOWEST)
        # exp(x) = 2^k exp(r) with |r| <= log(2)/2, and a polynomial accurate to single precision.
        k = _I(x * _F(1.44269504) - _F(0.5))
        power = _F(k)
        r = (x - power * _F(0.693359375)) - power * _F(-2.12194440e-4)
        y = _F(1.9875691500e-4)
        y = y * r + _F(1.3981999507e-3)
        y = y * r + _F(8.3334519073e-3)
        y = y * r + _F(4.1665795894e-2)
        y = y * r + _F(1.6666665459e-1)
        y = y * r + _F(5.0000001201e-1)
        y = y * (r * r) + r + _F(1.0)
        value = as_float32(_I((k + _I(127)) << _I(23))) * y
        logits[c] = value
        total += value
    factor = scale / total
    for c in range(logits.size):
        logits[c] *= factor
    return sound


@njit(nogil=True, cache=True, error_model="numpy")
def softmax_residual(logits: np.ndarray, label: int, scale: float) -> float:
    """Turn one example's logits into `scale * (softmax(logits) - onehot(label))`, in place.

    Args:
        logits: float32 `(num_classes,)`.
        label: The true class.
        scale: float32, minus the learning rate over the batch's size.

    Returns:
        As `scaled_softmax`.
    """
    sound = scaled_softmax(logits, scale)
    logits[label] -= scale
    return sound


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _write_logits(
    out: np.ndarray, indices: np.ndarray, values: np.ndarray, kernel: np.ndarray, bias: np.ndarray
) -> None:
    """Write the logits of one example.

    Raises:
        ValueError: If an input lies outside the kernel.
    """
    for c in range(out.size):
        out[c] = bias[c]
    for j in range(indices.size):
        if indices[j] < 0 or indices[j] >= len(kernel):
            raise ValueError("an input lies outside the kernel")
        value, row = values[j], kernel[indices[j]]
        for c in range(out.size):
            out[c] += value * row[c]


@njit(nogil=True, cache=True)
def _check_columns(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
) -> None:
    """Refuse examples outside their columns, beyond which compiled loops would read."""
    if values.size != indices.size or bias.size != kernel.shape[1]:
        raise ValueError("arrays of the examples, or of the params, differ in length")
    last = np.int64(0)
    for k in range(indptr.size):
        if indptr[k] < last or indptr[k] > indices.size:
            raise ValueError("an example lies outside the columns")
        last = indptr[k]


@njit([(INT64, INT32, FLOAT32, MATRIX32, FLOAT32)], nogil=True, cache=True, error_model="numpy")
def logits_of(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """Return the logits of examples, float32 `(n, num_classes)`.

    Args:
        indptr: int64 `(n + 1,)`, where each example starts in `indices` and `values`.
        indices: int32, inputs.
        values: float32, their values.
        kernel: float32 `(num_inputs, num_classes)`.
        bias: float32 `(num_classes,)`.

    Raises:
        ValueError: If an input is outside the kernel, or arrays do not fit together.
    """
    _check_columns(indptr, indices, values, kernel, bias)
    found = np.empty((max(indptr.size - 1, 0), bias.size), np.float32)
    for k in range(len(found)):
        first, last = indptr[k], indptr[k + 1]
        _write_logits(found[k], indices[first:last], values[first:last], kernel, bias)
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def _row_scales(
    indptr: np.ndarray, counts: np.ndarray, order: np.ndarray, unit_norm: bool
) -> np.ndarray:
    """Return what word counts are multiplied by to be inputs, float32, one for each of `order`."""
    scales = np.zeros(order.size, np.float32)
    for k in range(order.size):
        total = 0.0
        for j in range(indptr[order[k]], indptr[order[k] + 1]):
            count = np.float64(counts[j])
            total += count * count if unit_norm else count
        if total != 0.0:
            scales[k] = _F(1.0 / (math.sqrt(total) if unit_norm else total))
    return scales


@njit(nogil=True, cache=True)
def _num_words(
    indptr: np.ndarray,
    indices: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    num_rows: int,
    num_classes: int,
) -> int:
    """Return how many words examples have; -1 if one is outside its columns or the model."""
    number = np.int64(0)
    for k in range(order.size):
        example = order[k]
        if example < 0 or example >= labels.size:
            return -1
        first, last = indptr[example], indptr[example + 1]
        if first < 0 or last < first or last > indices.size:
            return -1
        if labels[example] < 0 or labels[example] >= num_classes:
            return -1
        for j in range(first, last):
            if indices[j] < 0 or indices[j] >= num_rows:
                return -1
        number += last - first
    return number


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _train(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    scales: np.ndarray,
    steps: np.ndarray,
    position: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    multiplier: np.ndarray,
    learning_rate: float,
    change: np.ndarray,
    moved: np.ndarray,
) -> float:
    """Take one user's steps; the kernel's change on its rows and the bias's are filled in.

    Returns:
        A number that is not 0 if any logit was not finite.
    """
    num_classes, widest = moved.size, 0
    for step in range(steps.size - 1):
        widest = max(widest, steps[step + 1] - steps[step])
    residuals = np.empty((widest, num_classes), np.float32)
    unsound = _F(0.0)
    for step in range(steps.size - 1):
        first, last = steps[step], steps[step + 1]
        scale = _F(-learning_rate / (last - first))
        for k in range(first, last):
            example, logits = order[k], residuals[k - first]
            for c in range(num_classes):
                logits[c] = bias[c] + moved[c]
            for j in range(indptr[example], indptr[example + 1]):
                value = _F(counts[j]) * scales[k]
                whole = kernel[indices[j]]
                if step == 0:
                    for c in range(num_classes):
                        logits[c] += value * whole[c]
                else:
                    own = change[position[indices[j]]]
                    for c in range(num_classes):
                        logits[c] += value * (whole[c] + own[c])
            unsound += softmax_residual(logits, labels[example], scale)
        for k in range(first, last):
            example, residual = order[k], residuals[k - first]
            for c in range(num_classes):
                moved[c] += residual[c]
            for j in range(indptr[example], indptr[example + 1]):
                value = _F(counts[j]) * scales[k]
                if multiplier.size:
                    value *= multiplier[indices[j]]
                own = change[position[indices[j]]]
                for c in range(num_classes):
                    own[c] += value * residual[c]
    return unsound


@njit(
    [
        (
            INT64, INT32, c, INT32, INT64, INT64, INT64, INT64, boolean, MATRIX32, FLOAT32,
            FLOAT32, float64,
        )
        for c in (FLOAT32, UINT8, UINT16)
    ],
    nogil=True,
    cache=True,
    error_model="numpy",
)  # fmt: skip
def train(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    ends: np.ndarray,
    steps: np.ndarray,
    step_ends: np.ndarray,
    unit_norm: bool,
    kernel: np.ndarray,
    bias: np.ndarray,
    multiplier: np.ndarray,
    learning_rate: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train a block of users, each from the same kernel and bias.

    Args:
        indptr: int64 `(n + 1,)`, where each example starts in `indices` and `counts`.
        indices: int32, words.
        counts: float32, uint8 or uint16, occurrences.
        labels: int32 `(n,)`.
        order: int64, the examples in the order of the steps, all epochs, user after user.
        ends: int64 `(users + 1,)`, where each user's part of `order` starts, and the end.
        steps: int64, where each step of a user starts in its own part, and the end of the last.
        step_ends: int64 `(users + 1,)`, where each user's part of `steps` starts, and the end.
        unit_norm: Whether rows of inputs have l2 norm 1; else they sum to 1.
        kernel: float32 `(num_words, num_classes)`.
        bias: float32 `(num_classes,)`.
        multiplier: float32, 1/A for each word at every step; empty for none.
        learning_rate: Local step size.

    Returns:
        All users' rows (int64, increasing within a user), where each user's start (users + 1,), the
        kernel's change on them, and the bias's change `(users, num_classes)` (float32): NaN of a
        user whose examples do not fit or whose logits were not all finite.

    Raises:
        ValueError: If arrays do not fit together.
    """
    num_rows, num_classes = kernel.shape
    if counts.size != indices.size or indptr.size != labels.size + 1 or bias.size != num_classes:
        raise ValueError("arrays of the examples, or of the params, differ in length")
    if multiplier.size != 0 and multiplier.size != num_rows:
        raise ValueError("the multiplier has not one number for each word")
    number = ends.size - 1
    if step_ends.size != ends.size or ends[number] > order.size or step_ends[number] > steps.size:
        raise ValueError("users' parts lie outside the order of the examples")
    for u in range(number):
        size, last = ends[u + 1] - ends[u], np.int64(0)
        if ends[u] < 0 or size < 0 or step_ends[u] < 0 or step_ends[u + 1] <= step_ends[u]:
            raise ValueError("users' parts do not follow one another")
        for k in range(step_ends[u], step_ends[u + 1]):
            if steps[k] < last or steps[k] > size:
                raise ValueError("a step lies outside its user's part of the order")
            last = steps[k]
    sound, most = np.zeros(number, np.bool_), np.int64(0)
    for u in range(number):
        own = order[ends[u] : ends[u + 1]]
        words = _num_words(indptr, indices, labels, own, num_rows, num_classes)
        sound[u] = words >= 0
        most += max(words, 0)
    starts, rows = np.zeros(number + 1, np.int64), np.empty(most, np.int64)
    seen = np.full(num_rows, -1, np.int64)
    for u in range(number):
        last = starts[u]
        if sound[u]:
            for example in order[ends[u] : ends[u + 1]]:
                for j in range(indptr[example], indptr[example + 1]):
                    if seen[indices[j]] != u:
                        seen[indices[j]] = u
                        rows[last] = indices[j]
                        last += 1
            rows[starts[u] : last] = np.sort(rows[starts[u] : last])
        starts[u + 1] = last
    change = np.zeros((starts[number], num_classes), np.float32)
    moved = np.zeros((number, num_classes), np.float32)
    position = seen
    for u in range(number):
        if not sound[u]:
            moved[u] = np.nan
            continue
        own, first, last = order[ends[u] : ends[u + 1]], starts[u], starts[u + 1]
        for i in range(first, last):
            position[rows[i]] = i - first
        unsound = _train(
            indptr, indices, counts, labels, own, _row_scales(indptr, counts, own, unit_norm),
            steps[step_ends[u] : step_ends[u + 1]], position, kernel, bias, multiplier,
            learning_rate, change[first:last], moved[u],
        )  # fmt: skip
        if unsound != 0.0:
            moved[u] = np.nan
    return rows[: starts[number]].copy(), starts, change, moved


@njit(
    [
        (
            INT64, INT32, FLOAT32, INT32, _MATRIX, _VECTOR, _MATRIX, _VECTOR, float64,
        )
    ],
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath={"reassoc", "contract"},
)  # fmt: skip
def adagrad_pass(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    kernel_squares: np.ndarray,
    bias_squares: np.ndarray,
    learning_rate: float,
) -> float:
    """Step once by each example, in their order; params and their sums of squares change.

    Args:
        indptr: int64 `(n + 1,)`, where each example starts in `indices` and `values`.
        indices: int32, inputs.
        values: float32, their values.
        labels: int32 `(n,)`.
        kernel: float32 `(num_inputs, num_classes)`.
        bias: float32 `(num_classes,)`.
        kernel_squares: float32, as the kernel; above 0 everywhere.
        bias_squares: float32, as the bias; above 0 everywhere.
        learning_rate: of AdaGrad.

    Returns:
        The sum of `0 * logit`: not zero, but NaN, if any logit was not finite.

    Raises:
        ValueError: If an input or a label is outside the kernel, or arrays do not fit together.
    """
    num_classes = kernel.shape[1]
    _check_columns(indptr, indices, values, kernel, bias)
    if kernel_squares.shape != kernel.shape or bias_squares.size != num_classes:
        raise ValueError("params and their sums of squares differ in shape")
    if indptr.size != labels.size + 1:
        raise ValueError("there is not one label for each example")
    rate = _F(learning_rate)
    residual = np.empty(num_classes, np.float32)
    unsound = _F(0.0)
    for example in range(labels.size):
        if labels[example] < 0 or labels[example] >= num_classes:
            raise ValueError("a label lies outside the classes")
        first, last = indptr[example], indptr[example + 1]
        _write_logits(residual, indices[first:last], values[first:last], kernel, bias)
        unsound += softmax_residual(residual, labels[example], _F(1.0))
        for c in range(num_classes):
            gradient = residual[c]
            bias_squares[c] += gradient * gradient
            bias[c] -= rate * gradient / np.sqrt(bias_squares[c])
        for j in range(first, last):
            value, row, squared = values[j], kernel[indices[j]], kernel_squares[indices[j]]
            for c in range(num_classes):
                gradient = value * residual[c]
                squared[c] += gradient * gradient
                row[c] -= rate * gradient / np.sqrt(squared[c])
    return unsound
