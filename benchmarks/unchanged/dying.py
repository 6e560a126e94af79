"""Runs a module as a script, and dies like a killed process once a ledger holds so many charges.

    python dying.py CHARGES MODULE [ARGUMENT ...]

It dies right after the sync of the line, the moment that costs most: the charge is on the disk, and
nothing was drawn for it. No signal and no clock is involved, so every run dies at the same point.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

STATUS = 9
LEDGER = "ledger.jsonl"


def count_charges(ledger: Path) -> int:
    """Return how many whole lines of a ledger are charges."""
    lines = ledger.read_bytes().split(b"\n")[:-1]
    return sum(json.loads(line)["kind"] == "charge" for line in lines)


def die_after(charges: int) -> None:
    """Let this process end without any cleaning up once a ledger holds so many charges."""

    def dying(sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            sync(descriptor)
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            if path.name == LEDGER and count_charges(path) == charges:
                os._exit(STATUS)

        return synced

    os.fsync, os.fdatasync = dying(os.fsync), dying(os.fdatasync)


def main() -> None:
    die_after(int(sys.argv[1]))
    module, arguments = sys.argv[2], sys.argv[3:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
