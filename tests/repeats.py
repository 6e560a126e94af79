"""Parameters of tests of which the default suite runs some, and the full one all."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

Axis = Mapping[str, Any] | Iterable[Any]


def each_once(*axes: Axis) -> list[Any]:
    """Return every combination of the axes' values, most of them marked as slow.

    By default run the diagonal: so many combinations that every value is in one of them. A value
    that is marked as slow itself is in none of these.

    Args:
        axes: From ids to values, or values, which may be `pytest.param`.
    """
    values = [_values(axis) for axis in axes]
    quick = [[at for at, item in enumerate(axis) if not item.marks] for axis in values]
    longest = max(len(places) for places in quick)
    diagonal = {tuple(places[step % len(places)] for places in quick) for step in range(longest)}
    return [_combined(values, at, at in diagonal) for at in _every(values)]


def first(number: int, axis: Axis) -> list[Any]:
    """Return all values, those after the first so many marked as slow."""
    return [item if at < number else _slow(item) for at, item in enumerate(_values(axis))]


def only(kept: Collection[Any], axis: Axis) -> list[Any]:
    """Return all values, those whose id or value is not among the kept ones marked as slow."""
    values = _values(axis)
    found = [item for item in values if item.id in kept or item.values[0] in kept]
    assert len(found) >= len(kept), f"of {kept}, {len(found)} are there"
    return [item if item in found else _slow(item) for item in values]


def _every(values: list[list[Any]]) -> Iterable[tuple[int, ...]]:
    return itertools.product(*(range(len(axis)) for axis in values))


def _values(axis: Axis) -> list[Any]:
    if isinstance(axis, Mapping):
        return [pytest.param(value, id=name) for name, value in axis.items()]
    return [item if hasattr(item, "marks") else pytest.param(item) for item in axis]


def _slow(item: Any) -> Any:
    return pytest.param(*item.values, id=item.id, marks=[*item.marks, pytest.mark.slow])


def _combined(values: list[list[Any]], at: tuple[int, ...], kept: bool) -> Any:
    items = [axis[place] for axis, place in zip(values, at, strict=True)]
    given = [value for item in items for value in item.values]
    named = [item.id if item.id is not None else _written(item.values) for item in items]
    marks = [] if kept else [pytest.mark.slow]
    return pytest.param(*given, id="-".join(named), marks=marks)


def _written(given: tuple[Any, ...]) -> str:
    return "-".join(str(getattr(value, "__name__", value)) for value in given)
