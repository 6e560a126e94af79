"""How a statement writes numbers, and whom it protects; no ε is printed smaller than it is."""

from __future__ import annotations

import math

from fedpriv.privacy.epsilon import rounded_up
from fedpriv.privacy.plans.adaptive import AnyPlan


def short(value: float) -> str:
    """Return an ε in three figures or in whole numbers, rounded up.

    >>> short(7.991), short(1234.2), short(math.inf), short(0.0)
    ('8.00', '1,235', '∞', '0')
    """
    if math.isinf(value) or value <= 0.0:
        return "∞" if value > 0.0 else "0"
    digits = max(2 - math.floor(math.log10(value)), 0)
    return f"{rounded_up(value, digits):,.{digits}f}"


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


def one_of(plan: AnyPlan) -> str:
    """Return what an add-remove relation adds or removes, as a clause."""
    if plan.unit == "user":
        return "one rostered user's records were there or not"
    if plan.unit == "owner":
        return "all training examples that one person owns were blanked or not"
    return "one example of the training set was there or not"
