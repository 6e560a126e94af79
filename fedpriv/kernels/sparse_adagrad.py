"""A pass of AdaGrad over softmax regression on sparse inputs, in place.

For models trained in the open: on public examples, or without privacy to compare with. Every
example is a step, and only the rows of its own inputs are touched.

Reference: Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011), diagonal form.
"""

# Types within compiled code are the compiler's: those of the signatures above each function.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

import numpy as np
from numba import float64, njit, types

from fedpriv.kernels.bits import FLOAT32, INT32, INT64
from fedpriv.kernels.sparse_softmax import softmax_residual

_F = np.float32
_VECTOR = types.Array(types.float32, 1, "C")
_MATRIX = types.Array(types.float32, 2, "C")


@njit(
    [
        (
            INT64, INT32, FLOAT32, INT32, INT64, _MATRIX, _VECTOR, _MATRIX, _VECTOR, float64,
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
    order: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    kernel_squares: np.ndarray,
    bias_squares: np.ndarray,
    learning_rate: float,
) -> float:
    """Step once by each example of `order`; kernel, bias and their sums of squares change.

    Args:
        indptr: int64 `(n + 1,)`, where each example starts in `indices` and `values`.
        indices: int32, inputs.
        values: float32, their values.
        labels: int32 `(n,)`.
        order: int64, examples in the order of the steps.
        kernel: float32 `(num_inputs, num_classes)`.
        bias: float32 `(num_classes,)`.
        kernel_squares: float32, as the kernel; above 0 everywhere.
        bias_squares: float32, as the bias; above 0 everywhere.
        learning_rate: of AdaGrad.

    Returns:
        The sum of `0 * logit`: not zero, but NaN, if any logit was not finite.

    Raises:
        ValueError: If an input or a label is outside the kernel.
    """
    num_classes = kernel.shape[1]
    rate = _F(learning_rate)
    residual = np.empty(num_classes, np.float32)
    unsound = _F(0.0)
    for example in order:
        if labels[example] < 0 or labels[example] >= num_classes:
            raise ValueError("a label lies outside the classes")
        for c in range(num_classes):
            residual[c] = bias[c]
        for j in range(indptr[example], indptr[example + 1]):
            if indices[j] < 0 or indices[j] >= kernel.shape[0]:
                raise ValueError("an input lies outside the kernel")
            value, row = values[j], kernel[indices[j]]
            for c in range(num_classes):
                residual[c] += value * row[c]
        unsound += softmax_residual(residual, labels[example], _F(1.0))
        for c in range(num_classes):
            gradient = residual[c]
            bias_squares[c] += gradient * gradient
            bias[c] -= rate * gradient / np.sqrt(bias_squares[c])
        for j in range(indptr[example], indptr[example + 1]):
            value, row, squares = values[j], kernel[indices[j]], kernel_squares[indices[j]]
            for c in range(num_classes):
                gradient = value * residual[c]
                squares[c] += gradient * gradient
                row[c] -= rate * gradient / np.sqrt(squares[c])
    return unsound
