"""The file of a ledger: held by one process, appended line by line, each line synced."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

# Who looks whether a file is held takes its lock for an instant.
_TRIES, _PAUSE_SECONDS = 5, 0.05


class LedgerError(ValueError):
    """The ledger refuses: it is damaged, held by another process, or cannot be written."""


class LedgerFile:
    """An open file whose lock dies with the process that holds it.

    Attributes:
        path: Where it is.
        broken: Why it takes no further line; "" while it does.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, new: bool = False, called: str = "ledger"
    ) -> None:
        """Open a file and take its lock.

        Args:
            path: Where it is.
            new: Whether to make it if it is not there.
            called: What messages call it.

        Raises:
            LedgerError: If it is missing, cannot be opened, or another process holds it.
        """
        self.path, self.broken, self._size, self._called = Path(path), "", 0, called
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if new else 0)
        try:
            self._fd = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise LedgerError(f"cannot open the {called} {path}: {error}") from error
        try:
            _lock(self._fd)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise LedgerError(
                    f"the {called} {path} is in use by another process; wait for that run "
                    "to end, or stop it"
                ) from None
            raise LedgerError(f"cannot lock the {called} {path}: {error}") from error

    def read(self) -> bytes:
        """Return everything in it."""
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            return file.read()

    def keep(self, size: int) -> None:
        """Cut off what is behind so many bytes, and sync.

        Raises:
            OSError: If the disk refuses.
        """
        if size != os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        self._size = size

    def append(self, line: bytes) -> None:
        """Append a line and sync it, or break this object for good.

        Raises:
            LedgerError: If the disk refuses.
        """
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
            os.fsync(self._fd)
        except BaseException as error:
            self.broken = f"a write failed ({error or type(error).__name__})"
            if written < len(line):
                # Half a line would be cut off at the next opening anyway; try to leave none.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._size)
            if not isinstance(error, OSError):
                raise
            raise LedgerError(
                f"cannot write the {self._called} {self.path}: {error}. Nothing was drawn for this "
                "line; make room or make the disk writable, then resume the run"
            ) from error
        self._size += len(line)

    def close(self) -> None:
        """Let go of the file and its lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.broken = self.broken or "it was closed"

    def sync_folder(self) -> None:
        """Sync the folder, so that a new file is in it after a loss of power.

        Raises:
            OSError: If the disk refuses.
        """
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Take a file's lock; raise `BlockingIOError` if another process goes on holding it."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left == 0:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
