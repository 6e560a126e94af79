"""Ends of a process at a chosen moment of a run."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import fedpriv as fp
from fedpriv.privacy.ledger.ledger import Ledger

ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """The process is gone."""


@contextlib.contextmanager
def killed(
    owner: Any,
    name: str,
    number: int = 1,
    *,
    after: bool = False,
    when: Callable[..., bool] = lambda *given, **named: True,
) -> Iterator[None]:
    """Assert that a block ends at a call of a function, as if the process were killed there.

    Args:
        owner: The class or module of the function.
        name: Of the function.
        number: Which of its calls, of those that count.
        after: Whether that call is carried out first.
        when: From a call's arguments to whether it counts.
    """
    real, calls = getattr(owner, name), 0

    def call(*given: Any, **named: Any) -> Any:
        nonlocal calls
        counts = when(*given, **named)
        calls += counts
        if counts and calls == number and not after:
            raise Killed
        result = real(*given, **named)
        if counts and calls == number and after:
            raise Killed
        return result

    with mock.patch.object(owner, name, call), pytest.raises(Killed):
        yield


def killed_after(number: int, *kinds: str) -> contextlib.AbstractContextManager[None]:
    """Assert that a block ends right after so many lines of some kinds are in a ledger's file."""

    def counts(ledger: Ledger, record: Any, line: Any) -> bool:
        return ledger.path is not None and record.kind in kinds

    return killed(Ledger, "_write", number, after=True, when=counts)


def after_round(round_num: int) -> Callable[[Any], None]:
    """What `PreparedRun.run` calls with every round, and is killed by after one of them."""

    def show(record: Any) -> None:
        if record.released.round_num == round_num:
            raise Killed

    return show


class Stop(fp.Callback):
    """A callback that ends the process after a round."""

    def __init__(self, after: int | None) -> None:
        self.after = after

    def on_round(self, released: Any, round_num: int) -> None:
        if round_num == self.after:
            raise Killed
