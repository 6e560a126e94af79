"""Losses of linear models along a line: logits at two points give those at every one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit, log_expit

Losses = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From logits float64 (n, k) and labels int64 (n,) to losses float64 (n,)."""


def losses_on_line(
    here: np.ndarray, change: np.ndarray, sizes: Sequence[float], labels: np.ndarray, losses: Losses
) -> np.ndarray:
    """Return losses at logits here + size · change, float64 (n, sizes)."""
    found = [losses(here + size * change, labels) for size in sizes]
    return np.stack(found, axis=1) if found else np.zeros((len(labels), 0))


def logistic_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return log(1 + e^-yz) of labels 0 and 1, y = ±1."""
    return -log_expit(_signs(labels) * logits[:, 0])


def hinge_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return max(0, 1 - yz) of labels 0 and 1, y = ±1."""
    return np.maximum(0.0, 1.0 - _signs(labels) * logits[:, 0])


def huber_losses(width: float) -> Losses:
    """Return the Huber approximation of the hinge: quadratic within `width` of the corner.

    Reference: Chapelle (2007), Section 2.1; Chaudhuri et al. (2011), Corollary 13.
    """

    def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        margin = _signs(labels) * logits[:, 0]
        near = (1.0 + width - margin) ** 2 / (4.0 * width)
        return np.where(
            margin > 1.0 + width, 0.0, np.where(margin < 1.0 - width, 1.0 - margin, near)
        )

    return losses


def softmax_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of classes from 0; infinite logits have none."""
    peak = logits.max(axis=1, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        total = np.exp(logits - peak[:, np.newaxis]).sum(axis=1)
        return np.log(total) + (peak - logits[np.arange(len(labels)), labels])


def one_vs_all_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return Σ_j log(1 + e^-yz_j) of classes from 0: k log-losses, y = 1 for the own class."""
    found = -log_expit(-logits)
    examples = np.arange(len(labels))
    found[examples, labels] = -log_expit(logits[examples, labels])
    return found.sum(axis=1)


def logistic_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the log-loss's derivative by the logit, float64 (n, 1)."""
    sign = (1.0 - 2.0 * labels)[:, np.newaxis]
    return sign * expit(sign * logits)  # without the cancellation of expit(logit) - 1


def one_vs_all_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the derivative of `one_vs_all_losses` by the logits, float64 (n, k)."""
    found = expit(logits)
    examples = np.arange(len(labels))
    found[examples, labels] = -expit(-logits[examples, labels])
    return found


def softmax_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross-entropy's derivative by the logits, float64 (n, k)."""
    with np.errstate(invalid="ignore"):  # infinite logits: NaN, and so a zero contribution
        shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        shares /= shares.sum(axis=1, keepdims=True)
        examples = np.arange(len(labels))
        shares[examples, labels] = 0.0
        shares[examples, labels] = -shares.sum(axis=1)  # without the cancellation of p - 1
    return shares


def hinge_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the hinge's derivative by the logit, float64 (n, 1); 0 at the corner."""
    sign = _signs(labels)[:, np.newaxis]
    residual = np.where(sign * logits < 1.0, -sign, 0.0)
    return np.where(np.isfinite(logits), residual, np.nan)


def huber_residual(width: float) -> Losses:
    """Return the derivative of `huber_losses` by the logit, float64 (n, 1)."""

    def residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        sign = _signs(labels)[:, np.newaxis]
        slope = np.clip((1.0 + width - sign * logits) / (2.0 * width), 0.0, 1.0)
        return -sign * slope

    return residual


def _signs(labels: np.ndarray) -> np.ndarray:
    return 2.0 * labels - 1.0
