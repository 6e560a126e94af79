"""Options of experiments: typed fields of nested frozen dataclasses, by dotted names.

A part is a frozen dataclass that derives from `Part`; its fields are options, each with a default,
a type, a range and a line of help. A field that is typed as a part, or as a union of parts, is a
place for one of them, distinguished by their `kind`. The name of an option is its path, such as
`noise.target_epsilon`; the kind of a part is set by the path of its place, such as `noise`. Any
ending of a path that is unambiguous will do, and `-`, `_` and `.` are alike: `target-epsilon`.

>>> coerce("l2_clip_norm", 2, float)
2.0
>>> coerce("bound", "clipping", typing.Literal["clip", "none"])
Traceback (most recent call last):
    ...
ValueError: bound 'clipping' is not known; use one of clip, none
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

from fedpriv.ranges import Range, finite_float

Option = str | int | float | bool | None

_RATE, _CLIP = ("local-learning-rate", "learning-rate"), ("l2-clip-norm",)
# Names of other libraries and papers, for the hint in an error: the first that is known here.
_SUGGESTIONS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("lr", "learning-rate", "step-size", "eta", "client-lr", "local-lr"), _RATE),
    **dict.fromkeys(("clip", "clip-norm", "clipping-norm", "max-grad-norm", "l2-norm-clip"), _CLIP),
    **dict.fromkeys(("sigma", "noise-scale", "noise-std", "z"), ("noise-multiplier",)),
    **dict.fromkeys(("epsilon", "eps"), ("target-epsilon",)),
    **dict.fromkeys(("target-delta",), ("delta",)),
    **dict.fromkeys(("epochs", "num-epochs"), ("local-epochs", "steps")),
    **dict.fromkeys(("batch-size", "minibatch-size", "batch"), ("local-batch-size", "batch-size")),
    **dict.fromkeys(("clients", "clients-per-round", "num-clients", "cohort-size"), ("cohort",)),
    **dict.fromkeys(("num-rounds", "iterations", "num-steps"), ("rounds", "steps")),
    **dict.fromkeys(("steps",), ("rounds",)),
    **dict.fromkeys(
        ("optimizer", "optimiser", "server-optimizer", "server-optimiser"), ("server", "optimizer")
    ),
    **dict.fromkeys(("server-lr", "global-lr"), ("server-learning-rate",)),
    **dict.fromkeys(("num-users", "n-users"), ("users",)),
    **dict.fromkeys(("random-state", "random-seed"), ("seed",)),
}


def kebab(name: str) -> str:
    """Return an option's name as it is typed on a command line; a dotted one is, as it is."""
    return name if "." in name else name.replace("_", "-")


def normalize(name: str) -> str:
    """Return the form in which names of options are compared."""
    return name.replace("-", "_").replace(".", "_")


def rename_fields(text: str, names: Mapping[str, str]) -> str:
    """Return a message with fields called by the names of the options that set them.

    >>> rename_fields("num_rounds 0 must be at least 1", {"num_rounds": "rounds"})
    'rounds 0 must be at least 1'

    A method of that name is no option.

    >>> rename_fields("the task has no rounds()", {"rounds": "num-rounds"})
    'the task has no rounds()'
    """
    if not names:
        return text
    return re.sub(rf"\b({'|'.join(names)})\b(?!\()", lambda found: names[found[1]], text)


