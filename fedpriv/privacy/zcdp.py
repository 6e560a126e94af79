"""Conversions between ρ-zCDP and (ε, δ): Bun and Steinke's, and a tighter one.

ρ-zCDP says that the Rényi divergence of every order α is at most αρ. Bun and Steinke (2016,
Proposition 1.3) turn that into ε = ρ + 2 √(ρ ln(1/δ)); Canonne, Kamath and Steinke (2020,
Proposition 12) into the least over α > 1 of

    ε = αρ + ln(1 - 1/α) + (ln(1/δ) - ln α) / (α - 1),

which is never larger. Either holds; papers state budgets by the first.

>>> f"{rho_bs16(1.0, 1e-5):.6f} {rho_of_epsilon(1.0, 1e-5):.6f}"
'0.020820 0.030557'
"""

from __future__ import annotations

import math

from fedpriv.privacy.event import Event, Relation
from fedpriv.ranges import positive_float, probability

# Orders between 1 + e^-15 and 1 + e^35: where ρ is below e^-60 nothing is left to minimise.
_FIRST, _LAST = -15.0, 35.0
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def epsilon_bs16(rho: float, delta: float) -> float:
    """Return ρ + 2 √(ρ ln(1/δ)).

    Raises:
        ValueError: If ρ is not positive, or δ not strictly between 0 and 1.
    """
    rho, left = positive_float("rho", rho), _log_inverse(delta)
    return rho + 2.0 * math.sqrt(rho * left)


def rho_bs16(epsilon: float, delta: float) -> float:
    """Return the ρ of which `epsilon_bs16` makes this ε: (√(ln(1/δ) + ε) - √ln(1/δ))².

    Raises:
        ValueError: If ε is not positive, or δ not strictly between 0 and 1.
    """
    epsilon, left = positive_float("epsilon", epsilon), _log_inverse(delta)
    # The difference of the two roots, without their cancellation.
    return (epsilon / (math.sqrt(left + epsilon) + math.sqrt(left))) ** 2


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Return the ε of ρ-zCDP, minimised over every order.

    Guarantees:
        * ρ-zCDP is (ε, δ)-DP: each order gives a valid ε, so that an inexact minimum is one too.

    Raises:
        ValueError: If ρ is not positive, or δ not strictly between 0 and 1.
    """
    rho, left = positive_float("rho", rho), _log_inverse(delta)

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)  # α - 1
        order = 1.0 + excess
        return order * rho + log_excess - math.log(order) + (left - math.log(order)) / excess

    # The minimum lies where αρ and ln(1/δ)/(α - 1) are alike, or near order 1 where δ is large.
    low, high = _FIRST, _LAST
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    found = [bound(point) for point in inner]
    for _ in range(80):
        if found[0] <= found[1]:
            high, inner[1], found[1] = inner[1], inner[0], found[0]
            inner[0] = high - _GOLDEN * (high - low)
            found[0] = bound(inner[0])
        else:
            low, inner[0], found[0] = inner[0], inner[1], found[1]
            inner[1] = low + _GOLDEN * (high - low)
            found[1] = bound(inner[1])
    # The plain conversion is that of one order, so it is above the minimum but for rounding.
    return max(0.0, min(*found, epsilon_bs16(rho, delta)))


def rho_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest ρ whose `epsilon_of_rho` does not exceed this ε.

    Raises:
        ValueError: If ε is not positive, or δ not strictly between 0 and 1.
    """
    epsilon = positive_float("epsilon", epsilon)
    low = rho_bs16(epsilon, delta)
    high = 2.0 * low
    while epsilon_of_rho(high, delta) <= epsilon:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if epsilon_of_rho(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def _log_inverse(delta: float) -> float:
    return -math.log(probability("delta", delta))


def rho_of(event: Event, relation: Relation) -> float:
    """Return the ρ of one charge: 1/(2σ²) of a Gaussian, ε²/2 of a pure answer, or its own.

    Under replace-one all of them are four times as much: a replaced user is two that are there or
    not (Bun and Steinke 2016, Proposition 1.9).

    Raises:
        ValueError: If it has none.
    """
    moved = relation.moved
    if event.rho is not None:
        return moved**2 * event.rho
    if event.epsilon is not None:
        return 0.5 * (moved * event.epsilon) ** 2
    if event.kind != "gaussian":
        raise ValueError(f"a {event.kind} charge has no ρ; let everybody take part")
    return 0.5 * (moved / event.sigma) ** 2
