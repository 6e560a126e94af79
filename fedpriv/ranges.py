"""Checks of numbers: finite, of a type, and inside a range.

Every number passes here before it reaches an accountant. dp-accounting reads a wrong number as a
good one: a NaN noise multiplier gives ε = 0, and an integer or NumPy one silently loses its scaling
(ε 1.6 where 86 is true). So nothing is handed on that is not a built-in float or int, finite and
inside its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Any, cast

_MOST = 2**53


class Range(Enum):
    """Which numbers are allowed; each says what to give instead of another."""

    ABOVE_ZERO = "must be above 0"
    AT_LEAST_ZERO = "must be at least 0"
    AT_LEAST_ONE = "must be at least 1"
    FRACTION = "must be at least 0 and below 1"
    SHARE = "must be at least 0 and at most 1"
    BETWEEN = "must be above 0 and below 1"

    def holds(self, value: float) -> bool:
        """Return whether a number is one of them; NaN is none."""
        match self:
            case Range.ABOVE_ZERO:
                return value > 0
            case Range.AT_LEAST_ZERO:
                return value >= 0
            case Range.AT_LEAST_ONE:
                return value >= 1
            case Range.FRACTION:
                return 0 <= value < 1
            case Range.SHARE:
                return 0 <= value <= 1
            case Range.BETWEEN:
                return 0 < value < 1

    def check(self, name: str, value: float) -> None:
        """Raise `ValueError` unless a number is one of them."""
        if not self.holds(value):
            raise ValueError(f"{name} {value!r} {self.value}")


def json_object(value: Any) -> Mapping[str, Any] | None:
    """Return a JSON object as a mapping by names; None of anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def finite_float(name: str, value: Any, allowed: Range | None = None) -> float:
    """Return a number as a built-in float.

    Args:
        name: What to call the number in a message.
        value: A real number of any type but bool; NumPy scalars are converted.
        allowed: The range it must be in, if any.

    Raises:
        ValueError: If it is no real number, not finite, or out of range.

    >>> import numpy as np
    >>> finite_float("σ", np.float32(0.5)), type(finite_float("σ", 1)).__name__
    (0.5, 'float')
    >>> finite_float("σ", float("nan"))
    Traceback (most recent call last):
        ...
    ValueError: σ nan is not finite; give an ordinary number
    """
    if _is_bool(value) or not isinstance(value, Real):
        raise ValueError(f"{name} {value!r} is not a number; give one such as 1.0")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        remedy = "give an ordinary number" if allowed is None else f"it {allowed.value}"
        raise ValueError(f"{name} {number} is not finite; {remedy}")
    if allowed is not None:
        allowed.check(name, number)
    return number


def positive_float(name: str, value: Any) -> float:
    """Return a number above zero as a built-in float.

    Raises:
        ValueError: As `finite_float`, or if it is zero or below.
    """
    return finite_float(name, value, Range.ABOVE_ZERO)


def whole_int(name: str, value: Any) -> int:
    """Return a whole number as a built-in int.

    Raises:
        ValueError: If it is a bool or not whole (a float such as 20.0 included).
    """
    if _is_bool(value) or not isinstance(value, Integral):
        raise ValueError(f"{name} {value!r} is not a whole number; give one such as 20")
    return int(value)


def positive_int(name: str, value: Any) -> int:
    """Return a whole number of at least 1 as a built-in int.

    Raises:
        ValueError: As `whole_int`, or if it is below 1 or above 2^53.
    """
    if type(value) is int and 1 <= value <= _MOST:  # what a ledger holds by the ten thousand
        return value
    number = whole_int(name, value)
    Range.AT_LEAST_ONE.check(name, number)
    if number > _MOST:  # its digits may be more than can be printed
        raise ValueError(f"{name} is above 2^53, where floats no longer count; give a smaller one")
    return number


def probability(name: str, value: Any) -> float:
    """Return a number strictly between 0 and 1 as a built-in float.

    Raises:
        ValueError: As `positive_float`, or if it is 1 or above.
    """
    number = positive_float(name, value)
    if number >= 1.0:
        raise ValueError(
            f"{name} {number} must be below 1; a failure chance of 1 guarantees nothing"
        )
    return number


def set_checked(value: object, check: Callable[[str, Any], Any], *fields: str) -> None:
    """Replace fields of a frozen dataclass by what a check such as `positive_int` makes of them.

    Raises:
        ValueError: As the check.
    """
    for name in fields:
        object.__setattr__(value, name, check(name, getattr(value, name)))


def _is_bool(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")
