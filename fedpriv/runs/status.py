"""State of a deployed run: what its server writes down, and what an operator reads of its folder.

A run folder has two files that the ledger has no place for. `status.json` holds what the server
does, or how it ended. `refused.json` holds when and why a server was last refused the run, and
why: it is a file of its own, because a server that is refused may not write what another, which
holds the ledger then, writes in `status.json`.

Neither says anything of a round but when the last one ended: how many users took part, failed or
answered bounds the size of a cohort, which an ε takes to be secret. How many rostered users were
found on nodes is left out of a secure run too, since all of them may be drawn. Which nodes answered
would say whose users were drawn; which are online does not, since it is of their heartbeats.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from fedpriv.experiments.user_code import one_line
from fedpriv.output_paths import refuse_links
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.ledger.chain import LedgerError
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.statement.sealed import read_sealed
from fedpriv.runs.document import write_json

#: What a server is doing, or how it ended.
STATES = ("waiting for nodes", "training", "finished", "failed", "stopped")
#: File of a deployed run's folder: the run-config that goes on with it.
RESUME_FILE = "resume.toml"
_STATUS_FILE, _REFUSED_FILE = "status.json", "refused.json"
_MOST_CHARS = 500
_Content = TypeVar("_Content")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """Content of `status.json`.

    Attributes:
        state: One of `STATES`.
        changed: When it was written, as all times in UTC by ISO 8601.
        started: When this server took up the run.
        nodes: Nodes that host rostered users; None before they were asked.
        nodes_online: Those of them that were online when that was last looked at; likewise.
        users: Rostered users found on them; None before, and in a secure run.
        last_round_ended: None before the first round.
        last_error: Of this attempt or an earlier one, in one line; None if there was none.
        last_error_at: When.
    """

    state: str
    changed: str
    started: str
    nodes: int | None = None
    nodes_online: int | None = None
    users: int | None = None
    last_round_ended: str | None = None
    last_error: str | None = None
    last_error_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Content of `refused.json`: a start that came to nothing, before anything was charged.

    Attributes:
        why: In one line.
        at: In UTC by ISO 8601.
    """

    why: str
    at: str


def read_server_status(folder: Path) -> ServerStatus | None:
    """Return what a server wrote down; None where nothing is, or nothing of this version."""
    return _read(folder / _STATUS_FILE, "fedpriv-status", ServerStatus)


def read_refusal(folder: Path) -> Refusal | None:
    """Return the last one; None where there was none, or nothing of this version."""
    return _read(folder / _REFUSED_FILE, "fedpriv-refused", Refusal)


class StatusFile:
    """Writes `status.json`, whole each time, for as long as this process holds the run's ledger.

    Args:
        folder: Of the run.
        mode: "simulation" or "secure".
    """

    def __init__(self, folder: Path, mode: str) -> None:
        self._folder, self._secure = folder, mode == "secure"
        before, begun = read_server_status(folder), _utc_now()
        fresh = ServerStatus(state=STATES[0], changed=begun, started=begun)
        self._status = replace(
            before or fresh, state=STATES[0], changed=begun, started=begun,
            nodes=None, nodes_online=None, users=None,
        )  # fmt: skip

    @contextmanager
    def kept(self) -> Generator[StatusFile]:
        """Write how the block begins, and how it ends."""
        self._write()
        try:
            yield self
        except Exception as error:
            self._write_last(state="failed", last_error=_describe(error), last_error_at=_utc_now())
            raise
        except BaseException:  # an interrupt, or an exit
            self._write_last(state="stopped")
            raise
        else:
            self._write(state="finished")

    def registered(self, *, nodes: int, users: int) -> None:
        """Write where users were found."""
        found = None if self._secure else users
        self._write(state="training", nodes=nodes, nodes_online=nodes, users=found)

    def online(self, nodes: int) -> None:
        """Write how many nodes are online, in the middle of a round too."""
        self._write(nodes_online=nodes)

    def round_ended(self, *, nodes_online: int) -> None:
        """Write that a round was released and recorded, and how many nodes are online then."""
        self._write(last_round_ended=_utc_now(), nodes_online=nodes_online)

    def _write_last(self, **changes: Any) -> None:
        """Write on a full disk too: over what the file has, in the room that it has."""
        try:
            self._write(**changes)
        except OSError:
            file = self._folder / _STATUS_FILE
            with contextlib.suppress(OSError), file.open("r+b") as out:  # another error is raised
                out.write(json.dumps({**_head("fedpriv-status"), **asdict(self._status)}).encode())
                out.truncate()

    def _write(self, **changes: Any) -> None:
        self._status = replace(self._status, changed=_utc_now(), **changes)
        _write(self._folder / _STATUS_FILE, "fedpriv-status", asdict(self._status))


@contextmanager
def recording_refusal(folder: Path | None) -> Generator[None]:
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
            refusal = Refusal(why=_describe(error), at=_utc_now())
            with contextlib.suppress(OSError, ValueError):  # the refusal is what is to be heard
                refuse_links(folder)
                _write(folder / _REFUSED_FILE, "fedpriv-refused", asdict(refusal))
        raise


