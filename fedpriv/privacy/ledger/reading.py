"""Reading a ledger without taking its lock or changing it."""

from __future__ import annotations

import os
from pathlib import Path

from fedpriv.privacy.ledger.chain import Record, decode
from fedpriv.privacy.ledger.file import LedgerError
from fedpriv.privacy.ledger.state import LedgerState


def read_ledger(path: str | os.PathLike[str]) -> tuple[tuple[Record, ...], LedgerState, int]:
    """Read a ledger without locking or changing it, a running run's too.

    Returns:
        The records, what they add up to, and how many bytes of a torn last line were skipped.

    Raises:
        LedgerError: If it is missing or damaged.
    """
    try:
        chain = decode(Path(path).read_bytes())
        return chain.records, LedgerState.replay(chain.records), chain.torn
    except (OSError, ValueError) as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error


def is_unspent(data: bytes) -> bool:
    """Return whether a file holds nothing, or a ledger that was started but never charged."""
    try:
        records = decode(data).records
        return not records or not LedgerState.replay(records).charges
    except ValueError:
        return False
