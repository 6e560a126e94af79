"""Reads how a run folder stands, in use or not; nothing in it is changed, and nobody waited for."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.statement.sealed import read_sealed
from fedpriv.running.standing.refusals import read_refusal
from fedpriv.running.standing.written import Standing, read_standing

_KILLED = (
    "the server ended without a word, as one that was killed does; start it again with resume, and "
    "it goes on"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run stands.

    Attributes:
        run_dir: The folder.
        experiment: Its name; "" of a training of one's own.
        label: What the run was called; "" where it was not.
        mode: "simulation" or "secure".
        state: As `fedpriv.running.standing.written.STATES`, or "interrupted" (a server was killed),
            "running" and "not running" where no server wrote anything down.
        held: Whether a process holds the ledger now.
        round_num: Rounds released.
        rounds_planned: None of a plan whose end is decided on the way.
        lost_attempts: Charged, and nothing released of them.
        spent: The ε of every charge; None of a plan without privacy.
        guaranteed: The ε of the whole plan; None likewise.
        nodes: That host rostered users; None where that was not written down.
        users: Rostered users found on them; likewise, and None of every secure run.
        last_round_ended: In UTC; None before the first round.
        last_error: In one line; None if there was none.
        last_error_at: When; None where it was not written down.
        refused: Why a server was not let go on with it, after the last one that was; None if none.
        refused_at: When.
    """

    run_dir: str
    experiment: str
    label: str
    mode: str
    state: str
    held: bool
    round_num: int
    rounds_planned: int | None
    lost_attempts: int
    spent: Epsilon | None
    guaranteed: Epsilon | None
    nodes: int | None
    users: int | None
    last_round_ended: str | None
    last_error: str | None
    last_error_at: str | None
    refused: str | None
    refused_at: str | None

    @property
    def failed(self) -> bool:
        """Whether the last attempt ended in an error, was killed, or was refused."""
        waits = not self.held and self.state != "finished"
        return self.state in ("failed", "interrupted") or (waits and self.refused is not None)

    @property
    def left(self) -> float | None:
        """How much of the guaranteed ε is not spent, at the plan's δ; None without privacy.

        That is the difference of two ε, and what further charges raise it by, not the ε of a plan
        of their own.
        """
        if self.spent is None or self.guaranteed is None:
            return None
        return max(0.0, self.guaranteed.value - self.spent.value)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        spent, whole = self.spent, self.guaranteed
        return {
            "run_dir": self.run_dir,
            "experiment": self.experiment,
            "label": self.label,
            "mode": self.mode,
            "state": self.state,
            "held": self.held,
            "round": self.round_num,
            "rounds_planned": self.rounds_planned,
            "lost_attempts": self.lost_attempts,
            "spent": None if spent is None else spent.to_json(),
            "guaranteed": None if whole is None else whole.to_json(),
            "epsilon_left": self.left,
            "not_covered": [] if whole is None else list(whole.not_covered),
            "nodes": self.nodes,
            "users": self.users,
            "last_round_ended": self.last_round_ended,
            "last_error": self.last_error,
            "last_error_at": self.last_error_at,
            "refused": self.refused,
            "refused_at": self.refused_at,
            "failed": self.failed,
        }


def run_status(folder: Path) -> RunStatus:
    """Return how a run stands.

    Raises:
        ValueError: If the folder holds no run, its ledger is damaged, or its document is not the
            one that the ledger seals.
    """
    if not (folder / "ledger.jsonl").is_file():
        raise ValueError(f"{folder} holds no run (no ledger.jsonl); give the folder a run wrote")
    run = read_sealed(folder)
    ledger, document = run.state, run.document
    standing, held = read_standing(folder), is_held(folder / "ledger.jsonl")
    state = _state(standing, held, finished=(folder / "summary.json").is_file())
    killed = state == "interrupted"
    refusal = read_refusal(folder)
    if refusal is not None and standing is not None and refusal.at < standing.started:
        refusal = None  # a later start was let go on
    plan = ledger.plan
    whole = plan.guaranteed() if plan.is_private else None
    if whole is not None:
        whole = run.coverage.marked(whole)
    return RunStatus(
        run_dir=str(folder),
        experiment="" if document is None else str(document["name"]),
        label="" if document is None else str(document.get("label") or ""),
        mode=ledger.mode,
        state=state,
        held=held,
        round_num=ledger.rounds_done,
        rounds_planned=plan.planned_rounds,
        lost_attempts=_lost(ledger, held),
        spent=ledger.epsilon() if plan.is_private else None,
        guaranteed=whole,
        nodes=None if standing is None else standing.nodes,
        users=None if standing is None or ledger.mode == "secure" else standing.users,
        last_round_ended=_last_round(folder, standing),
        last_error=_KILLED if killed else standing and standing.last_error,
        last_error_at=None if killed else standing and standing.last_error_at,
        refused=refusal and refusal.why,
        refused_at=refusal and refusal.at,
    )


def is_held(file: Path) -> bool:
    """Return whether a process holds a ledger.

    A shared lock is tried for and let go at once: who opens the ledger in that moment tries again
    (`fedpriv.privacy.ledger.chain`), and is not refused.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {file}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _state(standing: Standing | None, held: bool, *, finished: bool) -> str:
    if standing is None:
        return "running" if held else "finished" if finished else "not running"
    if held:
        return standing.state if standing.state in ("waiting for nodes", "training") else "running"
    if standing.state in ("waiting for nodes", "training"):
        return "finished" if finished else "interrupted"  # killed behind its last line, or before
    return standing.state


def _lost(ledger: LedgerState, held: bool) -> int:
    """Return how many charges came to nothing; the last of a run under way still may."""
    lost = ledger.lost
    return len([charge for charge in lost if not held or charge not in ledger.unreleased])


def _last_round(folder: Path, standing: Standing | None) -> str | None:
    if standing is not None and standing.last_round_ended is not None:
        return standing.last_round_ended
    rounds = folder / "rounds.jsonl"
    if not rounds.is_file():
        return None
    return datetime.fromtimestamp(rounds.stat().st_mtime, UTC).isoformat(timespec="seconds")
