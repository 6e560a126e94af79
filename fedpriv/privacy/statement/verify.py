"""Check a run folder against its ledger, and recompute its ε, without trusting anything in it.

What can be found: an edited, cut, swapped or rolled back ledger (by its chain, and by the head
hash that every checkpoint carries), rounds reported without a charge, a stated ε that the charges
do not give, a plan that is not the one the ledger was started with, a checkpoint that was changed
after its release, frozen parameters or params before round 1 that were changed since. With the
run's anchor also: lines cut off the end of a ledger, an older backup, and a copy of the folder that
was continued elsewhere. Without it those cannot be found, and a folder all of whose files were
forged together cannot be either way.
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

from fedpriv.hashes import document_sha256, file_sha256
from fedpriv.output_paths import refuse_links
from fedpriv.privacy.epsilon import Epsilon, rounded_up
from fedpriv.privacy.ledger.anchor import Anchor
from fedpriv.privacy.ledger.anchored import ANCHORED, WITHOUT_ANCHOR, check_anchors
from fedpriv.privacy.ledger.chain import decode
from fedpriv.privacy.ledger.file import LedgerError
from fedpriv.privacy.ledger.reading import read_ledger
from fedpriv.privacy.ledger.state import LedgerState
from fedpriv.privacy.plans.adaptive import AnyPlan, read_plan
from fedpriv.privacy.statement.audited import NOT_AUDITED, AuditRecord, audit_check
from fedpriv.privacy.statement.before import with_start
from fedpriv.privacy.statement.coverage import (
    KEY,
    NOT_KNOWN,
    Coverage,
    as_object,
    coverage_of,
    not_known,
)
from fedpriv.privacy.statement.returned import check_returned
from fedpriv.privacy.statement.sealed import DOCUMENT, LEDGER, SEAL
from fedpriv.privacy.statement.sealed_files import Check, read_object, sealed_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The checks of a run folder.

    Attributes:
        checks: In the order they were made; those on absent optional files are left out.
        epsilon: ε recomputed from the ledger's lines, or None if it cannot be read.
        num_charges: Charges on the ledger.
        num_releases: Releases on the ledger.
        num_lost: Charges without a release.
        num_burned: Rows of noise with memory that were used up in vain.
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
    num_burned: int = 0
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
            "burned": self.num_burned,
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
    spent, burned = len(state.charges), len(state.burned)
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
            + (f", {burned:,} burned" if state.rows else ""),
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
    checks += sealed_tensors(folder)
    audited, audit = audit_check(folder, records, state)
    checks += audited
    return Verification(
        checks=tuple(checks),
        epsilon=covers.explained(final),
        num_charges=spent,
        num_releases=len(state.releases),
        num_lost=len(state.lost),
        num_burned=burned,
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
    unknown = not_known(facts) if state.plan.is_private else Coverage()

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
        Check(
            name="rounds",
            ok=not problems,
            text=_summed_up(
                problems, f"{len(rows):,} stated rounds were charged and released, their ε is right"
            ),
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
    found = Check(
        name="summary",
        ok=not problems,
        text=_summed_up(problems, "summary.json states what the ledger gives"),
    )
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
    return [
        Check(
            name="checkpoints",
            ok=not problems,
            text=_summed_up(problems, f"{carried:,} checkpoints carry a line of this ledger"),
        )
    ]


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
    return [
        Check(
            name="digests",
            ok=not problems,
            text=_summed_up(
                problems, f"{compared:,} checkpoints are what was released, byte for byte"
            ),
        )
    ]


def _same(stated: Any, value: float | None) -> bool:
    """Compare a stated number with a computed one; null states nothing, or no privacy."""
    if stated is None:
        return True
    if isinstance(stated, bool) or not isinstance(stated, (int, float)) or value is None:
        return False
    return stated == value or math.isclose(stated, value, rel_tol=1e-6, abs_tol=1e-9)


def _summed_up(problems: list[str], good: str) -> str:
    if not problems:
        return good
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
