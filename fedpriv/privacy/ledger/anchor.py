"""Anchors: marks of how far a run's ledger had come, kept outside the run's folder.

A folder cannot tell that it was copied. Two copies of a run that are both continued release twice
as much as either ledger counts, a backup that is put back has forgotten charges, and lines cut off
the end of a ledger leave a chain that is whole. An anchor sees all three, if it does not lie where
the folder lies: every line of the ledger is marked there before anything is drawn for it, and a
ledger that lacks the line marked last is refused.

An anchor is a file on another volume, appended and synced. Without an anchor none of the three is
detected. With one, who can write to both the folder and the anchor, or has a copy that was never
resumed at all, is still free to lie.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedpriv.privacy.ledger.chain import Chain, LedgerError, LedgerFile
from fedpriv.privacy.ledger.state import hex_digest
from fedpriv.untrusted_text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The position and hash of a ledger's line, as an anchor keeps it.

    Attributes:
        run_id: Of the run, from the ledger's first line.
        seq: The line's position, from 0.
        head: Its hash, 64 hex digits.
    """

    run_id: str
    seq: int
    head: str

    @classmethod
    def read(cls, text: bytes | str, where: str) -> Mark:
        """Return a mark from its JSON.

        Raises:
            LedgerError: If it is none.
        """
        try:
            found = json.loads(text)
            mark = cls(run_id=found["run_id"], seq=found["seq"], head=hex_digest(found["head"]))
            if not isinstance(found["run_id"], str) or type(mark.seq) is not int or mark.seq < 0:
                raise ValueError("its run_id or seq is of another kind")
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{where} holds no mark of a ledger: {plain(error)}") from None
        return mark


class Anchor(ABC):
    """Base of places outside the run folder that keep marks, written by one process at a time."""

    def hold(self) -> None:
        """Lock the anchor for this process, where needed; raise `LedgerError` if that fails."""
        return

    @abstractmethod
    def last(self, run_id: str) -> Mark | None:
        """Return the mark made last, of this run or, where it keeps only one, of another."""

    @abstractmethod
    def advance(self, mark: Mark) -> None:
        """Store a mark durably before returning; raise `LedgerError` if that fails."""

    def close(self) -> None:
        """Release it, where it is held."""
        return


class FileAnchor(Anchor):
    """A file of one run's marks, a line each, appended and synced; the last whole one counts."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the file; it is made with the run. It must not lie in the run folder."""
        self.path, self._file, self._size = Path(path), None, 0

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
        self._size = whole

    def last(self, run_id: str) -> Mark | None:
        """Return the last mark; None where there is none yet."""
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
        if size != self._size:  # where locks do not reach, as on some shared disks
            raise LedgerError(
                f"{self} was written by somebody else while this run held it: the run is "
                "continued twice; stop one"
            )
        line = json.dumps(asdict(mark)).encode() + b"\n"
        self._file.append(line)
        self._size += len(line)

    def close(self) -> None:
        """Release its lock."""
        if self._file is not None:
            self._file.close()


def anchors_of(path: str | os.PathLike[str] | None) -> tuple[Anchor, ...]:
    """Return the anchor in a file, or none."""
    return () if path is None else (FileAnchor(path),)


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


def check_anchors(anchors: Sequence[Anchor], read: Callable[[], Chain]) -> str:
    """Compare a ledger with its anchors.

    Args:
        anchors: All that were given.
        read: Reads the ledger's lines, at least one; called before and after an anchor is asked.

    Returns:
        What was found, in a sentence.

    Raises:
        LedgerError: If the ledger is not as far as an anchor is, or further than a crash leaves
            it; if there is no anchor where there has to be one, or one where there was none.
    """
    chain = read()
    run_id = str(chain.records[0].fields.get("run_id"))
    anchored = bool(dict(chain.records[0].fields.get("extra") or {}).get(ANCHORED))
    if anchored != bool(anchors):
        raise LedgerError(
            "the run was started with an anchor, which tells a copy or an old backup from the "
            "ledger itself; give it again (--anchor)"
            if anchored
            else "the run was started without an anchor, and what came before it cannot be "
            "anchored any more; leave it out, or start a new run"
        )
    for anchor in anchors:
        before, mark = len(read().records), anchor.last(run_id)
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
    """The file of a ledger that marks each line with every anchor before `append` returns."""

    def __init__(
        self, path: str | os.PathLike[str], anchors: Sequence[Anchor], *, new: bool = False
    ) -> None:
        """Open and lock a ledger's file and its anchors.

        Args:
            path: Where the file is.
            anchors: Where its lines are marked; none for a ledger without an anchor.
            new: Whether to make the file if it is not there.

        Raises:
            LedgerError: As `LedgerFile`; or if an anchor lies in the folder of the run, or is held
                by another process. Nothing is held then.
        """
        self._anchors, self._run_id = tuple(anchors), ""
        super().__init__(path, new=new)
        inside = self.path.resolve().parent
        try:
            for anchor in self._anchors:
                if isinstance(anchor, FileAnchor) and anchor.path.resolve().is_relative_to(inside):
                    raise LedgerError(
                        f"{anchor} lies in the run folder, and would be copied and put back with "
                        "it; give a file on another volume"
                    )
                anchor.hold()
        except BaseException:
            self.close()
            raise

    def check(self, chain: Chain) -> None:
        """Compare the lines with the anchors before any other is written."""
        check_anchors(self._anchors, lambda: chain)
        self._run_id = str(chain.records[0].fields["run_id"])

    def append(self, line: bytes) -> None:
        """Append a line, sync it, and mark it; nothing may be drawn for it where this raises."""
        if not self._anchors:
            super().append(line)
            return
        fields = json.loads(line)
        if fields["seq"] == 0:
            self._run_id = str(fields["run_id"])
            for anchor in self._anchors:
                mark = anchor.last(self._run_id)
                if mark is not None and mark.seq > 0:  # of a first line alone nothing was charged
                    raise LedgerError(
                        f"{anchor} is of run {plain(mark.run_id)[:12]} already; give each run its "
                        "own"
                    )
        super().append(line)
        mark = Mark(run_id=self._run_id, seq=fields["seq"], head=fields["hash"])
        try:
            for anchor in self._anchors:
                anchor.advance(mark)
        except BaseException as error:
            self.broken = f"its anchor failed ({error or type(error).__name__})"
            raise

    def close(self) -> None:
        """Release the file and its anchors."""
        for anchor in self._anchors:
            anchor.close()
        super().close()
