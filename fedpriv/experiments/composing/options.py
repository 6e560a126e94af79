"""Options: flat, kebab-case, and each checked against the type of the field it sets.

The same names and values are given on the command line, in TOML and in a run folder, so what is
said of a wrong one is said here, once.

>>> checked("l2_clip_norm", 2, float)
2.0
>>> checked("bound", "clipping", typing.Literal["clip", "none"])
Traceback (most recent call last):
    ...
ValueError: bound 'clipping' is not known; use one of clip, none
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from fedpriv.ranges import Range, finite_float

Option = str | int | float | bool | None


def kebab(name: str) -> str:
    """Return an option's name as it is typed."""
    return name.replace("_", "-")


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a message with fields called by the names of the options that set them.

    >>> renamed("num_rounds 0 must be at least 1", {"num_rounds": "rounds"})
    'rounds 0 must be at least 1'

    A method of that name is no option.

    >>> renamed("the task has no side_information()", {"side_information": "side-information"})
    'the task has no side_information()'
    """
    if not names:
        return text
    return re.sub(rf"\b({'|'.join(names)})\b(?!\()", lambda found: names[found[1]], text)


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


def chosen(name: str, value: Any, choices: typing.Iterable[str]) -> str:
    """Return the value if it is one of the choices, or raise `ValueError` naming them."""
    if value not in choices:
        raise ValueError(f"{kebab(name)} {value!r} is not known; use one of {', '.join(choices)}")
    return value


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
    if typing.get_origin(kind) is typing.Literal:
        return chosen(name, value, typing.get_args(kind))
    if kind is str:
        if not isinstance(value, str):
            raise ValueError(f"{label} {value!r} is not a word")
        return value
    remedy = "give one, or none to leave it out" if type(None) in allowed else "give one"
    try:
        number = finite_float(label, value)
    except ValueError:
        raise ValueError(f"{label} {value!r} is not a finite number; {remedy}") from None
    if kind is not int:
        return number
    exact: Any = value  # a float would round what is beyond 2^53
    if int(exact) != exact:
        raise ValueError(f"{label} {value!r} is not a whole number; {remedy}")
    return int(exact)


_AS_NOW = object()


def option(
    default: Option, help: str, allowed: Range | None = None, *, before: Any = _AS_NOW
) -> Any:
    """Return the field of a part that is an option.

    Args:
        default: Its value where none is given.
        help: One line, shown wherever options are listed.
        allowed: What numbers it may be; None for any.
        before: Its value in run folders and results that were written before there was such an
            option, where that is not the default.
    """
    metadata = {"help": help, "range": allowed}
    if before is not _AS_NOW:
        metadata["before"] = before
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a part says of one of its options.

    Attributes:
        field: Its name in the part.
        hint: Its type.
        default: Its value where none is given.
        help: One line.
        allowed: What numbers it may be; None for any.
        has_before: Whether files were written before there was such an option.
        before: Its value in those.
    """

    field: str
    hint: Any
    default: Option
    help: str
    allowed: Range | None
    has_before: bool = False
    before: Option = None

    def checked(self, name: str, value: Any) -> Option:
        """Return a value of the option in its type.

        Args:
            name: As a person types the option.
            value: To be checked.

        Raises:
            ValueError: If it has another type or is out of range.
        """
        found = checked(name, value, self.hint)
        if self.allowed is not None and isinstance(found, (int, float)):
            self.allowed.check(kebab(name), found)
        return found

    @property
    def kind(self) -> type[str] | type[int] | type[float] | type[bool]:
        """What a value is, other than none; a choice among words is a word."""
        [kind] = (kind for kind in self._kinds if kind is not type(None))
        return str if typing.get_origin(kind) is typing.Literal else kind

    @property
    def takes(self) -> str:
        """What the option takes, in words."""
        [kind] = (kind for kind in self._kinds if kind is not type(None))
        if typing.get_origin(kind) is typing.Literal:
            return ", ".join(typing.get_args(kind))
        names = {bool: "true or false", str: "a word", int: "a whole number", float: "a number"}
        words = names[kind]
        if self.allowed is not None:
            words += f", {self.allowed.value.removeprefix('must be ')}"
        return f"{words}, or none" if type(None) in self._kinds else words

    @property
    def _kinds(self) -> tuple[Any, ...]:
        return (
            typing.get_args(self.hint) if isinstance(self.hint, types.UnionType) else (self.hint,)
        )


@cache
def declared(part: type) -> tuple[Declared, ...]:
    """Return the options of a part: a frozen dataclass.

    Its fields that have a default and a type that an option can have are options; `option` adds a
    line of help and a range. Others are none.
    """
    hints = typing.get_type_hints(part)
    return tuple(
        Declared(
            field=item.name,
            hint=hints[item.name],
            default=item.default,  # type: ignore[arg-type]
            help=item.metadata.get("help", ""),
            allowed=item.metadata.get("range"),
            has_before="before" in item.metadata,
            before=item.metadata.get("before"),
        )
        for item in dataclasses.fields(part)
        if item.default is not dataclasses.MISSING and _is_option_type(hints[item.name])
    )


def _is_option_type(hint: Any) -> bool:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    values = [kind for kind in kinds if kind is not type(None)]
    if len(values) != 1:
        return False
    [kind] = values
    if typing.get_origin(kind) is typing.Literal:
        return all(isinstance(choice, str) for choice in typing.get_args(kind))
    return kind in (bool, int, float, str)
