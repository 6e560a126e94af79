"""Ends of a process at a chosen moment of a run: in this process, or by SIGKILL in another."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import fedpriv as fp

ROOT = Path(__file__).parents[2]
SIGKILLED = "import sys; from tests.harness.kills import _main; _main(*sys.argv[1:])"


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

    def end() -> None:
        raise Killed

    ending = _ending(owner, name, number, end, after, when)
    with mock.patch.object(owner, name, ending), pytest.raises(Killed):
        yield


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


def sigkilled(place: str, number: int, *arguments: Any) -> None:
    """Run `fedpriv` in a process that SIGKILLs itself at a call of a function.

    Args:
        place: The function, as `module:Class.name`.
        number: Which of its calls.
        *arguments: Of the command.
    """
    found = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", SIGKILLED, place, str(number), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def _main(place: str, number: str, *arguments: str) -> None:
    from fedpriv.cli import main

    module, _, function = place.partition(":")
    owner, _, name = function.partition(".")
    found = getattr(importlib.import_module(module), owner)

    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(found, name, _ending(found, name, int(number), end))
    sys.argv = ["fedpriv", *arguments]
    main()


def _ending(
    owner: Any,
    name: str,
    number: int,
    end: Callable[[], None],
    after: bool = False,
    when: Callable[..., bool] = lambda *given, **named: True,
) -> Callable[..., Any]:
    real, calls = getattr(owner, name), 0

    def call(*given: Any, **named: Any) -> Any:
        nonlocal calls
        counts = when(*given, **named)
        calls += counts
        if counts and calls == number and not after:
            end()
        result = real(*given, **named)
        if counts and calls == number and after:
            end()
        return result

    return call
