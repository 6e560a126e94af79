"""Combinations of parameters, of which only the full suite runs all."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

Axis = Mapping[str, Any] | Iterable[Any]


def each_once(*axes: Axis, also: Callable[..., bool] | None = None) -> list[Any]:
    """Return every combination of the axes' values, most of them marked as slow.

    By default run the diagonal: so many combinations that every value is in one of them. A value
    that is marked as slow itself is in none of these.

    Args:
        axes: From ids to values, or values, which may be tuples of several parameters or
            `pytest.param`.
        also: From the ids of a combination to whether it runs by default too.
    """
    values = [_values(axis) for axis in axes]
    quick = [[item for item in axis if not item.marks] for axis in values]
    longest = max(len(axis) for axis in quick)
    diagonal = [tuple(axis[step % len(axis)].id for axis in quick) for step in range(longest)]
    found = []
    for items in itertools.product(*values):
        names = tuple(item.id for item in items)
        runs = names in diagonal or (also is not None and also(*names))
        marks = [mark for item in items for mark in item.marks]
        marks += [] if runs else [pytest.mark.slow]
        given = [value for item in items for value in item.values]
        found.append(pytest.param(*given, id="-".join(names), marks=marks))
    return found


def _values(axis: Axis) -> list[Any]:
    """Return parameters with ids, those of values without one as pytest would call them."""
    if isinstance(axis, Mapping):
        return [pytest.param(value, id=name) for name, value in axis.items()]
    found = []
    for number, item in enumerate(axis):
        plain = item if isinstance(item, tuple) else (item,)
        param = item if hasattr(item, "marks") else pytest.param(*plain)
        name = param.id or "-".join(_called(value, number) for value in param.values)
        found.append(pytest.param(*param.values, id=name, marks=param.marks))
    return found


def _called(value: Any, number: int) -> str:
    simple = isinstance(value, str | bool | int | float | None)
    return str(getattr(value, "__name__", value if simple else f"case{number}"))
