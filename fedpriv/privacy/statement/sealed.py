"""Sealed runs: the ledger of a run folder, and the `experiment.json` that its first line seals.

The first line of a ledger holds the digest of `experiment.json`. Every reader of a run folder goes
through here, so that a document that was edited afterwards is refused: neither a guarantee nor what
ε does not cover is read from it. A user-defined training loop has a ledger alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedpriv.hashes import document_sha256
from fedpriv.output_paths import refuse_links
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.ledger.chain import Record
from fedpriv.privacy.ledger.state import LedgerState, read_ledger
from fedpriv.privacy.plan import read_plan
from fedpriv.privacy.statement.coverage import (
    COST,
    Coverage,
    TrainedBefore,
    as_object,
    coverage_of,
    coverage_without_document,
    trained_before,
    with_start,
)

DOCUMENT, LEDGER = "experiment.json", "ledger.jsonl"
FORMAT, VERSION = "fedpriv-run", 1
SEAL = "experiment_sha256"
"""Key of the document's digest in the first line of a ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRun:
    """A run folder with an unbroken ledger and the `experiment.json` that the ledger seals.

    That shows that the files belong together, not that they are true: whoever writes all of them
    anew can have them say anything (`fedpriv.privacy.ledger.anchor.WITHOUT_ANCHOR`).

    Attributes:
        folder: Where it is.
        records: The ledger's lines, at least one.
        state: What they add up to.
        document: `experiment.json`; None where there is none, as of a user-defined training loop.
    """

    folder: Path
    records: tuple[Record, ...]
    state: LedgerState
    document: Mapping[str, Any] | None

    @property
    def coverage(self) -> Coverage:
        """What ε does not cover: without a document, what the ledger's first line says of it."""
        if self.document is not None:
            return coverage_of(self.document)
        if not self.state.plan.is_private:
            return Coverage()
        return coverage_without_document({**self.state.extra, "mode": self.state.mode})

    @property
    def start(self) -> Mapping[str, Any] | None:
        """What training started from, as the document says; None without one."""
        return None if self.document is None else as_object(self.document.get("start"))

    @property
    def with_start(self) -> Epsilon | None:
        """The ε of the run and of what it started from; None where the two do not add up."""
        state, secure = self.state, self.state.mode == "secure"
        return with_start(state.plan, state.epsilon(), self.start, secure=secure)

    def trained(self) -> TrainedBefore:
        """Return the privacy of its training, for runs that start from one of its models."""
        state, plan = self.state, self.state.plan
        before, both = trained_before(self.start), self.with_start
        spent = both or state.epsilon()
        bare = not plan.is_private or (before is not None and before.epsilon is None)
        seeded = before is not None and before.mode != "secure"
        missing = self.coverage.not_covered
        return TrainedBefore(
            ledger_head=self.records[-1].hash,
            mode="simulation" if seeded else state.mode,
            unit=plan.unit,
            relation=plan.relation.value,
            roster_sha256=plan.roster_sha256,
            epsilon=None if bare else spent.value,
            delta=None if bare else spent.delta,
            accountant=spent.accountant,
            claimed=both is not None and both.claimed,
            not_covered=tuple(said for said in missing if not (both and said.startswith(COST))),
        )


def read_sealed(folder: str | os.PathLike[str]) -> SealedRun:
    """Read the ledger of a run folder, and its document where it has one.

    Raises:
        ValueError: If the ledger is missing or damaged, the document is of a newer format or not
            the one that the run was started with, or the folder has a link in it.
    """
    folder = Path(folder)
    refuse_links(folder)
    file = folder / DOCUMENT
    document = _document(file) if file.exists() else None
    records, state = _ledger(folder / LEDGER)
    if document is None:
        return SealedRun(folder=folder, records=records, state=state, document=None)
    if state.extra.get(SEAL) != document_sha256(document):
        raise ValueError(
            f"{file} is not the one the run was started with, which its ledger seals: it was "
            "edited, or is another run's, and nothing is said from it; restore it"
        )
    if read_plan(document.get("plan")) != state.plan or document.get("mode") != state.mode:
        raise ValueError(f"{file} tells another plan or mode than the ledger; restore both")
    return SealedRun(folder=folder, records=records, state=state, document=document)


def _document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{file} holds a {type(document).__name__}, not an object")
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise ValueError(
            f"{file} has format {document.get('format')!r} version {document.get('version')!r}; "
            f"this fedpriv reads {FORMAT!r} version {VERSION}"
        )
    return document


def _ledger(path: Path) -> tuple[tuple[Record, ...], LedgerState]:
    try:
        seen = path.stat()
    except OSError:
        read_ledger(path)  # which says what is wrong with it
        raise
    return _read(path, seen.st_size, seen.st_mtime_ns)


# A page asks for the same ledger a dozen times; one of ten thousand steps takes a while to check.
@lru_cache(maxsize=64)
def _read(path: Path, size: int, changed: int) -> tuple[tuple[Record, ...], LedgerState]:
    records, state, _ = read_ledger(path)
    return records, state


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise `ValueError` if it holds none."""
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
