"""The file of a ledger: hash-chained JSON lines, appended by one process and synced one by one.

A line is the canonical JSON (sorted keys, no spaces, ASCII, no NaN) of an object with `seq` (from
0), `prev` (the hash before, 64 zeros at first), `kind`, the fields of that kind, and `hash`, the
SHA-256 of the same object without `hash`. Anything edited, dropped inside, swapped or inserted
breaks the chain. Cutting whole lines off the end does not: for that the head hash is also kept in
every checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GENESIS = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One verified line.

    Attributes:
        seq: Position, from 0.
        kind: What happened.
        fields: The values of that kind.
        hash: SHA-256 of the line, 64 hex digits.
    """

    seq: int
    kind: str
    fields: Mapping[str, Any]
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The verified lines of a file.

    Attributes:
        records: The lines in order.
        num_bytes: Bytes they take; anything after is torn.
        torn: Bytes after the last newline, of a write that was cut off.
    """

    records: tuple[Record, ...]
    num_bytes: int
    torn: int

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self.records[-1].hash if self.records else GENESIS


def encode(seq: int, previous: str, kind: str, fields: Mapping[str, Any]) -> tuple[Record, bytes]:
    """Return a record and its line, newline included.

    Raises:
        ValueError: If a field is not plain, finite JSON, or takes a reserved name.
    """
    if {"seq", "prev", "kind", "hash"} & set(fields):
        raise ValueError(f"a {kind} record cannot have the reserved fields seq, prev, kind, hash")
    body = {"seq": seq, "prev": previous, "kind": kind, **fields}
    digest = hashlib.sha256(_canonical(body)).hexdigest()
    line = _canonical({**body, "hash": digest}) + b"\n"
    return Record(seq=seq, kind=kind, fields=dict(fields), hash=digest), line


def decode(data: bytes) -> Chain:
    """Return the chain held by the bytes of a file; a last line without newline counts as torn.

    Raises:
        ValueError: Naming the first line that is not what the chain says.
    """
    end = data.rfind(b"\n") + 1
    records: list[Record] = []
    previous = GENESIS
    # A canonical line is ASCII; of any other byte Latin-1 makes a sign that no such line has.
    for number, line in enumerate(data[:end].decode("latin-1").split("\n")[:-1], start=1):
        try:
            body = _DECODER.decode(line)
            whole = _ENCODER.encode(body)
            stated, seq, prev, kind = (body.pop(name) for name in ("hash", "seq", "prev", "kind"))
            # Of a canonical line the body's bytes are those of the line without its hash.
            body_alone = _without(whole, f'"hash":"{stated}"')
            digest = hashlib.sha256(body_alone.encode("ascii")).hexdigest()
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise ValueError(f"line {number} is not a line of a ledger") from None
        follows = type(seq) is int and (stated, seq, prev) == (digest, number - 1, previous)
        if whole != line or not follows:
            raise ValueError(
                f"line {number} does not follow from the lines before it: the ledger "
                "was edited, or lines were removed, swapped or inserted"
            )
        records.append(Record(seq=seq, kind=kind, fields=body, hash=digest))
        previous = digest
    return Chain(records=tuple(records), num_bytes=end, torn=len(data) - end)


def _without(whole: str, member: str) -> str:
    """Return a canonical object without one top-level member: "kind" and more come after it."""
    before, found, after = whole.rpartition(f"{member},")
    if not found:
        raise ValueError("the line has no hash")
    return before + after


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder()


def _canonical(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


# Who looks whether a file is held takes its lock for an instant.
_TRIES, _PAUSE_SECONDS = 5, 0.05


class LedgerError(ValueError):
    """The ledger is damaged, held by another process, or cannot be written."""


class LedgerFile:
    """An append-only file, open and locked; the lock ends with the process that holds it.

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
        """Return the whole content."""
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            return file.read()

    def keep(self, size: int) -> None:
        """Truncate the file to this many bytes, and sync.

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
        """Release the file and its lock."""
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
