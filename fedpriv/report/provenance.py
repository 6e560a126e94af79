"""Where a run came from: when, of which seed, command and version, and the head of its ledger."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime

from fedpriv.report.promise import ledger_head
from fedpriv.report.series import RunRecord
from fedpriv.report.wording import NOTHING

# Options that are a text or absent, as they are by default: "none" would be the text.
_TEXTS = ("task.roster", "start.file", "task.log", "task.folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What is needed to have the run again, and to see that its ledger is whole.

    Attributes:
        date: When it was started, or when its ledger was last written.
        seed: Its seed, or that it had none.
        command: What runs it again, every option given; None where no single command does.
        short_command: Its beginning, or why there is none.
        version: Of fedpriv.
        ledger_head: Hash of the ledger's last line.
    """

    date: str
    seed: str
    command: str | None
    short_command: str
    version: str
    ledger_head: str


def provenance_of(run: RunRecord) -> Provenance:
    """Return where a run came from.

    Raises:
        ValueError: If its ledger is missing or damaged.
    """
    versions = run.description.get("versions")
    found = versions.get("fedpriv") if isinstance(versions, dict) else None
    command, short = _command(run)
    return Provenance(
        date=_date(run),
        seed=str(run.options.get("seed", NOTHING)) if run.simulated else "none: a secure run",
        command=command,
        short_command=short,
        version=f"fedpriv {found}" if found else NOTHING,
        ledger_head=ledger_head(run),
    )


def _date(run: RunRecord) -> str:
    started = run.description.get("started")
    if isinstance(started, str) and started:
        return started
    # Runs that did not write it down: the best that the files know, under its own name.
    changed = (run.directory / "ledger.jsonl").stat().st_mtime
    moment = datetime.fromtimestamp(changed, UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC, when the ledger's file was last written"


def _command(run: RunRecord) -> tuple[str | None, str]:
    """Return the command with every option, and its beginning.

    Defaults change from version to version; what is given in full does not.
    """
    recorded = run.description.get("command")
    if isinstance(recorded, str) and recorded:
        return recorded, recorded
    if run.own is not None:
        return None, "a training of its own: no command"
    reference, backend = run.description.get("reference"), run.description.get("backend")
    if backend == "flower":
        return None, "run by Flower: no single command"
    if not isinstance(reference, str):
        return None, "made from Python: no command"
    short = ["fedpriv", "run", reference]
    if backend not in (None, "serial"):
        short += ["--backend", str(backend)]
    if not run.simulated:
        short.append("--secure")
    whole = list(short)
    if path := run.corpus.get("path"):
        whole += ["--corpus", str(path)]
    for name, value in run.options.items():
        absent = name in _TEXTS and value is None
        if not absent and (name != "seed" or run.simulated):
            whole += ["-s", f"{name}={_typed(value)}"]
    return shlex.join(whole), shlex.join(short)


def _typed(value: object) -> str:
    """Return an option's value as `-s` takes it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
