"""The file of a ledger: hash-chained JSON lines, appended by one process and synced one by one.

A line is the canonical JSON (sorted keys, no spaces, ASCII, no NaN) of an object with `seq` (from
0), `prev` (the hash before, 64 zeros at first), `kind`, the fields of that kind, and `hash`, the
SHA-256 of the same object without `hash`. Anything edited, dropped inside, swapped or inserted
breaks the chain. Cutting whole lines off the end does not: for that the head hash is also kept in
every checkpoint, and lines may be marked in an anchor.

Anchors are marks of how far a ledger had come, kept outside the run's folder. A folder cannot tell
that it was copied. Two copies of a run that are both continued release twice as much as either
ledger counts, a backup that is put back has forgotten charges, and lines cut off the end of a
ledger leave a chain that is whole. An anchor sees all three, if it does not lie where the folder
lies: every line of the ledger is marked there before anything is drawn for it, and a ledger that
lacks the line marked last is refused.

An anchor is a file on another volume, appended and synced. Without an anchor none of the three is
detected. With one, who can write to both the folder and the anchor, or has a copy that was never
resumed at all, is still free to lie.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from fedpriv.hashes import hex_digest
from fedpriv.parts import Part
from fedpriv.ranges import Range, whole_int
from fedpriv.untrusted_text import plain

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
        size: Bytes that were kept or appended.
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
        self.path, self.broken, self.size, self._called = Path(path), "", 0, called
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
        self.size = size

    def append(self, line: bytes) -> None:
        """Append a line and sync it, or break this object for good.

        Raises:
            LedgerError: If the disk refuses.
        """
        written = 0
        try:
            self._check_size(self.size)
            while written < len(line):
                written += os.write(self._fd, line[written:])
            os.fsync(self._fd)
            self._check_size(self.size + written)
        except BaseException as error:
            self.broken = f"a write failed ({error or type(error).__name__})"
            if 0 < written < len(line):
                # Half a line would be cut off at the next opening anyway; try to leave none.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self.size)
            if not isinstance(error, OSError):
                raise
            raise LedgerError(
                f"cannot write the {self._called} {self.path}: {error}. Nothing was drawn for this "
                "line; make room or make the disk writable, then resume the run"
            ) from error
        self.size += len(line)

    def _check_size(self, size: int) -> None:
        """Refuse a file that another process writes too, such as a fork, or that was replaced.

        Raises:
            LedgerError: If its size is another, or its name now leads to another file.
        """
        own, named = os.fstat(self._fd), os.stat(self.path)
        if own.st_size != size or not os.path.samestat(own, named):
            raise LedgerError(
                f"the {self._called} {self.path} was written or replaced by another process, and "
                "takes no further line of this one; end the others, and resume the run in one"
            )

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


def _position(name: str, value: Any) -> int:
    number = whole_int(name, value)
    Range.AT_LEAST_ZERO.check(name, number)
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(Part):
    """The position and hash of a ledger's line, as an anchor keeps it.

    Attributes:
        run_id: Of the run, from the ledger's first line.
        seq: The line's position, from 0.
        head: Its hash, 64 hex digits.
    """

    run_id: str
    seq: Annotated[int, _position]
    head: Annotated[str, hex_digest]

    @classmethod
    def read(cls, text: bytes | str, where: str) -> Mark:
        """Return a mark from its JSON.

        Raises:
            LedgerError: If it is none.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise LedgerError(f"{where} holds no mark of a ledger: {plain(error)}") from None


class Anchor:
    """A file of one run's marks, a line each, appended and synced; the last whole one counts."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the file; it is made with the run. It must not lie in the run folder."""
        self.path, self._file = Path(path), None

    def __str__(self) -> str:
        return f"the anchor {self.path}"

    def hold(self) -> None:
        """Lock the file, and cut off an incomplete mark that a crash left."""
        self._file = file = LedgerFile(self.path, new=True, called="anchor")
        whole = file.read().rfind(b"\n") + 1
        try:
            file.keep(whole)
            file.sync_folder()
        except OSError as error:
            self.close()
            raise LedgerError(f"cannot write {self}: {error}") from error

    def last(self) -> Mark | None:
        """Return the mark made last, of whatever run; None where there is none yet."""
        try:
            lines = self.path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(f"cannot read {self}: {error}") from error
        return Mark.read(lines[-1], str(self)) if lines else None

    def advance(self, mark: Mark) -> None:
        """Append a mark and sync it."""
        assert self._file is not None
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise LedgerError(f"cannot write {self}: {error}") from error
        if size != self._file.size:  # where locks do not reach, as on some shared disks
            raise LedgerError(
                f"{self} was written by somebody else while this run held it: the run is "
                "continued twice; stop one"
            )
        self._file.append(json.dumps(asdict(mark)).encode() + b"\n")

    def close(self) -> None:
        """Release its lock."""
        if self._file is not None:
            self._file.close()


