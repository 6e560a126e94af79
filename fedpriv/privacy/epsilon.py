"""Epsilon: a privacy guarantee as a value, and how its numbers are printed, always rounded up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fedpriv.mechanisms.event import Relation
from fedpriv.ranges import finite_float, positive_int


def rounded_up(value: float, digits: int) -> float:
    """Return the least decimal of so many digits that is not below the value.

    A printed bound is still a bound. What is a part in 10⁹ above a decimal is taken for it.

    >>> rounded_up(43.5359, 1), rounded_up(8.0000000001, 2)
    (43.6, 8.0)
    """
    scaled = value * 10.0**digits
    if math.isinf(scaled) and math.isfinite(value):  # so large a number has no decimals
        return value
    # Below one part in 10⁹ an excess is binary rounding, not privacy loss.
    return math.ceil(scaled * (1 - 1e-9)) / 10.0**digits


def rounded_up_to(value: float, figures: int) -> float:
    """Return the least decimal of so many significant figures that is not below the value.

    >>> rounded_up_to(43.5359, 3), rounded_up_to(0.98761, 3), rounded_up_to(0.0, 3)
    (43.6, 0.988, 0.0)
    """
    if not 1e-290 < value < math.inf:  # nor is there such a decimal of 0, NaN or what is next to 0
        return value
    return rounded_up(value, figures - 1 - math.floor(math.log10(value)))


def format_delta(delta: float) -> str:
    """Return a δ in three significant digits, rounded up, as its ε holds at no smaller δ.

    >>> format_delta(6.1612e-05), format_delta(1 / 400), format_delta(0.0)
    ('6.17e-05', '0.0025', '0')
    """
    return f"{rounded_up_to(delta, 3):.3g}"


def privacy_line(
    *, value: float, delta: float, unit: str, relation: str, accountant: str, mode: str
) -> str:
    """Return the ε of a run in one line, with its δ, unit, relation, accountant and mode of keys.

    >>> privacy_line(value=2.5725, delta=1e-3, unit="user", relation="add-remove",
    ...              accountant="PLD", mode="simulation")
    'ε = 2.573 at δ = 0.001 (user-level, add-remove, PLD, simulation)'
    """
    shown = "∞" if math.isinf(value) else f"{rounded_up(value, 3):,.3f}"
    return (
        f"ε = {shown} at δ = {format_delta(delta)} ({unit}-level, {relation}, {accountant}, {mode})"
    )


def target_label(target: float | None) -> str:
    """Return the ε that was asked for as a label, as it was given; None is training without noise.

    >>> target_label(2.0), target_label(0.5), target_label(None)
    ('ε 2', 'ε 0.5', 'not private')
    """
    return "not private" if target is None else f"ε {target:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon:
    """An ε with its δ, neighbouring relation, unit and accountant.

    Attributes:
        value: The headline ε; infinite when there is no guarantee.
        delta: Its δ.
        relation: The neighbouring relation.
        accountant: Who computed `value`: "PLD", "RDP", "composition" for a sum of pure ε, or "none"
            when it is infinite by nature.
        rdp: The RDP value of the same charges, or None where RDP prices no such event.
        unit: What one neighbour is.
        reason: Why the value is infinite, else empty.
        claimed: Whether part of it is only what a file says of itself
            (`fedpriv.privacy.statement.coverage`).
        not_covered: What it does not cover, in plain phrases, where that is known
            (`fedpriv.privacy.statement.coverage`); printed with it.
    """

    value: float
    delta: float
    relation: Relation
    accountant: str
    rdp: float | None = None
    unit: str = "user"
    reason: str = ""
    claimed: bool = False
    not_covered: tuple[str, ...] = field(default=(), compare=False)

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        if math.isinf(self.value):
            shown, added = "∞", f"; {self.reason}" if self.reason else ""
        else:
            shown = f"{rounded_up(self.value, 4):,.4f}"
            added = (
                f"; RDP {format_rdp(self.rdp)}"
                if self.rdp is not None and self.accountant != "RDP"
                else ""
            )
        return (
            f"ε = {shown} at δ = {format_delta(self.delta)} ({self.relation.value}, "
            f"per {self.unit}, by {self.accountant}{added})"
            + (f", does NOT cover: {'; '.join(self.not_covered)}" if self.not_covered else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; an infinite ε is null, with its `reason`."""
        finite = math.isfinite(self.value)
        return {
            "epsilon": self.value if finite else None,
            "epsilon_rdp": self.rdp if self.rdp is not None and math.isfinite(self.rdp) else None,
            "delta": self.delta,
            "relation": self.relation.value,
            "unit": self.unit,
            "accountant": self.accountant,
            **({} if finite else {"reason": self.reason}),
            **({"claimed": True} if self.claimed else {}),
        }


