"""How well a linear model does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse
from scipy.special import log_expit, softmax

from fedpriv.training.evaluate import Metrics, Total
from fedpriv.training.per_example.linear.checks import (
    CHUNK,
    checked_labels,
    kernel_and_bias,
    nonempty,
)
from fedpriv.training.per_example.sparse_sums import SparseRows
from fedpriv.tree import Params


def linear_class_scores(
    params: Params, x: sparse.csr_matrix, y: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of examples: probabilities, float64 `(n, classes)`, and labels, int64 `(n,)`.

    Args:
        params: As of `linear_metrics`; a model by its "weight" has two classes.
        x: CSR `(n, d)`.
        y: Classes `(n,)`.

    Raises:
        ValueError: As `linear_metrics`.
    """
    rows = SparseRows.of(x)
    binary = "weight" in params
    num_classes = 1 if binary else params["kernel"].shape[1]
    shape = (rows.num_inputs, num_classes)
    kernel, bias = kernel_and_bias(params, "weight" if binary else "kernel", shape)
    labels = checked_labels(y, rows.num_examples, max(num_classes, 2))
    for start in range(0, rows.num_examples, CHUNK):
        part = np.arange(start, min(start + CHUNK, rows.num_examples))
        logits = rows.logits(part, kernel, bias).astype(np.float64)
        if binary:  # of equal probabilities the lowest class, as a logit of 0 says
            logits = np.hstack([np.zeros_like(logits), logits])
        yield softmax(logits, axis=1), labels[part].astype(np.int64)


def linear_metrics(params: Params, x: sparse.csr_matrix | SparseRows, y: np.ndarray) -> Metrics:
    """Return "accuracy" and "loss", in nats and float64, of a model on sparse inputs.

    Args:
        params: Of `LogisticGradients` (by its "weight") or `SoftmaxGradients` (by its "kernel").
        x: CSR `(n, d)`; or its `SparseRows`, made once where it is measured often.
        y: Classes `(n,)`. Ties go to the lowest class.

    Raises:
        ValueError: If there are no examples, or shapes or labels do not fit.
    """
    rows = x if isinstance(x, SparseRows) else SparseRows.of(x)
    binary = "weight" in params
    num_classes = 1 if binary else params["kernel"].shape[1]
    shape = (rows.num_inputs, num_classes)
    kernel, bias = kernel_and_bias(params, "weight" if binary else "kernel", shape)
    labels = checked_labels(y, rows.num_examples, max(num_classes, 2))
    everything = nonempty(np.arange(rows.num_examples))
    right, loss = 0, 0.0
    for start in range(0, len(everything), CHUNK):
        part = everything[start : start + CHUNK]
        logits, truth = rows.logits(part, kernel, bias), labels[part]
        if binary:
            logit = logits[:, 0]
            right += int(np.count_nonzero((logit > 0) == (truth == 1)))
            loss -= float(log_expit(np.where(truth == 1, logit, -logit)).sum())
        else:
            right += int(np.count_nonzero(logits.argmax(axis=1) == truth))
            peak = logits.max(axis=1)
            with np.errstate(invalid="ignore"):  # diverged params have a loss that is NaN
                total = np.exp(logits - peak[:, np.newaxis]).sum(axis=1)
                loss += float((np.log(total) + peak - logits[np.arange(len(part)), truth]).sum())
    number = len(everything)
    totals = {"accuracy": Total(sum=right, count=number), "loss": Total(sum=loss, count=number)}
    return Metrics(totals=totals, num_examples=number)
