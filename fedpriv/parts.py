"""Parts: frozen, checked values that are configuration and the object that runs at once.

A part is a frozen dataclass. The types of its fields say which values it takes, and check them: a
number that reaches an accountant is a built-in, finite float. It is written as its kind, the name
of its class, and its fields. Deriving a class registers its kind. What a file or a message names is
looked up there, and never imported.

>>> from dataclasses import dataclass
>>> class Shape(Part):
...     "A base, which has a registry."
>>> @dataclass(frozen=True, slots=True, kw_only=True)
... class Circle(Shape):
...     radius: PositiveFloat
>>> Circle(radius=2).to_json()
{'kind': 'Circle', 'radius': 2.0}
>>> Shape.from_json({"kind": "Circle", "radius": 0.5})
Circle(radius=0.5)
>>> Circle(radius=-1)
Traceback (most recent call last):
    ...
ValueError: radius -1.0 must be above 0
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from inspect import isabstract
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from fedpriv.ranges import Range, finite_float, json_object, positive_int, whole_int

Check = Callable[[str, Any], Any]
"""From the name and the value of a field to its value; `ValueError` names both."""

PositiveFloat = Annotated[float, Range.ABOVE_ZERO]
NonNegativeFloat = Annotated[float, Range.AT_LEAST_ZERO]
Fraction = Annotated[float, Range.FRACTION]
Share = Annotated[float, Range.SHARE]
Between = Annotated[float, Range.BETWEEN]
PositiveInt = Annotated[int, Range.AT_LEAST_ONE]
NonNegativeInt = Annotated[int, Range.AT_LEAST_ZERO]


class UnknownKindError(ValueError):
    """What a file names is of a kind that is not known here."""


class Part:
    """Base of parts. A class that derives from it directly is a base with a registry of its own.

    Fields are numbers, words, truth values, other parts, tuples of these, or None. A field of
    another type is left unchecked, and its part is not written. A number may have a range or a
    check: `Annotated[float, Range.ABOVE_ZERO]`, which is `PositiveFloat`, or `Annotated[float,
    check]`. Where a place takes some classes of a base only, its field is typed as their union.

    Attributes:
        kinds: Classes of the base by their names: all that `from_json` makes.
        registered: How many classes there are, of all bases.

    Raises:
        ValueError: If a field's value is not of its type, or is refused by its check.
    """

    __slots__ = ()
    kinds: ClassVar[dict[str, type[Any]]] = {}
    registered: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        """Register a class under its name, unless that begins with an underscore.

        Raises:
            ValueError: If a class that is defined elsewhere has that name.
        """
        if Part in cls.__bases__:
            cls.kinds = {}
        if cls.__name__.startswith("_"):
            return
        known = cls.kinds.get(cls.__name__, cls)
        # One definition may be run again: by a dataclass with slots, a notebook or another import.
        if _defined_in(known) != _defined_in(cls):
            raise ValueError(f"{cls.__name__} is {known} already; give {cls} another name")
        cls.kinds[cls.__name__] = cls
        Part.registered += 1

    def __post_init__(self) -> None:
        convert_fields(self)
        self.check()

    def check(self) -> None:
        """Refuse fields that do not fit together; each alone was checked.

        Raises:
            ValueError: If they do not.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the fields as plain JSON values.

        Guarantees:
            * `from_json` makes an equal part of them, wherever the class is registered.

        Raises:
            ValueError: If it is no dataclass, has an `__init__` of its own, or a field is of a type
                that has no JSON.
        """
        if not _is_written(type(self)):
            raise ValueError(f"{self!r} is no dataclass, and is not written")
        found: dict[str, Any] = {"kind": type(self).__name__}
        for name, check in _checks(type(self)).items():
            if check is None:
                raise ValueError(f"{name} of {self!r} is of a type that is not written")
            found[name] = _plain(getattr(self, name))
        return found

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the part that `to_json` wrote; only registered classes are made.

        Raises:
            UnknownKindError: If no class of this base is registered under its kind.
            ValueError: If it has not exactly the fields of its class, or that refuses their values.
        """
        given = dict(json_object(value) or {})
        kind = given.pop("kind", None)
        made = cls.kinds.get(kind) if isinstance(kind, str) else None
        if made is None or not _is_written(made) or isabstract(made):
            raise UnknownKindError(
                f"kind {kind!r} of {value!r} is unknown here; known are {', '.join(cls.kinds)}, "
                "and classes that an experiment's file defines"
            )
        checks = _checks(cast("type[Part]", made))
        if set(given) != set(checks):
            raise ValueError(f"a {kind} has the fields {list(checks)}, not those of {value!r}")
        if None in checks.values():
            raise ValueError(f"a {kind} has fields of a type that is not written")
        return cast(Self, made(**given))


