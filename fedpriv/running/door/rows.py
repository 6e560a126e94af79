"""Which row of noise with a memory comes next: counted by the ledger, and by the secret state.

A row is made again from a key and its number, so an older ledger that is put back would have it
meet a second sum, and the difference of the two answers is bare. Older secret state would forget
who took part. Each counts what the other must have reached: the ledger's row is on the disk before
the secret state's, which is there before anything is drawn, so the latter is one behind at most.
"""

from __future__ import annotations

import numpy as np

from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.running.door.vault import Vault

_ROWS = "rows"


def begin_rows(vault: Vault) -> None:
    """Write down that no row was drawn from a key that is made anew."""
    _write(vault, 0)


def next_row(ledger: Ledger, vault: Vault, round_num: int) -> int:
    """Use up the next row, and return its number, once both have it on the disk.

    Of a folder from before rows were counted twice the ledger's count is taken as it is.

    Raises:
        ValueError: If the ledger has fewer rows than were drawn, or secret state is more than one
            row behind it. Nothing is written.
        BudgetSpentError: As of `Ledger.row`.
        LedgerError: As of `Ledger.row`.
    """
    known, used = vault.recall(_ROWS), ledger.rows
    drawn = used if known is None else int(known["row"][0])
    if drawn > used:
        raise ValueError(
            f"the ledger has {used:,} rows of noise and {drawn:,} were drawn: it is older than the "
            "run, and a row would meet a second sum; restore the newest ledger, or start a new run"
        )
    if drawn < used - 1:
        raise ValueError(
            f"the folder's secret/ knows of {drawn:,} rows of noise and the ledger has {used:,}: "
            "it is older than the run, and forgets who took part since (participation is limited); "
            "restore the newest secret/, or start a new run"
        )
    if drawn < used:
        _write(vault, used)  # or a second interruption at the same place would look like old state
    row = ledger.row(round_num).row
    _write(vault, row)
    return row


def _write(vault: Vault, row: int) -> None:
    vault.remember(_ROWS, {"row": np.array([row], np.int64)})
