"""Options of experiments: parts with declared options, and slots of which one part is chosen.

A part is a frozen dataclass whose fields are options, each with a default, a type, a range and a
line of help. A `Slot` is a place for one of several parts; where it has more than one choice, the
choice itself is an option. Only options of chosen parts exist. The same flat kebab-case names hold
on the command line, in TOML, in a run folder and in Flower's run-config.

>>> checked("l2_clip_norm", 2, float)
2.0
>>> checked("bound", "clipping", typing.Literal["clip", "none"])
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


_RATE, _CLIP = ("local-learning-rate", "learning-rate"), ("l2-clip-norm",)
# What other libraries and papers call options; of several names the first that is known is meant.
_ALIASES: Mapping[str, Sequence[str]] = {
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
    **dict.fromkeys(("optimizer", "optimiser"), ("server-optimizer",)),
    **dict.fromkeys(("server-lr", "global-lr"), ("server-learning-rate",)),
    **dict.fromkeys(("num-users", "n-users"), ("users",)),
    **dict.fromkeys(("random-state", "random-seed"), ("seed",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place for one part.

    Attributes:
        name: As it is typed; with a single choice, which is never typed, only a heading.
        help: One line.
        choices: Parts by the value that chooses them, the default first.
        prefix: Of the options' names here.
        defaults: Of options here, by their names in the part, where not the part's own.
        within: A slot and its choices with which alone this slot is there; None for always.
        make: From options to the part, which has more to it than options; None for its class.
        before: The choice in files that were written before there was such a slot; None where
            they all have it.
    """

    name: str
    help: str
    choices: Mapping[str, type]
    prefix: str = ""
    defaults: Mapping[str, Option] = field(default_factory=dict)
    within: tuple[str, frozenset[str]] | None = None
    make: Callable[..., Any] | None = None
    before: str | None = None

    @property
    def is_option(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.choices) > 1

    @property
    def default(self) -> str:
        """What is chosen where none is given."""
        return next(iter(self.choices))

    def options(self, choice: str) -> tuple[tuple[str, Declared], ...]:
        """Return the options of a choice by their names here."""
        return _named(self.prefix, self.choices[choice])

    def default_of(self, item: Declared) -> Option:
        """Return an option's default here."""
        return self.defaults.get(item.field, item.default)

    def owners(self, name: str) -> list[str]:
        """Return the choices that have an option."""
        return [c for c in self.choices if any(name == known for known, _ in self.options(c))]


