"""The old moments bound: orders up to 32, and of those the last alone. An artefact, shown as one.

The moments accountant (Abadi et al. 2016, Theorem 2) takes the least over orders λ of

    T D_{λ+1} + ln(1/δ) / λ,

and early code stopped at λ = 32. At δ = 1e-8 the second part alone is ln(1e8)/32 = 0.5756, whatever
the noise: a single step of SGD "costs" that much, and no run at all fits into a smaller ε. Nothing
here is an ε of this project: `fedpriv.privacy.accounting` says what such runs truly cost.

>>> round(last_order(0.0055, 1e6, 1, 1e-8), 4)
0.5756
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

LAST = 32


def last_order(sampling_prob: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """Return T D_{33} + ln(1/δ)/32 of Poisson-subsampled Gaussians.

    Reference: Mironov, Talwar and Zhang (2019), Section 3.3, for whole orders.
    """
    order = LAST + 1
    k = np.arange(order + 1)
    log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    drawn = log_binomial + k * math.log(sampling_prob) + (order - k) * math.log1p(-sampling_prob)
    moment = float(np.asarray(logsumexp(drawn + (k * k - k) / (2.0 * noise_multiplier**2))))
    return steps * max(0.0, moment) / LAST + math.log(1.0 / delta) / LAST


def sigma_of_last_order(
    sampling_prob: float, steps: int, epsilon: float, delta: float
) -> float | None:
    """Return the least σ of which the artefact says ε or less; None where it never does."""
    low, high = 0.3, 1e4
    if last_order(sampling_prob, high, steps, delta) > epsilon:
        return None
    for _ in range(60):
        middle = math.sqrt(low * high)
        if last_order(sampling_prob, middle, steps, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high