def _is_written(kind: type) -> bool:
    """Return whether its fields are all that a part holds: what another `__init__` keeps is not."""
    for one in kind.__mro__:
        if "__dataclass_fields__" in vars(one):
            return True
        if "__init__" in vars(one):
            return False
    return False


def _defined_in(kind: type) -> tuple[str, str]:
    """Return the file (in a notebook the module) that defines a class, and the class's name."""
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or kind.__module__, kind.__name__


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def convert_fields(owner: Any) -> None:
    """Check every field of a frozen dataclass, and set it to what its check returns.

    Raises:
        ValueError: If a value is not of its field's type, or is refused by its check.
    """
    for name, check in _checks(type(owner)).items():
        if check is not None:
            object.__setattr__(owner, name, check(name, getattr(owner, name)))


@cache
def _checks(kind: type[Any]) -> dict[str, Check | None]:
    """Return what checks each field of a class; None of one of a type that is not written."""
    if not is_dataclass(kind):
        return {}
    hints = get_type_hints(kind, include_extras=True)
    return {item.name: check_of(hints[item.name]) for item in fields(kind) if item.init}


def members_of(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union; of another type, that type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def check_of(hint: Any) -> Check | None:
    """Return what checks a value of a type; None of a type that is not written."""
    origin, args, members = get_origin(hint), get_args(hint), members_of(hint)
    if origin is Annotated:
        if isinstance(args[1], Range):
            return _RANGED[args[0]](args[1])
        return args[1] if callable(args[1]) else check_of(args[0])
    if origin is Literal:
        return partial(_one_of, args)
    if NoneType in members and len(members) == 2:
        return _optional(check_of(members[members[0] is NoneType]))
    if origin is tuple and args[1:] == (Ellipsis,):
        return _each(check_of(args[0]))
    if all(isinstance(one, type) and issubclass(one, Part) for one in members):
        return partial(_part, members)
    if hint in (str, bool):
        return partial(_of_type, hint)
    return {float: finite_float, int: whole_int}.get(hint)


def _whole(allowed: Range) -> Check:
    """Return what checks a whole number of a range."""
    if allowed is Range.AT_LEAST_ONE:
        return positive_int

    def checked(name: str, value: Any) -> int:
        number = whole_int(name, value)
        allowed.check(name, number)
        return number

    return checked


_RANGED: Mapping[type, Callable[[Range], Check]] = {
    float: lambda allowed: partial(finite_float, allowed=allowed),
    int: _whole,
}
"""What checks a number of a type in a range."""


def _optional(check: Check | None) -> Check | None:
    if check is None:
        return None
    return lambda name, value: None if value is None else check(name, value)


def _each(check: Check | None) -> Check | None:
    if check is None:
        return None

    def checked(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{name} {value!r} is not a list")
        return tuple(check(name, one) for one in cast("tuple[Any, ...]", value))

    return checked


def _one_of(allowed: tuple[Any, ...], name: str, value: Any) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} {value!r} is unknown; give one of {', '.join(allowed)}")
    return value


def _of_type(kind: type, name: str, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{name} {value!r} is no {kind.__name__}")
    return value


def _part(kinds: tuple[type[Part], ...], name: str, value: Any) -> Part:
    """Return a part of one of these classes, made from its JSON where that is given."""
    if isinstance(value, kinds):
        return value
    known = ", ".join(kind.__name__ for kind in kinds)
    if json_object(value) is None:
        raise ValueError(f"{name} {value!r} is no {known}")
    found = kinds[0].from_json(value)
    if not isinstance(found, kinds):
        raise ValueError(f"{name} {value!r} is no {known}")
    return found
