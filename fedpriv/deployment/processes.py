"""Forked processes that end with their parent, and what they say to it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(slots=True, kw_only=True)
class Forked:
    """A child process, as its parent sees it.

    Attributes:
        pid: Its id.
        said: Where its lines come from: a file descriptor.
        heard: Where its parent's lines go; -1 where nothing is said to it.
    """

    pid: int
    said: int
    heard: int = -1
    _rest: bytes = field(default=b"", repr=False)

    def lines(self) -> list[bytes] | None:
        """Return what it said since, once there is something to read; None if it is at its end."""
        data = os.read(self.said, 1 << 16)
        if not data:
            return None
        *found, self._rest = (self._rest + data).split(b"\n")
        return found

    def tell(self, line: bytes) -> None:
        """Say a line to it; one that has ended hears nothing."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.heard, line + b"\n")

    def close(self) -> None:
        """End it if it has not ended, and forget it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self.said)
        if self.heard >= 0:
            os.close(self.heard)


def fork(
    work: Callable[[int, Callable[[bytes], None]], None], others: Callable[[], list[Forked]]
) -> Forked:
    """Fork a child that does some work and ends.

    Args:
        work: Given a descriptor of its parent's lines and a function that says one to its parent.
        others: The parent's other children, whose pipes are not the new one's affair.
    """
    heard_reader, heard = os.pipe()
    said, said_writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(heard_reader)
        os.close(said_writer)
        return Forked(pid=pid, said=said, heard=heard)
    code = 1
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for descriptor in (heard, said, *(each.said for each in others())):
            os.close(descriptor)
        for each in others():
            if each.heard >= 0:
                os.close(each.heard)
        work(heard_reader, lambda line: _write(said_writer, line + b"\n"))
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(descriptor, data) :]
