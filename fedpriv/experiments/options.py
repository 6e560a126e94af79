"""Options: flat, kebab-case, and each checked against the type of the field it sets.

The same names and values are given on the command line, in TOML and in a run folder, so what is
said of a wrong one is said here, once.

>>> checked("l2_clip_norm", 2, float)
2.0
>>> checked("bound", "clipping", Literal["clip", "none"])
Traceback (most recent call last):
    ...
ValueError: bound 'clipping' is not known; use one of clip, none
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from fedpriv.ranges import Range, finite_float

Option = str | int | float | bool | None


def kebab(name: str) -> str:
    """Return an option's name as it is typed."""
    return name.replace("_", "-")


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a message with fields called by the names of the options that set them.

    >>> renamed("num_rounds 0 must be at least 1", {"num_rounds": "rounds"})
    'rounds 0 must be at least 1'
    """
    if not names:
        return text
    return re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[1]], text)


@contextmanager
def said_as_options(names: Mapping[str, str]) -> Iterator[None]:
    """Have what is refused inside called as it was typed.

    Args:
        names: From fields, as plans and bounds call them, to options.

    Raises:
        ValueError: The one that was raised, with other names in it.
    """
    try:
        yield
    except ValueError as error:
        text = renamed(str(error), names)
        if text == str(error):
            raise
        raise ValueError(text) from error


def checked(name: str, value: Any, hint: Any) -> Option:
    """Return the value in the option's type, or raise `ValueError` saying what it takes."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    # "none" is how the command line and TOML, which have no null, say that a number is absent.
    absent = value is None or (value == "none" and str not in allowed)
    if absent and type(None) in allowed:
        return None
    kind = next(a for a in allowed if a is not type(None))
    label = kebab(name)
    if kind is bool:
        value = (
            {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        )
        if not isinstance(value, bool):
            raise ValueError(f"{label} {value!r} must be true or false")
        return value
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise ValueError(f"{label} {value!r} is not known; use one of {', '.join(choices)}")
        return value
    if kind is str:
        if not isinstance(value, str):
            raise ValueError(f"{label} {value!r} is not a word")
        return value
    way_out = "give one, or none to leave it out" if type(None) in allowed else "give one"
    try:
        number = finite_float(label, value)
    except ValueError:
        raise ValueError(f"{label} {value!r} is not a finite number; {way_out}") from None
    if kind is not int:
        return number
    exact: Any = value  # a float would round what is beyond 2^53
    if int(exact) != exact:
        raise ValueError(f"{label} {value!r} is not a whole number; {way_out}")
    return int(exact)


def check_ranges(options: object, ranges: Mapping[str, Range]) -> None:
    """Check numbers among the fields of an object; None is in every range.

    Raises:
        ValueError: For the first that is out of its range, with its name as it is typed.
    """
    for name, allowed in ranges.items():
        value = getattr(options, name)
        if value is not None:
            allowed.check(kebab(name), value)


def as_fields(options: Mapping[str, Option], known: Collection[str]) -> dict[str, Option]:
    """Return options by the names of their fields.

    Raises:
        ValueError: For an unknown option, with the nearest known one.
    """
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"{name!r} is not an option of an experiment; {hint}")
    return {name.replace("-", "_"): value for name, value in options.items()}
