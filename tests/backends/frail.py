"""An actor that dies on demand and is quickly replaced: it imports nothing large."""

from __future__ import annotations

import os
import platform
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Opened:
    host: str
    process: int
    device: str


def mark(folder, what):
    """Write down that something is about to happen; return how often it did before."""
    before = len(list(Path(folder).glob(f"{what}-*")))
    Path(folder, f"{what}-{time.time_ns()}-{os.getpid()}").touch()
    return before


class Frail:
    """Does calls; dies in some, so many times."""

    def open(self, folder, deaths=0, refuse=None):
        if mark(folder, "open") < deaths:
            os._exit(1)
        if refuse is not None:
            raise refuse
        self.folder = folder
        return Opened(host=platform.node(), process=os.getpid(), device="none")

    def double(self, value):
        mark(self.folder, f"double{value}")
        return 2 * value

    def die(self, name, times, how="exit"):
        if mark(self.folder, name) < times:
            if how == "exit":
                os._exit(1)
            if how == "interrupt":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGKILL)
        return name

    def evaluate(self, params, public, part):
        if part[0]:
            return self.die("evaluate", 10**6)
        return part

    def refuse(self, error):
        raise error

    def wait(self, seconds):
        time.sleep(seconds)
        return seconds
