"""Ctrl-C and SIGTERM beside Ray, so that neither is lost.

Ray looks for signals while it waits, but also in calls that drop what a handler raises: a Ctrl-C at
such a moment would go by unheard. So a handler also writes down that it was called, and whoever
carries rounds asks before each.
"""

from __future__ import annotations

import signal
import threading
from typing import Any, NoReturn

_asked: list[int] = []
_before: dict[int, Any] = {}


def install() -> None:
    """Answer SIGINT (where nobody else does) and SIGTERM; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return
    _asked.clear()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _before[signal.SIGINT] = signal.signal(signal.SIGINT, _stop)
    # Ray's own answer to SIGTERM is to abort, and some of its processes outlive that.
    signal.signal(signal.SIGTERM, _stop)


def restore(sigterm: Any) -> None:
    """Put back what answered before."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, sigterm)
        if signal.SIGINT in _before:
            signal.signal(signal.SIGINT, _before.pop(signal.SIGINT))
    _asked.clear()


def stop_if_asked() -> None:
    """Raise what a signal that came before should have raised."""
    if _asked:
        _raise(_asked[-1])


def _stop(number: int, frame: object) -> NoReturn:
    _asked.append(number)
    _raise(number)


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    # Unwind on SIGTERM as on Ctrl-C, so that everything is stopped in order.
    raise SystemExit(128 + number)
