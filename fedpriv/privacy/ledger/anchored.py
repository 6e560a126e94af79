"""A ledger that is marked elsewhere: compared with its anchors, and written with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence

from fedpriv.privacy.ledger.anchor import Anchor, FileAnchor, Mark
from fedpriv.privacy.ledger.chain import Chain
from fedpriv.privacy.ledger.file import LedgerError, LedgerFile
from fedpriv.untrusted_text import plain

WITHOUT_ANCHOR = (
    "a folder that was written anew as a whole, with other noise, charges or options than the run "
    "had: its hashes have no key",
    "a copy of the folder that was continued besides, whose releases ε does not count",
    "an older backup that was put back",
    "charges cut off the ledger's end after the last checkpoint",
)
"""What nobody can find in a run folder whose ledger is not marked outside it."""
ANCHORED = "anchored"
"""What the first line of a ledger calls it, among its further facts, that there is an anchor."""


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
            "ledger itself; give it again (--anchor, --anchor-command)"
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


class AnchoredFile:
    """The file of a ledger each of whose lines is marked before its writing returns."""

    def __init__(self, file: LedgerFile, anchors: Sequence[Anchor]) -> None:
        """Take over a file that is open, and its anchors.

        Raises:
            LedgerError: If an anchor lies in the folder of the run, or is held by another process.
        """
        self._file, self._anchors, self._run_id = file, tuple(anchors), ""
        self.path = file.path
        inside = self.path.resolve().parent
        for anchor in self._anchors:
            if isinstance(anchor, FileAnchor) and anchor.path.resolve().is_relative_to(inside):
                raise LedgerError(
                    f"{anchor} lies in the run folder, and would be copied and put back with it; "
                    "give a file on another volume"
                )
            anchor.hold()

    @property
    def broken(self) -> str:
        """Why it takes no further line; "" while it does."""
        return self._file.broken

    def read(self) -> bytes:
        """Return everything in it."""
        return self._file.read()

    def keep(self, size: int) -> None:
        """Cut off what is behind so many bytes, and sync; raise `OSError` if the disk refuses."""
        self._file.keep(size)

    def check(self, chain: Chain) -> None:
        """Compare the lines with the anchors before any other is written."""
        check_anchors(self._anchors, lambda: chain)
        self._run_id = str(chain.records[0].fields["run_id"])

    def append(self, line: bytes) -> None:
        """Append a line, sync it, and mark it; nothing may be drawn for it where this raises."""
        if not self._anchors:
            self._file.append(line)
            return
        fields = json.loads(line)
        if fields["seq"] == 0:
            self._begin(str(fields["run_id"]))
        self._file.append(line)
        mark = Mark(run_id=self._run_id, seq=fields["seq"], head=fields["hash"])
        try:
            for anchor in self._anchors:
                anchor.advance(mark)
        except BaseException as error:
            self._file.broken = f"its anchor failed ({error or type(error).__name__})"
            raise

    def _begin(self, run_id: str) -> None:
        for anchor in self._anchors:
            mark = anchor.last(run_id)
            if mark is not None and mark.seq > 0:  # of a first line alone nothing was charged
                raise LedgerError(
                    f"{anchor} is of run {plain(mark.run_id)[:12]} already; give each run its own"
                )
        self._run_id = run_id

    def close(self) -> None:
        """Let go of the file and its anchors."""
        for anchor in self._anchors:
            anchor.close()
        self._file.close()

    def sync_folder(self) -> None:
        """Sync the folder; raise `OSError` if the disk refuses."""
        self._file.sync_folder()


def open_anchored(
    path: str | os.PathLike[str], anchors: Sequence[Anchor], *, new: bool = False
) -> AnchoredFile:
    """Open and lock a ledger's file and its anchors.

    Raises:
        LedgerError: As `LedgerFile` and `AnchoredFile`; nothing is held then.
    """
    file = LedgerFile(path, new=new)
    try:
        return AnchoredFile(file, anchors)
    except BaseException:
        for anchor in anchors:
            anchor.close()
        file.close()
        raise