@cache
def _named(prefix: str, part: type) -> tuple[tuple[str, Declared], ...]:
    # Kept: an experiment is made anew for every cell of a grid, and reads them many times.
    return tuple((prefix + kebab(item.field), item) for item in declared(part))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is chosen of a slot.

    Attributes:
        slot: Of which.
        choice: By its name.
        options: An instance of the choice: its values are checked.
    """

    slot: Slot = field(compare=False, repr=False)
    name: str
    choice: str
    options: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionLine:
    """An option as it is listed.

    Attributes:
        name: As it is typed.
        value: In this experiment.
        default: Where none is given.
        help: One line.
        takes: What it takes, in words.
        part: Heading of those it belongs with, such as "bound clip".
    """

    name: str
    value: Option
    default: Option
    help: str
    takes: str
    part: str


def compose(slots: Sequence[Slot], values: Mapping[str, Option]) -> tuple[Part, ...]:
    """Return the part of each slot that is there; values of other parts are left alone.

    Raises:
        ValueError: For a value that is not one of its option's, or out of its range.
    """
    parts: dict[str, Part] = {}
    for slot in slots:
        if slot.within is not None:
            outer, choices = slot.within
            if outer not in parts or parts[outer].choice not in choices:
                continue
        choice = slot.default
        if slot.is_option:
            choice = chosen(slot.name, values.get(slot.name, slot.default), slot.choices)
        given = {
            item.field: item.checked(name, values.get(name, slot.default_of(item)))
            for name, item in slot.options(choice)
        }
        part = (slot.make or slot.choices[choice])(**given)
        parts[slot.name] = Part(slot=slot, name=slot.name, choice=choice, options=part)
    return tuple(parts.values())


def completed(slots: Sequence[Slot], values: Mapping[str, Option]) -> dict[str, Option]:
    """Return values of a file with those of options that there were not when it was written."""
    older: dict[str, Option] = {}
    for slot in slots:
        if slot.before is not None:
            older[slot.name] = slot.before
        for choice in slot.choices:
            older.update((n, item.before) for n, item in slot.options(choice) if item.has_before)
    return {**older, **values}


def option_values(parts: Iterable[Part]) -> dict[str, Option]:
    """Return the values of the options that exist by their names, as `option_lines` has them."""
    values: dict[str, Option] = {}
    for part in parts:
        if part.slot.is_option:
            values[part.slot.name] = part.choice
        for name, item in part.slot.options(part.choice):
            values[name] = getattr(part.options, item.field)
    return values


def option_lines(parts: Iterable[Part]) -> Iterator[OptionLine]:
    """Yield the options that exist, part by part."""
    for part in parts:
        slot = part.slot
        heading = f"{slot.name} {part.choice}".strip() if slot.is_option else slot.name
        if slot.is_option:
            yield OptionLine(
                name=slot.name,
                value=part.choice,
                default=slot.default,
                help=slot.help,
                takes=", ".join(slot.choices),
                part=heading,
            )
        for name, item in slot.options(part.choice):
            yield OptionLine(
                name=name,
                value=getattr(part.options, item.field),
                # What a task that is made with options was given is a value, no default.
                default=slot.default_of(item) if slot.make is None else item.default,
                help=item.help,
                takes=item.takes,
                part=heading,
            )


def all_names(slots: Iterable[Slot]) -> list[str]:
    """Return the names of all options of all parts, each once."""
    names: dict[str, None] = {}
    for slot in slots:
        if slot.is_option:
            names[slot.name] = None
        for choice in slot.choices:
            names.update(dict.fromkeys(name for name, _ in slot.options(choice)))
    return list(names)


def check_known(slots: Sequence[Slot], names: Iterable[str]) -> None:
    """Refuse what is no option of any part.

    Raises:
        ValueError: For the first, with the nearest known one.
    """
    known = all_names(slots)
    for name in names:
        if name not in known:
            meant = [alias for alias in _ALIASES.get(name, ()) if alias in known]
            near = meant or difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"{name!r} is not an option of an experiment; {hint}")


def check_chosen(slots: Sequence[Slot], parts: Sequence[Part], names: Iterable[str]) -> None:
    """Refuse options whose part is not chosen.

    Raises:
        ValueError: For the first, with the part that it belongs to.
    """
    existing = option_values(parts)
    for name in names:
        if name not in existing:
            raise ValueError(_belongs(slots, {part.name: part for part in parts}, name))


def _belongs(slots: Sequence[Slot], parts: Mapping[str, Part], name: str) -> str:
    owners = [(slot, slot.owners(name)) for slot in slots if slot.owners(name)]
    # Of several slots that have it, the one that is there says what would have to be chosen.
    slot, choices = next(
        ((s, c) for s, c in owners if s.name in parts),
        owners[0] if owners else (None, []),
    )
    if slot is None:  # the choice of a slot that is not there
        slot = next(s for s in slots if s.name == name)
    text = name
    if slot.name != name and slot.is_option:
        text += f" belongs to {slot.name} {_either(choices)}"
        if slot.name in parts:
            return (
                f"{text}; this experiment has {slot.name} {parts[slot.name].choice!r}: set "
                f"{slot.name} too, or leave {name} out"
            )
        text += ", which"
    while True:  # a slot may be within a slot that is not there either
        assert slot.within is not None
        outer, among = slot.within
        around = [s for s in slots if s.name == outer]
        named = [choice for s in around for choice in s.choices if choice in among]
        text += f" belongs to {outer} {_either(named)}"
        if outer in parts:
            return (
                f"{text}; this experiment has {outer} {parts[outer].choice!r}: set {outer} too, or "
                f"leave {name} out"
            )
        text, slot = f"{text}, which", around[0]


def _either(choices: Sequence[str]) -> str:
    quoted = [repr(choice) for choice in choices]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
