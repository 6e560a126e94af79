"""Forked processes that end with their parent and leave nothing behind, and lines between them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


@dataclass(slots=True, kw_only=True)
class Forked:
    """A child process, as its parent sees it.

    Attributes:
        pid: Its id.
        ended: A file descriptor that is ready when it has ended, whatever holds its pipes then.
        output: File descriptor that its lines come from.
        input: File descriptor that its parent's lines go to.
    """

    pid: int
    ended: int
    output: int
    input: int
    _rest: bytes = field(default=b"", repr=False)
    _silent: bool = field(default=False, repr=False)

    @property
    def descriptors(self) -> list[int]:
        """Those that are ready when there is something for `lines`."""
        return [self.ended] if self._silent else [self.output, self.ended]

    def lines(self) -> list[bytes] | None:
        """Return its lines since; None if it has ended, and all were read. Waits for one of them.

        Empty where it closed its pipe before its end, which is then waited for by the next call.

        What it started itself may live on and hold its pipes open: that is not waited for.
        """
        select.select(self.descriptors, [], [])
        if not self._silent and select.select([self.output], [], [], 0)[0]:
            if data := os.read(self.output, 1 << 16):
                *found, self._rest = (self._rest + data).split(b"\n")
                return found
            self._silent = True
        return None if select.select([self.ended], [], [], 0)[0] else []

    def tell(self, line: bytes) -> None:
        """Write a line to it; one that has ended reads nothing."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.input, line + b"\n")

    def close(self) -> None:
        """End it if it has not ended, and forget it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.ended, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.forget()

    def forget(self) -> None:
        """Close what leads to it."""
        for descriptor in (self.output, self.ended, self.input):
            os.close(descriptor)


def fork(
    work: Callable[[int, Callable[[bytes], None]], None], others: Callable[[], list[Forked]]
) -> Forked:
    """Fork a child that does some work and ends.

    Args:
        work: Given a descriptor of its parent's lines and a function that writes one to its parent.
        others: The parent's other children, whose pipes the new one closes.
    """
    input_reader, input_writer = os.pipe()
    output_reader, output_writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(input_reader)
        os.close(output_writer)
        return Forked(pid=pid, ended=os.pidfd_open(pid), output=output_reader, input=input_writer)
    code = 1
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(input_writer)
        os.close(output_reader)
        for each in others():
            each.forget()
        work(input_reader, lambda line: _write(output_writer, line + b"\n"))
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind."""
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def end_orphans(own: Iterable[int]) -> int:
    """End what children left behind, and what comes up with it; return how many that were.

    Args:
        own: Ids of the children that stay.
    """
    kept, count = frozenset(own), 0
    while left := children() - kept:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        count += len(left)
    return count


def children() -> frozenset[int]:
    """Return the ids of this process's children, dead ones that were not waited for included."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has ended
            found.update(int(pid) for pid in path.read_text("ascii").split())
    return frozenset(found)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(descriptor, data) :]
