"""Waiting until something is so, and time that does not wait."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def wait_until(is_so: Callable[[], object], meanwhile: Callable[[], object] = lambda: True) -> None:
    """Wait until a function returns something true: the limit is a hang, and not a slow machine.

    Args:
        is_so: Is called again and again.
        meanwhile: What must be true all the time, such as that a process still runs.

    Raises:
        AssertionError: If it never does.
    """
    end = time.monotonic() + 900.0
    while not is_so():
        assert meanwhile() and time.monotonic() < end, "it never came true"
        time.sleep(0.01)


@dataclass
class Clock:
    """Seconds that pass only when somebody sleeps, or lets them."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-3)
