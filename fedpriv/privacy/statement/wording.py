"""How a statement writes numbers, and whom it protects; no ε is printed smaller than it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.privacy.epsilon import rounded_up
from fedpriv.privacy.plans.adaptive import AnyPlan


def short(value: float) -> str:
    """Return an ε in three figures or in whole numbers, rounded up.

    >>> short(7.991), short(1234.2), short(math.inf), short(0.0)
    ('8.00', '1235', '∞', '0')
    """
    if math.isinf(value) or value <= 0.0:
        return "∞" if value > 0.0 else "0"
    digits = max(2 - math.floor(math.log10(value)), 0)
    return f"{rounded_up(value, digits):.{digits}f}"


def factor(value: float) -> str:
    """Return e^ε in brackets, after a space; nothing where it says no more than e^ε does.

    >>> factor(0.5), factor(5.0), factor(30.0)
    (' (about 1.6)', ' (about 148)', '')
    """
    if value >= 20.0:
        return ""
    times = math.exp(value)
    return f" (about {times:,.0f})" if times >= 10.0 else f" (about {times:.2g})"


def percent(share: float) -> str:
    """Return a share as a percentage.

    >>> percent(0.906)
    '90.6 %'
    """
    return f"{100.0 * share:.1f} %"


def sure(value: float) -> str:
    """Return the posterior of even odds under ε: e^ε / (1 + e^ε).

    >>> sure(0.0), sure(6.0), sure(12.0)
    ('50 %', '99.75 %', 'all but fully')
    """
    certain = 100.0 / (1.0 + math.exp(-value))
    if certain < 99.0:
        return f"{certain:.0f} %"
    return f"{certain:.2f} %" if certain < 99.99 else "all but fully"


def protected(plan: AnyPlan) -> str:
    """Return what a plan protects, all of them."""
    return "rostered users" if plan.unit == "user" else "private examples"


def one_of(plan: AnyPlan) -> str:
    """Return what an add-remove relation adds or removes, as the beginning of a clause."""
    if plan.unit == "user":
        return "one rostered user's records were"
    return "one example of the training set was"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a plan's unit calls a charge and what is drawn for it.

    Attributes:
        one: One of the plan's charges.
        drawn: Those who are drawn for it.
        draws: The same of several charges.
        who: Who draws them.
    """

    one: str
    drawn: str
    draws: str
    who: str


def turn_of(plan: AnyPlan) -> Turn:
    """Return the words of a plan's unit: rounds of cohorts, or steps of batches."""
    if plan.unit == "example":
        return Turn(one="step", drawn="batch", draws="batches", who="trainer")
    return Turn(one="round", drawn="cohort", draws="cohorts", who="server")
