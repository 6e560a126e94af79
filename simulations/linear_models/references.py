"""Rows that every table has: the majority class, public examples alone, no privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import t as student

from fedpriv.datasets.dataset import Dataset
from fedpriv.tree import Params
from simulations.linear_models.training import accuracy

#: What a page of the reduced size says first.
REDUCED = (
    "**Reduced size: SYNTHETIC data of a few hundred rows, and two settings of each "
    "method. That it runs is all that these figures say.**"
)


def majority(data: Dataset) -> float:
    """Return the accuracy of the class that most test examples have."""
    return float(np.bincount(data.y_test).max() / len(data.y_test))


def public_only(data: Dataset, num_classes: int) -> float:
    """Return the accuracy of softmax regression on the public examples alone, which costs no ε.

    λ is the best of four on a fifth of them, kept back.
    """
    x: Any = data.x_public
    y: Any = data.y_public
    cut = max(1, len(x) // 5)
    tried = []
    for weight in (1e-4, 1e-3, 1e-2, 1e-1):
        found = softmax_fit(x[cut:], y[cut:], num_classes, weight)
        tried.append((accuracy(found, x[:cut], y[:cut]), -weight))
    weight = -max(tried)[1]
    return accuracy(softmax_fit(x, y, num_classes, weight), data.x_test, data.y_test)


def not_private(data: Dataset, num_classes: int) -> float:
    """Return the accuracy of softmax regression on the private examples, without any noise."""
    x: Any = data.x_train
    found = softmax_fit(x, data.y_train, num_classes, 1e-6)
    return accuracy(found, data.x_test, data.y_test)


def softmax_fit(x: np.ndarray, y: np.ndarray, num_classes: int, regulariser: float) -> Params:
    """Return the minimum of the mean cross-entropy + λ/2 ‖w‖², by L-BFGS, as float64."""
    rows = np.column_stack([np.asarray(x, np.float64), np.ones(len(x))])
    truth = np.eye(num_classes)[np.asarray(y)]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        kernel = flat.reshape(rows.shape[1], num_classes)
        logits = rows @ kernel
        total = np.asarray(logsumexp(logits, axis=1))
        loss = float((total - (logits * truth).sum(axis=1)).mean())
        slope = rows.T @ (np.exp(logits - total[:, None]) - truth) / len(rows)
        grown = loss + 0.5 * regulariser * float(flat @ flat)
        return grown, (slope + regulariser * kernel).ravel()

    start = np.zeros(rows.shape[1] * num_classes)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    kernel = found.x.reshape(rows.shape[1], num_classes)
    return {"kernel": kernel[:-1], "bias": kernel[-1]}


def spread(values: Sequence[float]) -> float:
    """Return half the 95 % t-interval of a mean; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values)
    return half / math.sqrt(len(values))


def shown(values: Sequence[float]) -> str:
    """Return a mean in per cent, with half its 95 % interval."""
    if not values:
        return "–"
    return f"{100 * mean(values):.1f} ± {100 * spread(values):.1f}"
