"""How far a mean over seeds can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student


def t_half(values: Sequence[float] | np.ndarray) -> float:
    """Return half of the 95 % t-interval of a mean; infinite of a single value."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return math.inf
    quantile = float(student.ppf(0.975, len(array) - 1))
    return quantile * float(array.std(ddof=1)) / math.sqrt(len(array))
