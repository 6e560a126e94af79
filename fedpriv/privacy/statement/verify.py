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
from collections.abc import Mapping, Sequence
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
from fedpriv.privacy.ledger.chain import LedgerError, Record, decode
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
        num_discarded: Rows of noise with memory that were used up in vain.
        mode: "simulation", "secure", or "" if the ledger cannot be read.
        coverage: What ε does not cover, as `experiment.json` has it; without the run's own one
            that is not known, and said.
        audit: What `audit.json` records, if it is this run's.
        not_found: What these checks cannot find, in plain phrases, because they hold the files of
            the folder against each other; empty where they were held against an anchor outside it.
    """

    checks: tuple[Check, ...]
    epsilon: Epsilon | None
    num_charges: int
    num_releases: int
    num_lost: int
    mode: str
    num_discarded: int = 0
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
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a run folder; give the folder that `fedpriv run` wrote")
    if not (folder / LEDGER).is_file():
        raise ValueError(
            f"{folder} holds no ledger.jsonl; give the folder that `fedpriv run` wrote"
        )
    try:
        records, state, torn = read_ledger(folder / LEDGER)
    except LedgerError as error:
        return Verification(
            checks=(Check(name="ledger", ok=False, text=str(error)),),
            epsilon=None,
            num_charges=0,
            num_releases=0,
            num_lost=0,
            mode="",
            not_found=() if anchors else WITHOUT_ANCHOR,
        )
    spent, discarded = len(state.charges), len(state.discarded)
    checks = [
        Check(
            name="ledger",
            ok=True,
            text=f"{len(records):,} lines, the chain is whole"
            + (f"; {torn} bytes of a torn last line are not counted" if torn else ""),
        ),
        Check(
            name="charges",
            ok=True,
            text=f"{state.used.text}, {len(state.releases):,} released, {len(state.lost):,} lost"
            + (f", {discarded:,} discarded" if state.rows else ""),
        ),
    ]
    final = state.epsilon()
    checks += _links(folder)
    checks += _anchored(folder, state, anchors)
    checks += _budget(state, final)
    stated, covers = _experiment(folder, state)
    checks += stated
    checks += _rounds(folder, state)
    checks += _summary(folder, state, final, covers)
    hashes = {record.hash: number for number, record in enumerate(records)}
    checks += _checkpoints(folder, state, hashes)
    checks += _digests(folder, state)
    checks += _sealed_tensors(folder)
    audited, audit = _check_audit(folder, records, state)
    checks += audited
    return Verification(
        checks=tuple(checks),
        epsilon=covers.explained(final),
        num_charges=spent,
        num_releases=len(state.releases),
        num_lost=len(state.lost),
        num_discarded=discarded,
        mode=state.mode,
        coverage=covers,
        audit=audit,
        not_found=() if anchors else WITHOUT_ANCHOR,
    )


def _links(folder: Path) -> list[Check]:
    try:
        refuse_links(folder)
    except ValueError as error:
        return [Check(name="links", ok=False, text=str(error))]
    return []


def _anchored(folder: Path, state: LedgerState, anchors: Sequence[Anchor]) -> list[Check]:
    if not anchors:
        if not state.extra.get(ANCHORED):
            return []
        said = "not compared: give --anchor; an older ledger than the last one would verify"
        return [Check(name="anchor", ok=True, text=said)]
    try:
        # Read again: a run under way marks a line after it is written, and has marked others since.
        text = check_anchors(anchors, lambda: decode((folder / LEDGER).read_bytes()))
    except (LedgerError, OSError, ValueError) as error:
        return [Check(name="anchor", ok=False, text=str(error))]
    return [Check(name="anchor", ok=True, text=text)]


def _budget(state: LedgerState, final: Epsilon) -> list[Check]:
    target = state.plan.target_epsilon
    if target is None:
        return []
    return [
        Check(
            name="budget",
            ok=final.value <= target,
            text=f"ε {rounded_up(final.value, 4):,.4f} against a target of {target:g}",
        )
    ]


def _experiment(folder: Path, state: LedgerState) -> tuple[list[Check], Coverage]:
    facts = {**state.extra, "mode": state.mode}
    unknown = coverage_without_document(facts) if state.plan.is_private else Coverage()

    def wrong(text: str) -> tuple[list[Check], Coverage]:
        return [Check(name="experiment", ok=False, text=text)], unknown

    path = folder / DOCUMENT
    if not path.exists():
        return [], unknown
    try:
        stated = read_object(path)
        plan = read_plan(stated["plan"])
        mode = stated.get("mode", state.mode)
    except (OSError, ValueError, KeyError) as error:
        return wrong(f"experiment.json cannot be read: {error}")
    sealed = state.extra.get(SEAL)
    if sealed is not None and sealed != document_sha256(stated):
        return wrong("experiment.json is not the one the run was started with")
    if plan != state.plan:
        return wrong("the plan of experiment.json is not the plan of the ledger")
    check = Check(
        name="experiment",
        ok=mode == state.mode,
        text=f"experiment.json states the ledger's plan, mode {mode!r} (ledger: {state.mode!r})",
    )
    return [check], coverage_of(stated)


def _rounds(folder: Path, state: LedgerState) -> list[Check]:
    path = folder / "rounds.jsonl"
    if not path.exists():
        return []
    charged = {(charge.round_num, charge.attempt) for charge in state.charges}
    charged |= {(row.round_num, row.row) for row in state.rows}
    released = {
        (release.round_num, release.attempt): number
        for release, number in zip(state.releases, state.charged_before, strict=True)
    }
    plan = state.plan
    problems: list[str] = []
    seen: set[tuple[Any, Any]] = set()
    try:
        # A last line without newline was cut off by a kill; it was never stated.
        lines = path.read_bytes().split(b"\n")[:-1]
        rows = [json.loads(line) for line in lines if line.strip()]
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
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [Check(name="rounds", ok=False, text=f"rounds.jsonl cannot be read: {error}")]
    return [
        _check_that(
            "rounds",
            problems,
            f"{len(rows):,} stated rounds were charged and released, their ε is right",
        )
    ]


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
    silent = plan.is_private and stated is None
    if silent or not _same(stated, value):
        return [f"round {row['round_num']} states ε {stated}, the charges give {value:.6f}"]
    return []


def _summary(folder: Path, state: LedgerState, final: Epsilon, covers: Coverage) -> list[Check]:
    path = folder / "summary.json"
    if not path.exists():
        return []
    try:
        stated = read_object(path)
    except (OSError, ValueError) as error:
        return [Check(name="summary", ok=False, text=f"summary.json cannot be read: {error}")]
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
    if known and "with_start" in stated and (folder / DOCUMENT).is_file():
        start = as_object(read_object(folder / DOCUMENT).get("start"))
        both = with_start(state.plan, final, start, secure=state.mode == "secure")
        if stated["with_start"] != (None if both is None else both.to_json()):
            problems.append("its ε with that of the start is not what the two give")
    released = state.rounds_done
    if stated.get("rounds", released) != released:
        problems.append(f"it states {stated['rounds']} rounds, {released} were released")
    if stated.get("charges", len(state.charges)) != len(state.charges):
        problems.append(
            f"it states {stated['charges']} charges, the ledger has {len(state.charges)}"
        )
    found = _check_that("summary", problems, "summary.json states what the ledger gives")
    selection = stated.get("selection")
    if not isinstance(selection, dict):
        return [found]
    return [found, check_returned(folder, state.rounds_done, selection)]


def _checkpoints(folder: Path, state: LedgerState, hashes: Mapping[str, int]) -> list[Check]:
    paths = sorted((folder / "checkpoints").glob("*.safetensors"))
    saved = folder / "state.safetensors"
    paths += [saved] if saved.exists() else []
    rounds = {entry.round_num for entry in (*state.charges, *state.rows)}
    problems, carried = [], 0
    for path in paths:
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            problems.append(f"{path.name} cannot be read: {error}")
            continue
        head = metadata.get("ledger_head")
        if head is None:
            continue
        carried += 1
        if head not in hashes:
            problems.append(
                f"{path.name} was written with a ledger that had a line this one does "
                "not have: the ledger was cut, rolled back, edited or swapped"
            )
        round_num = metadata.get("round_num")
        if (
            round_num is not None
            and round_num != "0"
            and not (round_num.isascii() and round_num.isdigit() and int(round_num) in rounds)
        ):
            problems.append(f"{path.name} is of round {round_num}, which was never charged")
    if not carried and not problems:
        return []
    good = f"{carried:,} checkpoints carry a line of this ledger"
    return [_check_that("checkpoints", problems, good)]


def _digests(folder: Path, state: LedgerState) -> list[Check]:
    # A round may be done again after its state was lost; its last release counts.
    stated = {release.round_num: release.digest for release in state.releases}
    problems, compared = [], 0
    for round_num, digest in stated.items():
        path = folder / "checkpoints" / f"round-{round_num:06d}.safetensors"
        if not path.is_file():
            continue
        compared += 1
        if file_sha256(path) != digest:
            problems.append(f"{path.name} is not what was released")
    if not compared:
        return []
    good = f"{compared:,} checkpoints are what was released, byte for byte"
    return [_check_that("digests", problems, good)]


def _sealed_tensors(folder: Path) -> list[Check]:
    """Compare what is not trained, and what training started from, with what was sealed."""
    try:
        document = read_object(folder / "experiment.json")
    except (OSError, ValueError):
        return []  # there is none, or another check has said so
    return [*_frozen(folder, as_object(document.get("corpus"))), *_start(folder, document)]


def _frozen(folder: Path, corpus: Mapping[str, Any]) -> list[Check]:
    try:
        stated = as_object(corpus.get("frozen"))
        found = frozen_digests(read_frozen(folder))
    except (OSError, ValueError) as error:
        return [Check(name="frozen", ok=False, text=f"{FROZEN} cannot be compared: {error}")]
    if not stated and not found:
        return []
    return [
        Check(
            name="frozen",
            ok=stated == found,
            text=f"{FROZEN} holds the {len(stated)} parameters that the run was started with"
            if stated == found
            else f"{FROZEN} is not what the run was started with",
        )
    ]


def _start(folder: Path, document: Mapping[str, Any]) -> list[Check]:
    stated = as_object(document.get("start")).get("sha256")
    if stated is None:
        return []
    try:
        read_start(folder, str(stated))
    except (OSError, ValueError) as error:
        return [Check(name="start", ok=False, text=str(error))]
    return [Check(name="start", ok=True, text=f"{START_FILE} is what the run started from")]


def _same(stated: Any, value: float | None) -> bool:
    """Compare a stated number with a computed one; null states nothing, or no privacy."""
    if stated is None:
        return True
    if isinstance(stated, bool) or not isinstance(stated, (int, float)) or value is None:
        return False
    return stated == value or math.isclose(stated, value, rel_tol=1e-6, abs_tol=1e-9)


def _check_that(name: str, problems: list[str], good: str) -> Check:
    """Return a check that fails with the first three problems, or holds without any."""
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    text = "; ".join(problems[:3]) + more if problems else good
    return Check(name=name, ok=not problems, text=text)


def _check_audit(
    folder: Path, records: Sequence[Record], state: LedgerState
) -> tuple[list[Check], AuditRecord | None]:
    """Return what a verification finds of the audit; a refuted ε does not verify."""
    if not state.plan.is_private and not (folder / AUDIT_FILE).exists():
        return [], None
    try:
        record = read_audit(folder, records, state)
    except ValueError as error:
        return [Check(name="audit", ok=False, text=str(error))], None
    if record is None:
        return [Check(name="audit", ok=True, text="not audited")], None
    said = (
        f"{record}; the stated ε, the form and the verdict are derived again, what canaries were "
        "scored is not"
    )
    return [Check(name="audit", ok=not record.refuted, text=said)], record


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