def _read(file: Path, kind: str, made: Callable[..., _Content]) -> _Content | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        document = json.loads(file.read_text("utf-8"))
        if (document.pop("format"), document.pop("version")) == (kind, 1):
            return made(**document)
    return None


def _write(file: Path, kind: str, fields: Mapping[str, Any]) -> None:
    write_json(file, {**_head(kind), **fields})


def _head(kind: str) -> dict[str, Any]:
    return {"format": kind, "version": 1}


def _describe(error: Exception) -> str:
    """Return an error in one line; of a fault, whose text may be anything, the kind alone."""
    text = one_line(error)
    line = type(error).__name__ if text is None else text
    return line if len(line) <= _MOST_CHARS else line[: _MOST_CHARS - 1] + "…"


def _utc_now() -> str:
    """Return the time in UTC by ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


_KILLED = "the server ended without a word, as one that was killed does"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Status of a run.

    Attributes:
        run_dir: The folder.
        experiment: Its name; "" of a custom training loop.
        label: What the run was called; "" where it was not.
        mode: "simulation" or "secure".
        state: As `STATES`, or "interrupted" (a server was killed),
            "running" and "not running" where no server wrote anything down.
        held: Whether a process holds the ledger now.
        round_num: Rounds released.
        rounds_planned: None of a plan whose end is decided on the way.
        lost_attempts: Charged, and nothing released of them.
        spent: The ε of every charge; None of a plan without privacy.
        guaranteed: The ε of the whole plan; None likewise.
        nodes: That host rostered users; None where that was not written down.
        nodes_online: Of these, while a server trains; else None.
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
    nodes_online: int | None
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
        """The part of the guaranteed ε that is not spent, at the plan's δ; None without privacy.

        That is the difference of two ε, and what further charges raise it by, not the ε of a plan
        of their own.
        """
        if self.spent is None or self.guaranteed is None:
            return None
        return max(0.0, self.guaranteed.value - self.spent.value)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found = asdict(self)
        found["round"] = found.pop("round_num")
        return {
            **found,
            "spent": None if self.spent is None else self.spent.to_json(),
            "guaranteed": None if self.guaranteed is None else self.guaranteed.to_json(),
            "epsilon_left": self.left,
            "not_covered": [] if self.guaranteed is None else list(self.guaranteed.not_covered),
            "failed": self.failed,
        }


def run_status(folder: Path) -> RunStatus:
    """Return the status of a run.

    Raises:
        ValueError: If the folder holds no run, its ledger is damaged, or its document is not the
            one that the ledger seals.
    """
    if not (folder / "ledger.jsonl").is_file():
        raise ValueError(
            f"{folder} holds no run (no ledger.jsonl); give the folder a run wrote: a Flower app's "
            "is there once its nodes are found"
        )
    run = read_sealed(folder)
    ledger, document = run.state, run.document
    held = is_held(folder / "ledger.jsonl")  # looked at first: a server writes, then lets go
    status = read_server_status(folder)
    said = status or ServerStatus(state="", changed="", started="")
    state = _state(status, held, finished=(folder / "summary.json").is_file())
    killed = state == "interrupted"
    refusal = read_refusal(folder)
    if refusal is not None and refusal.at < said.started:
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
        lost_attempts=_lost(ledger, under_way=held and state != STATES[0]),
        spent=ledger.epsilon() if plan.is_private else None,
        guaranteed=whole,
        nodes=said.nodes,
        nodes_online=said.nodes_online if held else None,
        users=None if ledger.mode == "secure" else said.users,
        last_round_ended=said.last_round_ended or _last_changed(folder / "rounds.jsonl"),
        last_error=f"{_KILLED}; {to_go_on(folder)}" if killed else said.last_error,
        last_error_at=None if killed else said.last_error_at,
        refused=refusal and refusal.why,
        refused_at=refusal and refusal.at,
    )


def to_go_on(folder: Path) -> str:
    """Return what to do with a deployed run that has ended before its time."""
    return f"go on with: flwr run ... --run-config {folder / RESUME_FILE}"


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


def _state(status: ServerStatus | None, held: bool, *, finished: bool) -> str:
    if status is None:
        return "running" if held else "finished" if finished else "not running"
    if held:
        return status.state if status.state in ("waiting for nodes", "training") else "running"
    if status.state in ("waiting for nodes", "training"):
        return "finished" if finished else "interrupted"  # killed behind its last line, or before
    return status.state


def _lost(ledger: LedgerState, *, under_way: bool) -> int:
    """Return how many charges came to nothing; the last attempt of a round under way still may."""
    pending = {
        charge
        for charge in ledger.unreleased
        if charge.attempt == ledger.attempts(charge.round_num, charge.query)
    }
    return len([charge for charge in ledger.lost if not under_way or charge not in pending])


def _last_changed(file: Path) -> str | None:
    if not file.is_file():
        return None
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