@contextmanager
def naming_options(names: Mapping[str, str]) -> Iterator[None]:
    """Rename fields in the `ValueError`s of the code inside to the options that set them.

    Args:
        names: From fields, as plans and bounds call them, to options.

    Raises:
        ValueError: The one that was raised, with other names in it.
    """
    try:
        yield
    except ValueError as error:
        text = rename_fields(str(error), names)
        if text == str(error):
            raise
        raise ValueError(text) from error


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return the value if it is one of the choices, or raise `ValueError` naming them."""
    if value not in choices:
        raise ValueError(f"{name} {value!r} is not known; use one of {', '.join(choices)}")
    return value


def coerce(name: str, value: Any, hint: Any) -> Option:
    """Return the value in the option's type, or raise `ValueError` saying what it takes."""
    allowed = _members(hint)
    # "none" is how the command line and TOML, which have no null, say that a number is absent.
    absent = value is None or (value == "none" and str not in allowed)
    if absent and type(None) in allowed:
        return None
    kind = next(a for a in allowed if a is not type(None))
    if kind is bool:
        value = (
            {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        )
        if not isinstance(value, bool):
            raise ValueError(f"{name} {value!r} must be true or false")
        return value
    if typing.get_origin(kind) is typing.Literal:
        return check_choice(name, value, typing.get_args(kind))
    if kind is str:
        if not isinstance(value, str):
            raise ValueError(f"{name} {value!r} is not a word")
        return value
    remedy = "give one, or none to leave it out" if type(None) in allowed else "give one"
    try:
        number = finite_float(name, value)
    except ValueError:
        raise ValueError(f"{name} {value!r} is not a finite number; {remedy}") from None
    if kind is not int:
        return number
    exact: Any = value  # a float would round what is beyond 2^53
    if int(exact) != exact:
        raise ValueError(f"{name} {value!r} is not a whole number; {remedy}")
    return int(exact)


def option(
    default: Option,
    help: str,
    allowed: Range | None = None,
    *,
    neutral: bool = False,
    only: tuple[str, Range | tuple[Option, ...]] | None = None,
) -> Any:
    """Return the field of a part that is an option.

    Args:
        default: Its value where none is given.
        help: One line, shown wherever options are listed.
        allowed: What numbers it may be; None for any.
        neutral: Whether the default is the value at which the option does nothing at all. It is
            then not in `Experiment.identity`, so that a new option leaves what was run before as
            it was. Such a default must never change.
        only: Another field, and its values with which alone the option has an effect; with others
            it is refused at a value that is not its default. None for all.
    """
    return field(
        default=default, metadata={"help": help, "range": allowed, "neutral": neutral, "only": only}
    )


def place(default: Any, help: str, *, neutral: bool = False) -> Any:
    """Return the field of a dataclass that holds a part.

    Args:
        default: The part where none is given.
        help: One line, shown wherever options are listed.
        neutral: As of `option`; the part must then have no options.
    """
    return field(default=default, metadata={"help": help, "neutral": neutral})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An option of a configuration's type, or the choice of a part.

    Attributes:
        path: Its dotted name.
        hint: Type of its values; of a choice of a part, the `Literal` of the kinds of parts.
        default: Its value where none is given.
        help: One line.
        allowed: What numbers it may be; None for any.
        within: Paths of the places around it, each with the kind with which alone it exists.
        is_choice: Whether it is the choice of a part.
        neutral: The value at which it does nothing, in a tuple of one; empty where there is none.
    """

    path: str
    hint: Any
    default: Option
    help: str
    allowed: Range | None = None
    within: tuple[tuple[str, str], ...] = ()
    is_choice: bool = False
    neutral: tuple[Option, ...] = ()

    def exists(self, kinds: Mapping[str, Option]) -> bool:
        """Return whether it exists where parts are of these kinds, by the paths of places."""
        return all(kinds.get(path) == kind for path, kind in self.within)

    def coerce(self, name: str, value: Any) -> Option:
        """Return a value of the option in its type.

        Args:
            name: As a person types the option.
            value: To be checked.

        Raises:
            ValueError: If it has another type or is out of range.
        """
        found = coerce(name, value, self.hint)
        if self.allowed is not None and isinstance(found, (int, float)):
            self.allowed.check(name, found)
        return found

    @property
    def type(self) -> type[str] | type[int] | type[float] | type[bool]:
        """Type of a value, other than none; a choice among words is a word."""
        return str if self.choices else self._kind

    @property
    def choices(self) -> tuple[str, ...]:
        """Words among which it is a choice; empty for other options."""
        literal = typing.get_origin(self._kind) is typing.Literal
        return typing.get_args(self._kind) if literal else ()

    @property
    def takes_none(self) -> bool:
        """Whether "none" is a value besides those of its type."""
        return type(None) in _members(self.hint)

    @property
    def takes(self) -> str:
        """Description of the values that the option takes."""
        if self.choices:
            return ", ".join(self.choices)
        names = {bool: "true or false", str: "a word", int: "a whole number", float: "a number"}
        words = names[self.type]
        if self.allowed is not None:
            words += f", {self.allowed.value.removeprefix('must be ')}"
        return f"{words}, or none" if self.takes_none else words

    @property
    def _kind(self) -> Any:
        [kind] = (kind for kind in _members(self.hint) if kind is not type(None))
        return kind


class Part:
    """Base of parts: checks its options as it is made.

    Raises:
        ValueError: For a value of another type than its option's, or out of its range.
    """

    __slots__ = ()
    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check and convert every option."""
        check_fields(self)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a dataclass that is an option or the place of a part.

    Attributes:
        name: Of the field.
        default: Its value where none is given; of a place, a part.
        entry: The option, or the choice of a part; None for a place that takes one part only.
        parts: The parts that the place takes, by kind; empty for an option.
        only: As of `option`.
    """

    name: str
    default: Any
    entry: Entry | None
    parts: Mapping[str, type[Part]]
    only: tuple[str, Range | tuple[Option, ...]] | None = None


@cache
def _fields(owner: type) -> tuple[_Field, ...]:
    """Return the fields of a dataclass that are options or places.

    Options are fields with a default and a type an option can have; `option` adds a line of help
    and a range.
    """
    hints = typing.get_type_hints(owner)
    found: list[_Field] = []
    for item in dataclasses.fields(owner):
        hint, parts = hints[item.name], _parts(hints[item.name])
        if not parts and (item.default is dataclasses.MISSING or not _is_option_type(hint)):
            if "range" in item.metadata:
                raise TypeError(
                    f"{owner.__name__}.{item.name}: {hint} cannot be an option; use int, float, "
                    "bool, str or a Literal of words, or one of them | None"
                )
            continue
        entry = None
        if len(parts) != 1:
            default: Any = item.default
            entry = Entry(
                path=item.name,
                hint=typing.Literal[tuple(parts)] if parts else hint,  # pyright: ignore
                default=None if parts else item.default,  # type: ignore[arg-type]
                help=item.metadata.get("help", ""),
                allowed=item.metadata.get("range"),
                is_choice=bool(parts),
                neutral=(default.kind if parts else default,)
                if item.metadata.get("neutral")
                else (),
            )
        found.append(_Field(item.name, item.default, entry, parts, item.metadata.get("only")))
    return tuple(found)


def _parts(hint: Any) -> dict[str, type[Part]]:
    members = _members(hint)
    if not all(isinstance(member, type) and issubclass(member, Part) for member in members):
        return {}
    found: dict[str, type[Part]] = {}
    for member in members:
        if not isinstance(member.kind, str) or (not member.kind and len(members) > 1):
            raise TypeError(
                f'{member.__name__} has no kind; give it one: `kind: ClassVar[str] = "its-name"`'
            )
        if (other := found.setdefault(member.kind, member)) is not member:
            raise TypeError(
                f"{other.__name__} and {member.__name__} both have kind {member.kind!r}, by which "
                "parts of one place are distinguished; give yours another"
            )
    return found


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union; of another type, that type."""
    united = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if united else (hint,)


def _is_option_type(hint: Any) -> bool:
    values = [kind for kind in _members(hint) if kind is not type(None)]
    if len(values) != 1:
        return False
    [kind] = values
    if typing.get_origin(kind) is typing.Literal:
        return all(isinstance(choice, str) for choice in typing.get_args(kind))
    return kind in (bool, int, float, str)


def check_fields(owner: Any) -> None:
    """Convert every option of a frozen dataclass to its type, and check its parts.

    Raises:
        ValueError: For a value of another type than its option's or out of its range, or something
            else than one of the parts of its place (with those that there are).
    """
    for item in _fields(type(owner)):
        value = getattr(owner, item.name)
        if item.entry is not None and not item.parts:
            object.__setattr__(owner, item.name, item.entry.coerce(item.name, value))
        # Not of a subclass: options are read by kind, which would put the base in its place.
        elif type(value) not in item.parts.values():
            known = ", ".join(f"{part.__name__}()" for part in item.parts.values())
            raise ValueError(
                f"{item.name} {value!r} is no part of a {type(owner).__name__}; give one of "
                f"{known}, or derive a class whose field {item.name} is typed to hold yours"
            )
    check_effects(owner)


def check_effects(owner: Any) -> None:
    """Refuse options of a dataclass that would be recorded and do nothing.

    Raises:
        ValueError: For a value that is not the default, of an option that has an effect only with
            another value of another field.
    """
    for item in _fields(type(owner)):
        value = getattr(owner, item.name)
        if item.only is None or value == item.default:
            continue
        other, needed = item.only
        there = getattr(owner, other)
        if not (needed.holds(there) if isinstance(needed, Range) else there in needed):
            raise ValueError(
                f"{kebab(item.name)} {value!r} has no effect with {kebab(other)} {there!r}; leave "
                f"it at {item.default!r}, or give {kebab(other)} another value"
            )


def entries(
    owner: type, default: Any = None, prefix: str = "", within: tuple[tuple[str, str], ...] = ()
) -> tuple[Entry, ...]:
    """Return every option of a dataclass and of all parts that it may hold, with dotted paths.

    Args:
        owner: The dataclass; any other type has none.
        default: An instance whose values are the defaults; None for the fields' own.
        prefix: Of every path.
        within: Of every entry.
    """
    if not dataclasses.is_dataclass(owner):
        return ()
    found: list[Entry] = []
    for item in _fields(owner):
        path = prefix + item.name
        value = item.default if default is None else getattr(default, item.name)
        if item.entry is not None:
            usual = value.kind if item.parts else value
            found.append(replace(item.entry, path=path, default=usual, within=within))
        for kind, part in item.parts.items():
            inner = within if item.entry is None else (*within, (path, kind))
            at = value if type(value) is part else None
            found += entries(part, at, f"{path}.", inner)
    return tuple(found)


def values_of(owner: Any, prefix: str = "") -> dict[str, Option]:
    """Return the value of every option of an instance, and the kind of every part, by path."""
    found: dict[str, Option] = {}
    for entry in entries(type(owner), owner, prefix):
        if entry.exists(found):
            found[entry.path] = entry.default
    return found


def build_fields(
    owner: type, values: Mapping[str, Option], default: Any = None, prefix: str = ""
) -> dict[str, Any]:
    """Return the fields of a dataclass that are options or parts, with some values set by path.

    Args:
        owner: The dataclass.
        values: Of options and kinds of parts; what is not there has its default.
        default: An instance whose values are the defaults; None for the fields' own.
        prefix: Of every path.
    """
    found: dict[str, Any] = {}
    for item in _fields(owner):
        path = prefix + item.name
        usual = item.default if default is None else getattr(default, item.name)
        if item.parts:
            part = item.parts[str(values.get(path, usual.kind))]
            at = usual if type(usual) is part else None
            found[item.name] = part(**build_fields(part, values, at, f"{path}."))
        else:
            found[item.name] = values.get(path, usual)
    return found


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested TOML tables by dotted path.

    >>> flatten({"rounds": 3, "noise": {"kind": "banded", "bands": 4}})
    {'rounds': 3, 'noise.kind': 'banded', 'noise.bands': 4}
    """
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


class OptionIndex:
    """Index of options by path and by every ending of a path."""

    def __init__(self, known: Iterable[Entry]) -> None:
        """Index entries by every ending of their paths."""
        self.entries = tuple(known)
        self._whole: dict[str, list[Entry]] = {}
        self._endings: dict[str, list[Entry]] = {}
        for entry in self.entries:
            steps = entry.path.split(".")
            self._whole.setdefault(normalize(entry.path), []).append(entry)
            for start in range(1, len(steps)):
                self._endings.setdefault("_".join(steps[start:]), []).append(entry)

    def find(self, name: str) -> list[Entry]:
        """Return the entries of a name: of the whole path, or else of an ending; [] for none."""
        form = normalize(name.removesuffix(".kind"))
        return self._whole.get(form) or self._endings.get(form, [])

    def unknown(self, name: str) -> ValueError:
        """Return the error for a name that is no option, with the nearest known one."""
        full = [entry.path for entry in self.entries]
        short = sorted(kebab(form) for form in {*self._whole, *self._endings})
        near = self._meant(name) or _like(
            name, difflib.get_close_matches(kebab(name), full if "." in name else short, n=1)
        )
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(dict.fromkeys(full))}"
        return ValueError(f"{name!r} is not an option of an experiment; {hint}")

    def _meant(self, name: str) -> list[str]:
        """Return options that other libraries call so, typed as this name is."""
        found = [alias for alias in _SUGGESTIONS.get(kebab(name), ()) if self.find(alias)]
        return _like(name, found)

    def kinds(self, values: Mapping[str, Option]) -> dict[str, Option]:
        """Return the kind of every place that is there."""
        found: dict[str, Option] = {}
        for entry in self.entries:
            if entry.is_choice and entry.exists(found):
                found[entry.path] = values.get(entry.path, entry.default)
        return found

    def read(self, given: Mapping[str, Option], values: Mapping[str, Option]) -> dict[str, Option]:
        """Return given options by path; those of parts that are not chosen are refused.

        Args:
            given: Values by any of their names; kinds of parts among them.
            values: Of other options by path.

        Raises:
            ValueError: For an unknown or ambiguous name (with the nearest known ones), an option
                whose part is not chosen (with the part), or an unfit value.
        """
        read: dict[str, Option] = {}
        typed: dict[str, str] = {}
        rest: dict[str, list[Entry]] = {}
        for name, value in given.items():
            found = self.find(name)
            if not found:
                raise self.unknown(name)
            if found[0].is_choice and value is not None and len({e.path for e in found}) == 1:
                if isinstance(value, float | int) and (meant := self._meant(name)):
                    raise ValueError(
                        f"{name} {value!r} is not known; a number is {meant[0]}, and {name} one of "
                        f"{', '.join(found[0].choices)}"
                    )
                read[found[0].path] = found[0].coerce(name, value)
                typed[found[0].path] = name
            else:
                rest[name] = found
        kinds = self.kinds({**values, **read})
        for path, name in typed.items():
            if path not in kinds:
                raise ValueError(self._belongs(name, self.find(path), kinds))
        for name, found in rest.items():
            there = [entry for entry in found if entry.exists(kinds)]
            paths = {entry.path for entry in there}
            if len(paths) > 1:
                names = " or ".join(sorted(paths))
                raise ValueError(f"{name} is one of several options; say {names}")
            if there:
                read[there[0].path] = there[0].coerce(name, given[name])
            elif given[name] not in (None, "none"):  # which is true of an option that is not there
                raise ValueError(self._belongs(name, found, kinds))
        return read

    def _belongs(self, name: str, found: Sequence[Entry], kinds: Mapping[str, Option]) -> str:
        text = name
        while True:
            path, _ = next(w for w in found[0].within if kinds.get(w[0]) != w[1])
            among = dict.fromkeys(kind for e in found for p, kind in e.within if p == path)
            text += f" belongs to {path} {_either(list(among))}"
            if path in kinds:
                return (
                    f"{text}; this experiment has {path} {kinds[path]!r}: set {path} too, or leave "
                    f"{name} out"
                )
            found, text = self._whole[normalize(path)], f"{text}, which"


def _like(name: str, names: Iterable[str]) -> list[str]:
    """Return names of options as one was typed: with hyphens, or as keywords of Python."""
    return [other.replace("-", "_") if "_" in name else other for other in names]


def _either(choices: Sequence[str]) -> str:
    quoted = [repr(choice) for choice in choices]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
