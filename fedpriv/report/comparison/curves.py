"""Curves of a comparison: runs that differ in ε alone, and the colour and marker of each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.report.comparison.groups import Group
from fedpriv.report.comparison.naming import labels_of_runs
from fedpriv.report.plots.drawing import MARKERS
from fedpriv.report.plots.theme import NUM_SERIES, series

# Options that only say how much ε is spent: runs that differ in nothing else are one curve.
_SPENDING = ("seed", "noise.target_epsilon", "noise.multiplier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Groups that differ in ε alone, or were given one label.

    Attributes:
        label: What names it among the curves that it is compared with.
        groups: At least one, in the order given.
        colour: A role of the theme.
        marker: Its shape, as matplotlib names it: another one where colours come again.
    """

    label: str
    groups: tuple[Group, ...]
    colour: str
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one group is drawn against rounds, and in tables.

    Attributes:
        colour: A role of the theme, its curve's.
        marker: Another one for each group of a curve.
    """

    colour: str
    marker: str


def curves_of(groups: Sequence[Group]) -> list[Curve]:
    """Return groups as curves, in the order given."""
    found: dict[object, list[Group]] = {}
    for group in groups:
        found.setdefault(_key(group), []).append(group)
    labels = labels_of_runs([members[0].head for members in found.values()], without=_SPENDING)
    return [
        Curve(
            label=label,
            groups=tuple(members),
            colour=series(place),
            marker=_marker(place // NUM_SERIES),
        )
        for place, (label, members) in enumerate(zip(labels, found.values(), strict=True))
    ]


def styles(groups: Sequence[Group]) -> list[Style]:
    """Return the style of each group."""
    curves, found = curves_of(groups), dict[int, Style]()
    longest = max(len(curve.groups) for curve in curves)
    for place, curve in enumerate(curves):
        for number, group in enumerate(curve.groups):
            marker = _marker(place // NUM_SERIES * longest + number)
            found[id(group)] = Style(colour=curve.colour, marker=marker)
    return [found[id(group)] for group in groups]


def _marker(number: int) -> str:
    return MARKERS[number % len(MARKERS)]


def _key(group: Group) -> object:
    if label := group.head.description.get("label"):
        return label, group.finished
    if group.head.own is not None:  # nothing says in what it differs
        return str(group.head.directory)
    options = {k: v for k, v in group.head.given_options.items() if k not in _SPENDING}
    return group.name, repr(sorted(options.items())), group.finished, group.head.simulated
