"""Ctrl-C and SIGTERM in the middle of a round, so that neither is lost.

Python raises `KeyboardInterrupt` wherever the main thread happens to be. Within a call into
compiled code it may surface as a `SystemError` of which it is the cause, or not at all; Ray drops
what a handler raises in some of its calls. A user that fails contributes zero, so an interrupt
taken for a failure would cost that user's data, and the run would go on. Two things prevent that:
a handler also writes down that it was called, which is looked at before every user and round and
wherever a failure is caught; and a failure that is caught is searched for an interrupt behind it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_asked: list[int] = []
_before: dict[int, Any] = {}
_holders: list[str] = []
_before_hook: list[Any] = []


def install() -> None:
    """Answer SIGINT (where Python's own handler does) and SIGTERM; only the main thread can."""
    if not _in_main_thread():
        return
    _hold("install")
    # Ray's own answer to SIGTERM is to abort, and some of its processes outlive that.
    signal.signal(signal.SIGTERM, _stop)


def restore(sigterm: Any) -> None:
    """Put back what answered before `install`."""
    if _in_main_thread():
        signal.signal(signal.SIGTERM, sigterm)
        _let_go("install")


@contextmanager
def interruptible() -> Iterator[None]:
    """Run what is inside so that Ctrl-C ends it with `KeyboardInterrupt`, whatever it met there.

    In the main thread, where Python's own handler answers SIGINT, ours does meanwhile. One may be
    inside another.

    Raises:
        KeyboardInterrupt: If Ctrl-C was pressed and the interrupt was dropped on its way or turned
            into another exception.
    """
    main = _in_main_thread()
    try:
        if main:
            _hold("interruptible")
        try:
            yield
        except Exception as error:
            end_if_interrupted(error)
            raise
        stop_if_asked()
    except KeyboardInterrupt:
        _asked.clear()  # it is on its way to the caller
        raise
    finally:
        if main:
            _let_go("interruptible")


def stop_if_asked() -> None:
    """Raise what a signal that came before should have raised."""
    if _asked:
        _raise(_asked[-1])


def end_if_interrupted(error: BaseException) -> None:
    """Raise the interrupt again that a caught failure may have been.

    Call it first wherever a failure is caught that does not end the run.

    Raises:
        KeyboardInterrupt: If a signal came, or the error was made of an interrupt.
    """
    stop_if_asked()
    links, seen = [error], set[int]()
    while links:
        link = links.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        if isinstance(link, KeyboardInterrupt) and not _is_handled_further_out(link):
            raise KeyboardInterrupt from error
        links += [item for item in (link.__cause__, link.__context__) if item is not None]


def _is_handled_further_out(interrupt: KeyboardInterrupt) -> bool:
    """Return whether it is an earlier one, in whose `except` clause all of this happens.

    Python makes it the context of every later error. It was caught in a frame that still runs;
    one that a user's training ran into was caught, if at all, in a frame that has ended.
    """
    if interrupt.__traceback__ is None:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame is interrupt.__traceback__.tb_frame:
            return True
        frame = frame.f_back
    return False


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _hold(who: str) -> None:
    # First: an interrupt may come between any two lines, and what holds is let go of.
    _holders.append(who)
    if len(_holders) == 1:
        _asked.clear()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _before[signal.SIGINT] = signal.default_int_handler
            signal.signal(signal.SIGINT, _stop)
            _before_hook.append(sys.unraisablehook)
            sys.unraisablehook = _unraisable


def _let_go(who: str) -> None:
    if who not in _holders:  # it never came to hold
        return
    _holders.remove(who)
    if not _holders:
        # A forgotten generator may be closed by any thread; then the next holder does it.
        if signal.SIGINT in _before and _in_main_thread():
            signal.signal(signal.SIGINT, _before[signal.SIGINT])
            del _before[signal.SIGINT]
            sys.unraisablehook = _before_hook.pop()
        _asked.clear()


def _unraisable(dropped: Any) -> None:
    """Say nothing of a Ctrl-C that compiled code dropped: it is written down, and raised again."""
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        _before_hook[-1](dropped)


def _stop(number: int, frame: object) -> NoReturn:
    _asked.append(number)
    _raise(number)


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    # Unwind on SIGTERM as on Ctrl-C, so that everything is stopped in order.
    raise SystemExit(128 + number)
