"""`refused.json` of a run folder: when a server was last not let go on with it, and why.

It is a file of its own, because whoever is refused may not write what another server, which holds
the ledger then, writes in `status.json`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fedpriv.output_paths import refuse_links
from fedpriv.running.document import write_json
from fedpriv.running.standing.written import now, said_of

NAME = "refused.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A start that came to nothing, before anything was charged.

    Attributes:
        why: In one line.
        at: In UTC by ISO 8601.
    """

    why: str
    at: str


def read_refusal(folder: Path) -> Refusal | None:
    """Return the last one; None where there was none, or nothing of this version."""
    try:
        found = json.loads((folder / NAME).read_text("utf-8"))
        if found.pop("format") != "fedpriv-refused" or found.pop("version") != 1:
            return None
        return Refusal(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@contextmanager
def refusal_noted(folder: Path | None) -> Iterator[None]:
    """Write down, in a run's folder, why the block that takes it up does not.

    Args:
        folder: Of the run that shall go on; None, or one without a ledger, notes nothing.

    Raises:
        Exception: What the block raises, noted or not.
    """
    try:
        yield
    except Exception as error:
        if folder is not None and (folder / "ledger.jsonl").is_file():
            refusal = asdict(Refusal(why=said_of(error), at=now()))
            document = {"format": "fedpriv-refused", "version": 1, **refusal}
            with contextlib.suppress(OSError, ValueError):  # the refusal is what is to be heard
                refuse_links(folder)
                write_json(folder / NAME, document)
        raise
