"""Composition: of each slot one part is chosen, and only the options of chosen parts exist.

A slot with several choices is an option itself, whose value is the choice: `bound` is "clip",
"normalise" or "none", and `normalise-regulariser` exists where it is "normalise".
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fedpriv.experiments.composing.options import Declared, Option, chosen, declared, kebab

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
