"""`status.json` of a run folder: what the ledger cannot tell of a server that runs, or has failed.

It says nothing of a round but when the last one ended: how many users took part, failed or answered
bounds the size of a cohort, which an ε takes to be secret. How many rostered users were found on
nodes is left out of a secure run too, since all of them may be drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.experiments.own_code import one_line
from fedpriv.running.document import write_json

NAME = "status.json"
#: What a server is doing, or how it ended.
STATES = ("waiting for nodes", "training", "finished", "failed", "stopped")
_MOST_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is written down.

    Attributes:
        state: One of `STATES`.
        changed: When it was written, as all times in UTC by ISO 8601.
        started: When this server took up the run.
        nodes: Nodes that host rostered users; None before they were asked.
        users: Rostered users found on them; None before, and in a secure run.
        last_round_ended: None before the first round.
        last_error: Of this attempt or an earlier one, in one line; None if there was none.
        last_error_at: When.
    """

    state: str
    changed: str
    started: str
    nodes: int | None = None
    users: int | None = None
    last_round_ended: str | None = None
    last_error: str | None = None
    last_error_at: str | None = None


def read_standing(folder: Path) -> Standing | None:
    """Return what a server wrote down; None where nothing is, or nothing of this version."""
    try:
        found = json.loads((folder / NAME).read_text("utf-8"))
        if found.pop("format") != "fedpriv-status" or found.pop("version") != 1:
            return None
        return Standing(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class StandingFile:
    """Writes it, whole each time, for as long as this process holds the run's ledger.

    Args:
        folder: Of the run.
        mode: "simulation" or "secure".
    """

    def __init__(self, folder: Path, mode: str) -> None:
        self._folder, self._secure = folder, mode == "secure"
        before, begun = read_standing(folder), now()
        self._found = Standing(state=STATES[0], changed=begun, started=begun)
        if before is not None:
            self._found = replace(
                self._found,
                last_round_ended=before.last_round_ended,
                last_error=before.last_error,
                last_error_at=before.last_error_at,
            )

    @contextmanager
    def kept(self) -> Iterator[StandingFile]:
        """Write how the block begins, and how it ends."""
        self._write()
        try:
            yield self
        except Exception as error:
            self._write(state="failed", last_error=said_of(error), last_error_at=now())
            raise
        except BaseException:  # an interrupt, or an exit
            self._write(state="stopped")
            raise
        else:
            self._write(state="finished")

    def registered(self, *, nodes: int, users: int) -> None:
        """Write where users were found."""
        self._write(state="training", nodes=nodes, users=None if self._secure else users)

    def round_ended(self) -> None:
        """Write that a round was released and recorded."""
        self._write(last_round_ended=now())

    def _write(self, **changes: Any) -> None:
        self._found = replace(self._found, changed=now(), **changes)
        document = {"format": "fedpriv-status", "version": 1, **asdict(self._found)}
        write_json(self._folder / NAME, document)


def said_of(error: Exception) -> str:
    """Return an error in one line; of a fault, whose text may be anything, the kind alone."""
    text = one_line(error)
    said = type(error).__name__ if text is None else text
    return said if len(said) <= _MOST_CHARS else said[: _MOST_CHARS - 1] + "…"


def now() -> str:
    """Return the time in UTC by ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
