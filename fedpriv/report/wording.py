"""How figures are written."""

from __future__ import annotations

import math

from fedpriv.measures import Measure, grouped
from fedpriv.privacy.epsilon import rounded_up
from fedpriv.untrusted_text import plain

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NOTHING = "–"


SPENT_ALL_THE_SAME = (
    "ε was spent on training and holds of the checkpoints; the returned model saw no rostered "
    "user's data."
)
"""What goes with a returned model that public examples alone made."""


def percent(value: float | None, digits: int = 1) -> str:
    r"""Return a share as a percentage, with a space that does not break.

    >>> percent(0.2484)
    '24.8\u202f%'
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{100 * value:.{digits}f}\u202f%"


def figure(measure: Measure, value: float | None) -> str:
    """Return a measure's value: a share as a percentage, another as a number.

    >>> error = Measure(name="error", label="error", higher_is_better=False)
    >>> figure(error, 0.69312), figure(error, None)
    ('0.6931', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    return percent(value) if measure.form == "share" else number(float(value))


def difference(measure: Measure, value: float | None) -> str:
    """Return a difference of two values with its sign: of shares in points.

    >>> share = Measure(name="share", label="share", form="share")
    >>> difference(share, 0.04), difference(share, -0.012), difference(share, None)
    ('+4.0 points', '−1.2 points', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = f"{100 * abs(value):.1f} points" if measure.form == "share" else number(abs(value))
    return f"{'−' if value < 0 else '+'}{size}"


def half_width(measure: Measure, value: float) -> str:
    """Return half an interval of a measure, without a unit."""
    return f"{100 * value:.1f}" if measure.form == "share" else number(float(value), 2)


def direction(measure: Measure) -> str:
    """Return a remark on which way is better where it is not upward."""
    return "" if measure.higher_is_better else "lower is better"


def epsilon(value: float | None) -> str:
    """Return an ε, rounded up: a promise is never printed smaller than it is.

    >>> epsilon(7.991), epsilon(8.0), epsilon(math.inf), epsilon(1234.2)
    ('8.00', '8.00', '∞', '1,235')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞"
    digits = 2 if value < 100 else 0
    return f"{rounded_up(value, digits):,.{digits}f}"


def number(value: object, digits: int = 4) -> str:
    """Return a number with few digits and grouped thousands; other values as text.

    >>> number(246092), number(0.00012345), number(12.5), number(None)
    ('246,092', '1.234 × 10⁻⁴', '12.5', '–')
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return grouped(value)
    if not isinstance(value, float):
        return plain(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or math.isnan(value) or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}"
