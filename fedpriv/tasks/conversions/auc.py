"""AUC loss: how often a model ranks an example of class 0 above one of class 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from fedpriv.measures import Measure
from fedpriv.training.evaluate import Total

AUC_LOSS = Measure(name="auc_loss", label="AUC loss", higher_is_better=False)


def auc_total(scores: np.ndarray, labels: np.ndarray) -> Total:
    """Return 1 - AUC as a total over pairs of examples of different classes; ties count half.

    It counts pairs, so totals of two sets do not add up to that of both: measure a set whole.

    Args:
        scores: `(n,)`, the higher the likelier class 1.
        labels: 0 and 1 `(n,)`.

    Raises:
        ValueError: If a class has no example, or a score is NaN.
    """
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        raise ValueError(f"{ones} examples of class 1 and {zeros} of class 0; AUC needs both")
    if np.isnan(scores).any():
        raise ValueError("a score is NaN: the model diverged; lower its learning rate")
    ranks = rankdata(scores)
    ordered = float(ranks[positive].sum()) - ones * (ones + 1) / 2
    return Total(sum=ones * zeros - ordered, count=ones * zeros)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over runs of several seeds.

    Attributes:
        mean: Over them.
        variance: The unbiased sample variance: what averages of checkpoints are to lower.
        seeds: How many there were.
    """

    mean: float
    variance: float
    seeds: int


def over_seeds(figures: Sequence[float]) -> Spread:
    """Return mean and variance of one figure of runs that differ in their seed alone.

    Raises:
        ValueError: If there are fewer than two.
    """
    if len(figures) < 2:
        raise ValueError(f"{len(figures)} runs have no variance; give at least 2 seeds")
    found = np.asarray(figures, np.float64)
    return Spread(mean=float(found.mean()), variance=float(found.var(ddof=1)), seeds=len(found))