WITHOUT_ANCHOR = (
    "a folder that was rewritten as a whole, with other noise, charges or options than the run "
    "had: its hashes have no key",
    "a copy of the folder that was continued besides, whose releases ε does not count",
    "an older backup that was put back",
    "lines after the last checkpoint that were cut off the ledger's end or rewritten: charges, "
    "and the digests of a finished run's files",
)
"""Manipulations of a run folder that are not detected without an anchor."""
ANCHORED = "anchored"
"""Key of the first line's further facts: whether the ledger has an anchor."""


def check_anchor(anchor: Anchor | None, read: Callable[[], Chain]) -> str:
    """Compare a ledger with its anchor.

    Args:
        anchor: The one that was given.
        read: Reads the ledger's lines, at least one; called before and after an anchor is asked.

    Returns:
        What was found, in a sentence.

    Raises:
        LedgerError: If the ledger is not as far as the anchor is, or further than a crash leaves
            it; if there is no anchor where there has to be one, or one where there was none.
    """
    chain = read()
    run_id = str(chain.records[0].fields.get("run_id"))
    anchored = bool(dict(chain.records[0].fields.get("extra") or {}).get(ANCHORED))
    if anchored != (anchor is not None):
        raise LedgerError(
            "the run was started with an anchor, which tells a copy or an old backup from the "
            "ledger itself; give it again (--anchor)"
            if anchored
            else "the run was started without an anchor, and what came before it cannot be "
            "anchored any more; leave it out, or start a new run"
        )
    if anchor is not None:
        mark, before = anchor.last(), len(chain.records)
        chain = read()  # of a run under way lines came meanwhile, and never went
        _compare(anchor, mark, chain, run_id, before)
    return f"the ledger is as far as its anchor, {len(chain.records):,} lines"


def _compare(
    anchor: Anchor, mark: Mark | None, chain: Chain, run_id: str, lines_before: int
) -> None:
    if mark is None or mark.run_id != run_id:
        found = "nothing" if mark is None else f"run {plain(mark.run_id)[:12]}"
        raise LedgerError(
            f"{anchor} is of {found}, and not of run {run_id[:12]}; give the one that the run was "
            "started with"
        )
    lines = len(chain.records)
    if mark.seq >= lines or chain.records[mark.seq].hash != mark.head:
        raise LedgerError(
            f"the ledger of {lines:,} lines lacks line {mark.seq + 1:,}, which {anchor} has "
            "marked: it is an older backup, was cut, or is a copy of a run that was continued "
            "elsewhere; what that released was charged there, so go on with that folder"
        )
    if lines_before > mark.seq + 2:
        raise LedgerError(
            f"the ledger has {lines_before:,} lines and {anchor} has marked {mark.seq + 1:,}: a "
            "crash leaves one more at most, so the anchor was put back or the run went on without"
        )


class AnchoredFile(LedgerFile):
    """The file of a ledger that marks each line in its anchor before `append` returns."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        anchor: str | os.PathLike[str] | None,
        *,
        new: bool = False,
    ) -> None:
        """Open and lock a ledger's file and its anchor.

        Args:
            path: Where the file is.
            anchor: Where its lines are marked; None for a ledger without an anchor.
            new: Whether to make the file if it is not there.

        Raises:
            LedgerError: As `LedgerFile`; or if the anchor lies in the folder of the run, or is held
                by another process. Nothing is held then.
        """
        self._anchor, self._run_id = None if anchor is None else Anchor(anchor), ""
        super().__init__(path, new=new)
        if self._anchor is None:
            return
        try:
            if self._anchor.path.resolve().is_relative_to(self.path.resolve().parent):
                raise LedgerError(
                    f"{self._anchor} lies in the run folder, and would be copied and put back with "
                    "it; give a file on another volume"
                )
            self._anchor.hold()
        except BaseException:
            self.close()
            raise

    def check(self, chain: Chain) -> None:
        """Compare the lines with the anchor before any other is written."""
        check_anchor(self._anchor, lambda: chain)
        self._run_id = str(chain.records[0].fields["run_id"])

    def append(self, line: bytes) -> None:
        """Append a line, sync it, and mark it; nothing may be drawn for it where this raises."""
        anchor = self._anchor
        if anchor is None:
            super().append(line)
            return
        fields = json.loads(line)
        if fields["seq"] == 0:
            self._run_id = str(fields["run_id"])
            mark = anchor.last()
            if mark is not None and mark.seq > 0:  # of a first line alone nothing was charged
                raise LedgerError(
                    f"{anchor} is of run {plain(mark.run_id)[:12]} already; give each run its own"
                )
        super().append(line)
        try:
            anchor.advance(Mark(run_id=self._run_id, seq=fields["seq"], head=fields["hash"]))
        except BaseException as error:
            self.broken = f"its anchor failed ({error or type(error).__name__})"
            raise

    def close(self) -> None:
        """Release the file and its anchor."""
        if self._anchor is not None:
            self._anchor.close()
        super().close()
