"""Verification of a run folder: compare it with its ledger and recompute its ε, trusting nothing.

What can be found: an edited, cut, swapped or rolled back ledger (by its chain, and by the head
hash that every checkpoint carries), rounds reported without a charge, a stated ε that the charges
do not give, a plan that is not the one the ledger was started with, a checkpoint that was changed
after its release, frozen parameters or params before round 1 that were changed since, a returned
model or an audit that is another's. With the run's anchor also: lines cut off the end of a ledger,
an older backup, and a copy of the folder that was continued elsewhere. Without it those cannot be
found, and a folder all of whose files were forged together cannot be either way.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fedpriv.checkpoints.tensor_files import (
    FROZEN,
    PUBLIC_MODEL,
    START,
    START_FILE,
    candidates,
    frozen_digests,
    params_sha256,
    read_frozen,
    read_selected,
    read_start,
    read_tensors,
    released_models,
)
from fedpriv.hashes import document_sha256, file_sha256
from fedpriv.output_paths import refuse_links
from fedpriv.privacy.epsilon import Epsilon, rounded_up
from fedpriv.privacy.ledger.anchor import ANCHORED, WITHOUT_ANCHOR, Anchor, check_anchors
from fedpriv.privacy.ledger.chain import LedgerError, decode
from fedpriv.privacy.ledger.state import LedgerState, read_ledger
from fedpriv.privacy.plan import AnyPlan, read_plan
from fedpriv.privacy.statement.coverage import (
    KEY,
    NOT_KNOWN,
    Coverage,
    as_object,
    coverage_of,
    coverage_without_document,
    with_start,
)
from fedpriv.privacy.statement.sealed import (
    AUDIT_FILE,
    DOCUMENT,
    LEDGER,
    NOT_AUDITED,
    SEAL,
    AuditRecord,
    read_audit,
    read_object,
)
from fedpriv.untrusted_text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one comparison.

    Attributes:
        name: What was compared.
        ok: Whether it holds.
        text: What was found, in a sentence.
    """

    name: str
    ok: bool
    text: str

    def __post_init__(self) -> None:
        # It quotes the folder, and may be printed by anybody.
        object.__setattr__(self, "text", plain(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The checks of a run folder.

    Attributes:
        checks: In the order they were made; those on absent optional files are left out.
        epsilon: ε recomputed from the ledger's lines, or None if it cannot be read.
        num_charges: Charges on the ledger.
        num_releases: Releases on the ledger.
        num_lost: Charges without a release.
        num_discarded: Rounds of correlated noise that a crash discarded.
        mode: "simulation", "secure", or "" if the ledger cannot be read.
        coverage: What ε does not cover, as `experiment.json` has it; without the run's own one
            that is not known, and said.
        audit: What `audit.json` records, if it is this run's.
        not_found: What these checks cannot find, in plain phrases, because they hold the files of
            the folder against each other; empty where they were held against an anchor outside it.
    """

    checks: tuple[Check, ...]
    epsilon: Epsilon | None = None
    num_charges: int = 0
    num_releases: int = 0
    num_lost: int = 0
    num_discarded: int = 0
    mode: str = ""
    coverage: Coverage = NOT_KNOWN
    audit: AuditRecord | None = None
    not_found: tuple[str, ...] = WITHOUT_ANCHOR

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "not_found": list(self.not_found),
            "ok": self.ok,
            "checks": [
                {"name": check.name, "ok": check.ok, "text": check.text} for check in self.checks
            ],
            **(self.epsilon.to_json() if self.epsilon is not None else {"epsilon": None}),
            KEY: list(self.coverage.not_covered),
            "charges": self.num_charges,
            "releases": self.num_releases,
            "lost": self.num_lost,
            "discarded": self.num_discarded,
            "mode": self.mode,
            "audit": NOT_AUDITED if self.audit is None else self.audit.to_json(),
        }


def verify_run(run_dir: str | os.PathLike[str], *, anchors: Sequence[Anchor] = ()) -> Verification:
    """Verify a run folder; a run in progress may be verified too.

    Args:
        run_dir: Folder with `ledger.jsonl` and, where present, `experiment.json`,
            `rounds.jsonl`, `summary.json`, `state.safetensors` and `checkpoints/`.
        anchors: Where the ledger's lines were marked outside the folder. Without them the checks
            show that the files agree with each other: a folder that was written anew with another
            noise, a cut ledger, an old backup and a copy that was continued may verify.

    Returns:
        The checks; nothing in the folder is changed, locked, imported or executed.

    Raises:
        ValueError: If the folder or its ledger does not exist.
    """
    folder = Path(run_dir)
    if not (folder / LEDGER).is_file():
        raise ValueError(
            f"{folder} holds no ledger.jsonl; give the folder that `fedpriv run` wrote"
            if folder.is_dir()
            else f"{folder} is not a run folder; give the folder that `fedpriv run` wrote"
        )
    not_found = () if anchors else WITHOUT_ANCHOR
    try:
        records, state, torn = read_ledger(folder / LEDGER)
    except LedgerError as error:
        failed = Check(name="ledger", ok=False, text=str(error))
        return Verification(checks=(failed,), not_found=not_found)
    run = _Folder(folder, state, {record.hash for record in records})
    final, covers = state.epsilon(), _coverage(run)
    audit = None

    def audited() -> str | None:
        nonlocal audit
        if not state.plan.is_private and not (folder / AUDIT_FILE).exists():
            return None
        audit = read_audit(folder, records, state)
        return _describe_audited(audit)

    torn_text = f"; {torn} bytes of a torn last line are not counted" if torn else ""
    discarded = f", {len(state.discarded):,} discarded" if state.rows else ""
    comparisons: tuple[tuple[str, Callable[[], str | None]], ...] = (
        ("ledger", lambda: f"{len(records):,} lines, the chain is whole{torn_text}"),
        (
            "charges",
            lambda: (
                f"{state.used.text}, {len(state.releases):,} released, "
                f"{len(state.lost):,} lost{discarded}"
            ),
        ),
        ("links", lambda: refuse_links(folder)),
        ("anchor", lambda: _anchored(run, anchors)),
        ("budget", lambda: _budget(state, final)),
        ("experiment", lambda: _experiment(run)),
        ("rounds", lambda: _rounds(run)),
        ("summary", lambda: _summary(run, final, covers)),
        ("returned", lambda: _returned(run)),
        ("checkpoints", lambda: _checkpoints(run)),
        ("digests", lambda: _digests(run)),
        ("frozen", lambda: _frozen(run)),
        ("start", lambda: _start(run)),
        ("audit", audited),
    )
    return Verification(
        checks=tuple(found for name, compare in comparisons if (found := _check(name, compare))),
        epsilon=covers.explained(final),
        num_charges=len(state.charges),
        num_releases=len(state.releases),
        num_lost=len(state.lost),
        num_discarded=len(state.discarded),
        mode=state.mode,
        coverage=covers,
        audit=audit,
        not_found=not_found,
    )


@dataclass(frozen=True)
class _Folder:
    """A run folder with its ledger's state and the hashes of its lines."""

    path: Path
    state: LedgerState
    hashes: Set[str]

    def document(self) -> Mapping[str, Any]:
        """Return `experiment.json`, or nothing where it is missing or cannot be read."""
        try:
            return read_object(self.path / DOCUMENT)
        except (OSError, ValueError):
            return {}

    def checkpoint(self, round_num: int) -> Path:
        """Return where the checkpoint of a round is."""
        return self.path / "checkpoints" / f"round-{round_num:06d}.safetensors"


def _check(name: str, compare: Callable[[], str | None]) -> Check | None:
    """Return a comparison's result: it returns what was found, None for nothing, or raises."""
    try:
        text = compare()
    except (OSError, ValueError, KeyError, TypeError) as error:
        file = _FILES.get(name)
        unread = f"{file} cannot be read: " if file and not isinstance(error, _Differs) else ""
        return Check(name=name, ok=False, text=f"{unread}{error}")
    return None if text is None else Check(name=name, ok=True, text=text)


_FILES = {
    "experiment": DOCUMENT,
    "rounds": "rounds.jsonl",
    "summary": "summary.json",
    "frozen": FROZEN,
}


class _Differs(ValueError):
    """A file was read, and says something else than the ledger."""


def _refuse(problems: Sequence[str]) -> None:
    """Raise `_Differs` with the first three problems; do nothing without any."""
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    if problems:
        raise _Differs("; ".join(problems[:3]) + more)


def _anchored(run: _Folder, anchors: Sequence[Anchor]) -> str | None:
    if anchors:
        # Read again: a run under way marks a line after it is written, and has marked others since.
        return check_anchors(anchors, lambda: decode((run.path / LEDGER).read_bytes()))
    if not run.state.extra.get(ANCHORED):
        return None
    return "not compared: give --anchor; an older ledger than the last one would verify"


def _budget(state: LedgerState, final: Epsilon) -> str | None:
    target = state.plan.target_epsilon
    if target is None:
        return None
    text = f"ε {rounded_up(final.value, 4):,.4f} against a target of {target:g}"
    _refuse([] if final.value <= target else [text])
    return text


def _experiment(run: _Folder) -> str | None:
    path, state = run.path / DOCUMENT, run.state
    if not path.exists():
        return None
    stated = read_object(path)
    plan, mode = read_plan(stated["plan"]), stated.get("mode", state.mode)
    sealed = state.extra.get(SEAL)
    if sealed is not None and sealed != document_sha256(stated):
        raise _Differs("experiment.json is not the one the run was started with")
    if plan != state.plan:
        raise _Differs("the plan of experiment.json is not the plan of the ledger")
    text = f"experiment.json states the ledger's plan, mode {mode!r} (ledger: {state.mode!r})"
    _refuse([] if mode == state.mode else [text])
    return text


def _coverage(run: _Folder) -> Coverage:
    """Return what `experiment.json` says that ε does not cover, if it is the run's."""
    state = run.state
    try:
        stated = read_object(run.path / DOCUMENT)
        ours = read_plan(stated["plan"]) == state.plan
        if ours and state.extra.get(SEAL) in (None, document_sha256(stated)):
            return coverage_of(stated)
    except (OSError, ValueError, KeyError):
        pass  # there is none, or its own check says what is wrong with it
    if not state.plan.is_private:
        return Coverage()
    return coverage_without_document({**state.extra, "mode": state.mode})


def _rounds(run: _Folder) -> str | None:
    path, state = run.path / "rounds.jsonl", run.state
    if not path.exists():
        return None
    charged = {(charge.round_num, charge.attempt) for charge in state.charges}
    charged |= {(row.round_num, row.row) for row in state.rows}
    released = {
        (release.round_num, release.attempt): number
        for release, number in zip(state.releases, state.charged_before, strict=True)
    }
    plan = state.plan
    problems: list[str] = []
    seen: set[tuple[Any, Any]] = set()
    # A last line without newline was cut off by a kill; it was never stated.
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line.strip()]
    for row in rows:
        pair = (row["round_num"], row["attempt"])
        if pair in seen:
            problems.append(f"round {pair[0]} is stated twice")
        elif pair not in charged:
            problems.append(f"round {pair[0]} attempt {pair[1]} is stated, never charged")
        elif pair not in released:
            problems.append(f"round {pair[0]} attempt {pair[1]} is stated but not released")
        else:
            problems += _stated_epsilon(row, released[pair], plan)
            if not _same(row.get("delta", plan.delta), plan.delta):
                problems.append(
                    f"round {pair[0]} states δ {row['delta']}, the plan has {plan.delta}"
                )
        seen.add(pair)
    _refuse(problems)
    return f"{len(rows):,} stated rounds were charged and released, their ε is right"


def _stated_epsilon(row: Mapping[str, Any], charges: int, plan: AnyPlan) -> list[str]:
    """Return what is wrong with the ε of a round after which so many charges were made."""
    stated, counted = row.get("epsilon"), row.get("epsilon_charges")
    if stated is None and "epsilon" in row and charges != plan.affordable_rounds:
        return []  # it says nothing, and says so; the plan's last round must say something
    counted = charges if counted is None else counted
    if type(counted) is not int or not charges <= counted <= (plan.affordable_rounds or counted):
        return [
            f"round {row['round_num']} states the ε of {counted} charges; {charges} were made, and "
            f"the plan pays for {plan.affordable_rounds}"
        ]
    value = plan.epsilon(counted).value
    unstated = plan.is_private and stated is None
    if unstated or not _same(stated, value):
        return [f"round {row['round_num']} states ε {stated}, the charges give {value:.6f}"]
    return []


def _summary(run: _Folder, final: Epsilon, covers: Coverage) -> str | None:
    path, state = run.path / "summary.json", run.state
    if not path.exists():
        return None
    stated = read_object(path)
    problems = []
    if "epsilon" in stated and not _same(stated["epsilon"], final.value):
        given = f"{rounded_up(final.value, 6):.6f}"
        problems.append(f"it states ε {stated['epsilon']}, the charges give {given}")
    if "delta" in stated and not _same(stated["delta"], final.delta):
        problems.append(f"it states δ {stated['delta']}, the plan has {final.delta}")
    if stated.get("relation", final.relation.value) != final.relation.value:
        problems.append(f"it states {stated['relation']}, the plan has {final.relation.value}")
    gaps = list(covers.not_covered)
    known = not set(NOT_KNOWN.not_covered) <= set(gaps)
    if known and stated.get(KEY, gaps) != gaps:
        problems.append("what it says that ε does not cover is not what experiment.json gives")
    if known and "with_start" in stated and (run.path / DOCUMENT).is_file():
        start = as_object(run.document().get("start"))
        both = with_start(state.plan, final, start, secure=state.mode == "secure")
        if stated["with_start"] != (None if both is None else both.to_json()):
            problems.append("its ε with that of the start is not what the two give")
    for name, there, were in (
        ("rounds", state.rounds_done, "were released"),
        ("charges", len(state.charges), "are in the ledger"),
    ):
        if stated.get(name, there) != there:
            problems.append(f"it states {stated[name]} {name}, {there} {were}")
    _refuse(problems)
    return "summary.json states what the ledger gives"


def _returned(run: _Folder) -> str | None:
    path = run.path / "summary.json"
    try:
        selection = read_object(path).get("selection")
    except (OSError, ValueError):
        return None  # there is none, or another check has said so
    if not isinstance(selection, dict):
        return None
    found = check_returned(run.path, run.state.rounds_done, selection)
    _refuse([] if found.ok else [found.text])
    return found.text


def _checkpoints(run: _Folder) -> str | None:
    paths = sorted((run.path / "checkpoints").glob("*.safetensors"))
    saved = run.path / "state.safetensors"
    paths += [saved] if saved.exists() else []
    rounds = {str(entry.round_num) for entry in (*run.state.charges, *run.state.rows)}
    problems, carried = [], 0
    for path in paths:
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            problems.append(f"{path.name} cannot be read: {error}")
            continue
        head, round_num = metadata.get("ledger_head"), metadata.get("round_num", "0")
        if head is None:
            continue
        carried += 1
        if head not in run.hashes:
            problems.append(
                f"{path.name} was written with a ledger that had a line this one does "
                "not have: the ledger was cut, rolled back, edited or swapped"
            )
        if round_num != "0" and round_num not in rounds:
            problems.append(f"{path.name} is of round {round_num}, which was never charged")
    _refuse(problems)
    return f"{carried:,} checkpoints carry a line of this ledger" if carried else None


def _digests(run: _Folder) -> str | None:
    # A round may be done again after its state was lost; its last release counts.
    stated = {run.checkpoint(release.round_num): release.digest for release in run.state.releases}
    kept = {path: digest for path, digest in stated.items() if path.is_file()}
    _refuse([
        f"{path.name} is not what was released"
        for path, digest in kept.items()
        if file_sha256(path) != digest
    ])  # fmt: skip
    return f"{len(kept):,} checkpoints are what was released, byte for byte" if kept else None


def _frozen(run: _Folder) -> str | None:
    stated = as_object(as_object(run.document().get("corpus")).get("frozen"))
    found = frozen_digests(read_frozen(run.path)) if run.document() else {}
    if stated != found:
        raise _Differs(f"{FROZEN} is not what the run was started with")
    if not stated:
        return None
    return f"{FROZEN} holds the {len(stated)} parameters that the run was started with"


def _start(run: _Folder) -> str | None:
    stated = as_object(run.document().get("start")).get("sha256")
    if stated is None:
        return None
    read_start(run.path, str(stated))
    return f"{START_FILE} is what the run started from"


def _describe_audited(record: AuditRecord | None) -> str:
    """Return what was found of an audit; a refuted ε does not verify."""
    if record is None:
        return NOT_AUDITED["outcome"]
    text = (
        f"{record}; the stated ε, the form and the verdict are derived again, the scores of "
        "canaries are not"
    )
    _refuse([text] if record.refuted else [])
    return text


def _same(stated: Any, value: float | None) -> bool:
    """Compare a stated number with a computed one; null states nothing, or no privacy."""
    if stated is None:
        return True
    if isinstance(stated, bool) or not isinstance(stated, (int, float)) or value is None:
        return False
    return stated == value or math.isclose(stated, value, rel_tol=1e-6, abs_tol=1e-9)


def check_returned(folder: Path, round_num: int, selection: Mapping[str, Any]) -> Check:
    """Compare the model that a run returns with what its last release and its start give.

    Args:
        folder: The run folder, whose checkpoints and start are what its ledger names.
        round_num: Of the last release.
        selection: What the summary says of the model; nothing seals that.
    """
    name, start = str(selection.get("selected")), folder / START_FILE

    def found(text: str, *, ok: bool = False) -> Check:
        return Check(name="returned", ok=ok, text=f"the returned model {name!r} {text}")

    try:
        digest = params_sha256(read_selected(folder, selection))
        last, _ = read_tensors(folder / "checkpoints" / f"round-{round_num:06d}.safetensors")
        begun = read_tensors(start)[0] if start.is_file() else None
        made = candidates(released_models(last), begun)
    except (OSError, KeyError, ValueError) as error:
        return found(f"cannot be compared: {error}")
    if begun is not None:
        made[START] = begun
    names = [one for one, params in made.items() if params_sha256(params) == digest]
    if name == PUBLIC_MODEL:
        if names and names != [START]:
            return found(f"is {names[0]!r}, which private training made")
        return found("is made of public examples, which no line of the ledger names", ok=True)
    if name not in made and begun is None:
        return found("was drawn back to the task's own params, which no file holds", ok=True)
    if name not in names:
        return found("is not what the last release and the start give")
    return found("is what the last release and the start give", ok=True)
