"""Parameters of tests: many cases in one test, and cases of which only the full suite runs all."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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


def first(number: int, axis: Axis) -> list[Any]:
    """Return all values, those after the first so many marked as slow."""
    return [item if at < number else _slow(item) for at, item in enumerate(_values(axis))]


def only(kept: Collection[Any], axis: Axis) -> list[Any]:
    """Return all values, those whose id is not among the kept ones' marked as slow."""
    values, names = _values(axis), {str(name) for name in kept}
    assert names <= {item.id for item in values}, f"of {names} not all are there"
    return [item if item.id in names else _slow(item) for item in values]


def every_case(
    names: str | Sequence[str], cases: Iterable[Any], ids: Any = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test once for every case, all of them as one test.

    It takes what `pytest.mark.parametrize` takes, for cases so short that most of their time would
    go into being tests of their own. An error says in a note which case it is of. A case has a
    folder and patches of its own, and sees nothing that was written before it.
    """
    called = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    found = [_case(case, len(called) == 1) for case in cases]
    assert found, "there are no cases"
    if callable(ids):
        labels = ["-".join(str(ids(value)) for value in case) for case in found]
    else:
        labels = list(found if ids is None else ids)
    assert len(labels) == len(found)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_of_them(*own: Any, **fixtures: Any) -> None:
            for number, (label, case) in enumerate(zip(labels, found, strict=True)):
                with _anew(fixtures, number) as given:
                    try:
                        test(*own, **given, **dict(zip(called, case, strict=True)))
                    except BaseException as error:
                        error.add_note(f"in case {number}: {label}")
                        raise

        left = [p for p in inspect.signature(test).parameters.values() if p.name not in called]
        all_of_them.__dict__["__signature__"] = inspect.Signature(left)
        return all_of_them

    return decorate


@contextlib.contextmanager
def _anew(fixtures: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    given = dict(fixtures)
    with contextlib.ExitStack() as stack:
        if "tmp_path" in given:
            given["tmp_path"] = given["tmp_path"] / f"case{number}"
            given["tmp_path"].mkdir()
        if "monkeypatch" in given:
            given["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
        if "capsys" in given:
            given["capsys"].readouterr()
        if "caplog" in given:
            given["caplog"].clear()
        yield given


def _case(case: Any, alone: bool) -> tuple[Any, ...]:
    if hasattr(case, "marks"):
        assert not case.marks, "a case has no marks of its own"
        return tuple(case.values)
    return (case,) if alone else tuple(case)


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


def _slow(item: Any) -> Any:
    return pytest.param(*item.values, id=item.id, marks=[*item.marks, pytest.mark.slow])
