"""Which cases of a test run by default: so many that each value of each parameter is tried.

A test that is parametrised several times over has a case for each combination. By default so many
of them run that every value of every parameter is there at least once ("each choice"); the others
are marked slow and run in `make test-full`. What belongs together stands in one `parametrize`, of
which no row is left out. `@pytest.mark.combined` keeps all combinations of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
#: The names that one `parametrize` gives values to, and the values' identities.
Choice = tuple[tuple[str, ...], tuple[int, ...]]


def mark_repeats(items: Sequence[pytest.Item]) -> None:
    """Mark as slow what no value needs; tests that are slow already cover nothing."""
    cases: dict[str, list[pytest.Function]] = {}
    for item in items:
        own = isinstance(item, pytest.Function) and hasattr(item, "callspec")
        if own and not any(item.get_closest_marker(name) for name in ("slow", "combined")):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for several in cases.values():
        kept = each_choice(several, choices)
        for item in several:
            if item not in kept:
                item.add_marker(pytest.mark.slow)


def choices(item: pytest.Function) -> frozenset[Choice]:
    """Return what was chosen of each `parametrize`, and of each parametrised fixture."""
    left = dict(item.callspec.params)
    found: set[Choice] = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        each = tuple(n.strip() for n in names.split(",")) if isinstance(names, str) else (*names,)
        found.add((each, tuple(id(left.pop(name)) for name in each if name in left)))
    return frozenset(found | {((name,), (id(value),)) for name, value in left.items()})


def each_choice(cases: Sequence[T], chosen: Callable[[T], frozenset[Choice]]) -> list[T]:
    """Return few cases that together have every choice of all: the most needed first."""
    of = [chosen(case) for case in cases]
    missing = frozenset[Choice]().union(*of)
    kept: list[T] = []
    while missing:
        best = max(range(len(cases)), key=lambda number: len(of[number] & missing))
        kept.append(cases[best])
        missing -= of[best]
    return kept