def default_delta(num_users: int) -> float:
    """Return δ = n^-1.1, below one chance in n that a user is exposed outright.

    Raises:
        ValueError: If there are not at least two users.

    >>> f"{default_delta(400):.4g}"
    '0.001373'
    """
    users = positive_int("num_users", num_users)
    if users < 2:
        raise ValueError("one user has no default δ; give delta, such as 1e-5")
    return finite_float("delta", float(users) ** -1.1)


LARGE_DELTA = 0.5
"""Share of 1/n from which a δ is remarked; the default, n^-1.1, is below it from 1,024 users on."""


def delta_caution(delta: float, number: int, unit: str) -> str:
    """Return what a δ allows, the default too, in a sentence; "" where it is below half of 1/n.

    Args:
        delta: δ.
        number: How many it protects, n.
        unit: One of them, such as "user".

    >>> delta_caution(default_delta(233), 233, "user").partition(":")[0]
    'the default δ = 0.00249, 233^-1.1, is 0.58 of 1/n = 0.00429'
    """
    share = delta * number
    if share < LARGE_DELTA:
        return ""
    said = f"δ = {format_delta(delta)} is"
    if share >= 1.0 - 1e-9:
        return (
            f"{said} not below 1/n = {1.0 / number:.3g}: it allows publishing one {unit} outright"
        )
    small = f"delta=1e{math.floor(math.log10(0.1 / number))}"
    if delta == default_delta(number):
        said = f"the default {said.removesuffix(' is')}, {number}^-1.1, is"
    return (
        f"{said} {share:.2f} of 1/n = {1.0 / number:.3g}: it allows publishing one {unit} outright "
        f"with probability {share:.2f}; give a smaller one, such as {small} (-s {small})"
    )


def format_epsilon(value: float) -> str:
    """Return an ε in three significant digits or in whole numbers, rounded up.

    >>> format_epsilon(7.991), format_epsilon(1234.2), format_epsilon(math.inf), format_epsilon(0.0)
    ('8.00', '1,235', '∞', '0')
    """
    if math.isinf(value) or value <= 0.0:
        return "∞" if value > 0.0 else "0"
    digits = max(2 - math.floor(math.log10(value)), 0)
    return f"{rounded_up(value, digits):,.{digits}f}"


def format_rdp(value: float) -> str:
    """Return the RDP value of an ε, which is printed next to it, to four decimals, rounded up.

    >>> format_rdp(10.10921), format_rdp(math.inf)
    ('10.1093', '∞')
    """
    return "∞" if math.isinf(value) else f"{rounded_up(value, 4):,.4f}"


def format_odds_factor(value: float) -> str:
    """Return e^ε in brackets after a space, or "" from ε = 20 on.

    >>> format_odds_factor(0.5), format_odds_factor(5.0), format_odds_factor(30.0)
    (' (about 1.6)', ' (about 148)', '')
    """
    if value >= 20.0:
        return ""
    times = math.exp(value)
    return f" (about {times:,.0f})" if times >= 10.0 else f" (about {times:.2g})"


def format_percent(share: float) -> str:
    """Return a share as a percentage.

    >>> format_percent(0.906)
    '90.6 %'
    """
    return f"{100.0 * share:.1f} %"


def format_posterior(value: float) -> str:
    """Return the posterior of even odds under ε: e^ε / (1 + e^ε).

    >>> format_posterior(0.0), format_posterior(6.0), format_posterior(12.0)
    ('50 %', '99.75 %', 'all but fully')
    """
    certain = 100.0 / (1.0 + math.exp(-value))
    if certain < 99.0:
        return f"{certain:.0f} %"
    return f"{certain:.2f} %" if certain < 99.99 else "all but fully"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """Share of a budget that is spent.

    Attributes:
        amount: So far, in the budget's own units: charges, rows, or ρ.
        total: All that there is.
        text: Both in words.
    """

    amount: float
    total: float
    text: str
