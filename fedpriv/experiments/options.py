"""Options of experiments: typed fields of nested frozen dataclasses, by dotted names.

A part (`fedpriv.parts`) is a frozen dataclass whose fields are options, each with a type that says
its range, a default, and a line of help in the class's docstring, under "Attributes:". A field that
is typed as a part, or as a union of parts, is a place. It takes each of these, and each class
derived from them that states a `kind`, wherever that is defined. The name of an option is its path,
such as `noise.multiplier`; the kind of a part is set by the path of its place, such as `noise`.
Any ending of a path that is unambiguous will do, and `-`, `_` and `.` are alike: `target-epsilon`.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedpriv.parts import Part, check_of, convert_fields, members_of
from fedpriv.ranges import Range

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
    **dict.fromkeys(
        ("clients", "clients-per-round", "num-clients", "cohort-size", "cohort"),
        ("cohort", "batch-size"),
    ),
    **dict.fromkeys(("num-rounds", "iterations", "num-steps", "rounds"), ("rounds", "steps")),
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


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return the value if it is one of the choices, or raise `ValueError` naming them."""
    if value not in choices:
        raise ValueError(f"{name} {value!r} is not known; use one of {', '.join(choices)}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An option of a configuration's type, or the choice of a part.

    Attributes:
        path: Its dotted name.
        hint: Type of its values; of a choice of a part, the `Literal` of the kinds of parts.
        default: Its value where none is given.
        help: One line.
        within: Paths of the places around it, each with the kind with which alone it exists.
        is_choice: Whether it is the choice of a part.
    """

    path: str
    hint: Any
    default: Option
    help: str
    within: tuple[tuple[str, str], ...] = ()
    is_choice: bool = False

    def exists(self, kinds: Mapping[str, Option]) -> bool:
        """Return whether it exists where parts are of these kinds, by the paths of places."""
        return all(kinds.get(path) == kind for path, kind in self.within)

    def coerce(self, name: str, value: Any) -> Option:
        """Return a value of the option in its type.

        The words that stand for other values on a command line and in TOML, which have no null,
        are those: "none" says that there is no value, "true" and "false" are truth values.

        Args:
            name: As a person types the option.
            value: To be checked.

        Raises:
            ValueError: If it has another type or is out of range.
        """
        if value == "none" and self.takes_none:
            value = None
        if isinstance(value, str) and self.type is bool:
            value = {"true": True, "false": False}.get(value, value)
        if isinstance(value, float) and value.is_integer() and self.type is int:
            value = int(value)
        if value is None and not self.takes_none:
            raise ValueError(f"{name} 'none' is no value of it; it takes {self.takes}")
        check = check_of(self.hint)
        assert check is not None
        return check(name, value)

    @property
    def range(self) -> Range | None:
        """What numbers it may be; None for any."""
        ranges = (one for one in typing.get_args(self._hint) if isinstance(one, Range))
        return next(ranges, None)

    @property
    def type(self) -> type[str] | type[int] | type[float] | type[bool]:
        """Type of a value, other than none; a choice among words is a word."""
        return str if self.choices else _unannotated(self._hint)

    @property
    def choices(self) -> tuple[str, ...]:
        """Words among which it is a choice; empty for other options."""
        literal = typing.get_origin(self._hint) is typing.Literal
        return typing.get_args(self._hint) if literal else ()

    @property
    def takes_none(self) -> bool:
        """Whether "none" is a value besides those of its type."""
        return type(None) in members_of(self.hint)

    @property
    def takes(self) -> str:
        """Description of the values that the option takes."""
        if self.choices:
            return ", ".join(self.choices)
        names = {bool: "true or false", str: "a word", int: "a whole number", float: "a number"}
        words = names[self.type]
        if self.range is not None:
            words += f", {self.range.value.removeprefix('must be ')}"
        return f"{words}, or none" if self.takes_none else words

    @property
    def _hint(self) -> Any:
        [hint] = (one for one in members_of(self.hint) if one is not type(None))
        return hint


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a dataclass that is an option or the place of a part.

    Attributes:
        name: Of the field.
        default: Its value where none is given; of a place, a part.
        entry: The option, or the choice of a part; None for a place that takes one part only.
        parts: The parts that the place takes, by kind; empty for an option.
    """

    name: str
    default: Any
    entry: Entry | None
    parts: Mapping[str, type[Part]]


def _fields(owner: type) -> tuple[_Field, ...]:
    """Return the fields of a dataclass that are options or places.

    Options are fields with a default and a type an option can have.
    """
    return _fields_among(owner, Part.registered)


@cache
def _fields_among(owner: type, registered: int) -> tuple[_Field, ...]:
    hints, helps = typing.get_type_hints(owner, include_extras=True), field_docs(owner)
    found: list[_Field] = []
    for item in dataclasses.fields(owner):
        hint, parts = hints[item.name], _parts(hints[item.name])
        if item.default is dataclasses.MISSING or not (parts or _is_option_type(hint)):
            continue
        entry = None
        if len(parts) != 1:
            default: Any = item.default
            entry = Entry(
                path=item.name,
                hint=typing.Literal[tuple(parts)] if parts else hint,  # pyright: ignore
                default=None if parts else default,
                help=helps.get(item.name, ""),
                is_choice=bool(parts),
            )
        found.append(_Field(item.name, item.default, entry, parts))
    return tuple(found)


@cache
def field_docs(owner: type) -> Mapping[str, str]:
    """Return what the docstrings of a class and its bases say of fields, under "Attributes:"."""
    found: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        text = inspect.cleandoc(vars(one).get("__doc__") or "")
        _, _, section = text.partition("\nAttributes:\n")
        lines = re.split(r"\n(?=\S)", section, maxsplit=1)[0]
        for name, said in re.findall(r"^    (\w+): (.*(?:\n     .*)*)", lines, re.MULTILINE):
            found[name] = " ".join(said.split())
    return found


def kind_of(part: type[Part] | Part) -> str:
    """Return the word that distinguishes parts of one place: `kind`, or the name of the class."""
    made = part if isinstance(part, type) else type(part)
    return getattr(made, "kind", made.__name__)


def _parts(hint: Any) -> dict[str, type[Part]]:
    members = members_of(hint)
    if not all(isinstance(member, type) and issubclass(member, Part) for member in members):
        return {}
    found: dict[str, type[Part]] = {}
    for member in (kind for base in members for kind in _kinds_of(base)):
        if (other := found.setdefault(kind_of(member), member)) is not member:
            raise TypeError(
                f"{other.__name__} and {member.__name__} both have kind {kind_of(member)!r}, by "
                "which parts of one place are distinguished; give yours another"
            )
    return found


def _kinds_of(base: type[Part]) -> tuple[type[Part], ...]:
    """Return a class, unless it is abstract, and all that derive from it and state a kind."""
    derived = (
        one
        for one in base.kinds.values()
        if issubclass(one, base) and one is not base and "kind" in vars(one)
    )
    return tuple(one for one in (base, *derived) if not inspect.isabstract(one))


def _unannotated(hint: Any) -> Any:
    """Return a type without its range."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _is_option_type(hint: Any) -> bool:
    values = [_unannotated(one) for one in members_of(hint) if one is not type(None)]
    if len(values) != 1:
        return False
    [kind] = values
    if typing.get_origin(kind) is typing.Literal:
        return all(isinstance(choice, str) for choice in typing.get_args(kind))
    return kind in (bool, int, float, str)


def check_fields(owner: Any) -> None:
    """Convert every field of a frozen dataclass to its type, and check its parts.

    Raises:
        ValueError: For a value of another type than its option's or out of its range, or something
            else than one of the parts of its place (with those that there are).
    """
    _check_places(owner)
    convert_fields(owner)


def _check_places(owner: Any) -> None:
    """Refuse parts, and parts of parts, that are none of their place's."""
    for item in _fields(type(owner)):
        value = getattr(owner, item.name)
        # Not of a subclass: options are read by kind, which would put the base in its place.
        if item.parts and type(value) not in item.parts.values():
            known = ", ".join(f"{part.__name__}()" for part in item.parts.values())
            raise ValueError(
                f"{item.name} {value!r} is no part of a {type(owner).__name__}; give one of "
                f"{known}, or derive a class whose field {item.name} is typed to hold yours"
            )
        if item.parts:
            _check_places(value)


def check_effect(owner: Any, name: str, other: str, *needed: Any) -> None:
    """Refuse an option that would be recorded and do nothing.

    Args:
        owner: A dataclass.
        name: Its field: one with an effect only with some values of another field.
        other: That field.
        *needed: Those values; none for all but zero.

    Raises:
        ValueError: If the field is not at its default, and the other one has none of the values.
    """
    value, there = getattr(owner, name), getattr(owner, other)
    usual = next(item.default for item in dataclasses.fields(owner) if item.name == name)
    if value != usual and not (there in needed if needed else there):
        raise ValueError(
            f"{kebab(name)} {value!r} has no effect with {kebab(other)} {there!r}; leave it at "
            f"{usual!r}, or give {kebab(other)} another value"
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
            usual = kind_of(value) if item.parts else value
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


def parts_of(owner: Any, prefix: str = "") -> Iterator[tuple[str, Part]]:
    """Yield an instance's parts, and the parts of these, with their paths."""
    for item in dataclasses.fields(owner):
        part = getattr(owner, item.name)
        if isinstance(part, Part):
            yield prefix + item.name, part
            if dataclasses.is_dataclass(part):
                yield from parts_of(part, f"{prefix}{item.name}.")


def changed_of(owner: Any, prefix: str = "") -> dict[str, Option]:
    """Return the kinds of an instance's parts, and values that are not their class's, by path."""
    found: dict[str, Option] = {}
    for item in _fields(type(owner)):
        path, value = prefix + item.name, getattr(owner, item.name)
        if item.parts:
            found |= {path: kind_of(value)} if item.entry else {}
            found |= changed_of(value, f"{path}.")
        elif value != item.default:
            found[path] = value
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
            part = item.parts[str(values.get(path, kind_of(usual)))]
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
        last = name.rpartition(".")[2]
        near = (
            self._meant(name)
            or ([last] if last != name and self.find(last) else [])
            or _like(
                name, difflib.get_close_matches(kebab(name), full if "." in name else short, n=1)
            )
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
