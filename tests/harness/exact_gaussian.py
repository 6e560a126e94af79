"""The exact privacy curve of one Gaussian answer."""

import math

from scipy import stats


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """The least δ at ε of noise of σ sensitivities: Balle and Wang (2018), Theorem 5."""
    left, right = 0.5 / sigma - epsilon * sigma, -0.5 / sigma - epsilon * sigma
    return float(stats.norm.cdf(left)) - math.exp(epsilon + stats.norm.logcdf(right))
