"""Records of a run folder: its ledger, the `experiment.json` that it seals, and its audit.

The first line of a ledger holds the digest of `experiment.json`. Every reader of a run folder goes
through here, so that a document that was edited afterwards is refused: neither a guarantee nor what
ε does not cover is read from it. A user-defined training loop has a ledger alone.

An audit is of one plan. What is written names the run that it is of: the digests of its plan, of
its `experiment.json` and of its ledger's first line. A file that was copied from another run is
refused, and both are named. The file is outside the ledger's chain, since an audit
may come long after the last charge: anyone who can write to the folder can change or remove it.
What can be derived again is the stated ε, which form decides, and whether it refutes. What canaries
were scored is not kept; the same audit of a simulation, with its seed, gives the same figures.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedpriv.hashes import document_sha256
from fedpriv.json_lines import parse_object
from fedpriv.output_paths import refuse_links
from fedpriv.privacy.epsilon import Epsilon, format_delta, format_epsilon
from fedpriv.privacy.ledger.chain import Record
from fedpriv.privacy.ledger.state import LedgerState, read_ledger
from fedpriv.privacy.plan import AnyPlan, Plan, read_plan
from fedpriv.privacy.statement.coverage import (
    COST,
    NO_NOISE,
    USER_LOOP,
    Coverage,
    TrainedBefore,
    as_object,
    coverage_of,
    coverage_without_document,
    trained_before,
    with_start,
)

DOCUMENT, LEDGER = "experiment.json", "ledger.jsonl"
FORMAT, VERSION = "fedpriv-run", 1
SEAL = "experiment_sha256"
"""Key of the document's digest in the first line of a ledger."""


ASKED = "user_defined_parts"
"""Key of user-defined parts of mechanisms that requests bring, in `experiment.json`."""


@dataclass(frozen=True, kw_only=True)
class SealedRun:
    """A run folder with an unbroken ledger and the `experiment.json` that the ledger seals.

    That shows that the files belong together, not that they are true: anyone who rewrites all
    of them can have them say anything (`fedpriv.privacy.ledger.chain.WITHOUT_ANCHOR`). A callback
    is given it before the first round; `fedpriv.load` returns it with the records of the rounds.

    Attributes:
        folder: Where it is.
        records: The ledger's lines, at least one.
        state: What they add up to.
        document: `experiment.json`; None where there is none, as of a user-defined training loop.
    """

    folder: Path
    records: tuple[Record, ...]
    state: LedgerState
    document: Mapping[str, Any] | None

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """The document, or of a user-defined training loop what its ledger says in its place.

        Such are the folders of `fedpriv.averaging` in a Flower app, and of `fedpriv.bolt_on`.

        Raises:
            ValueError: If the ledger is of a run that has a document.
        """
        if self.document is not None:
            return self.document
        state = self.state
        if SEAL in state.extra:
            raise ValueError(
                f"{self.folder} has lost its {DOCUMENT}, of which its ledger holds the digest; "
                "restore that file"
            )
        return {
            **state.extra,
            "plan": state.plan.to_json(),
            "mode": state.mode,
            "measures": [],
            "corpus": {"num_users": state.plan.num_users},
            USER_LOOP: {"rounds_done": state.rounds_done, "finished": not state.pays_for_more},
        }

    @property
    def name(self) -> str:
        """The experiment's name, or the folder's where it has none."""
        return str(self.description.get("name") or self.folder.name)

    @property
    def label(self) -> str:
        """The label that the run was started with, or else its name."""
        return str(self.description.get("label") or self.name)

    @property
    def mode(self) -> str:
        """The mode of its keys, "simulation" or "secure"."""
        return self.state.mode

    @property
    def options(self) -> Mapping[str, Any]:
        """Every option of the experiment, by its dotted name."""
        return as_object(self.description.get("experiment"))

    @property
    def synthetic(self) -> bool:
        """Whether the users are synthetic."""
        return bool(as_object(self.description.get("corpus")).get("synthetic"))

    @cached_property
    def coverage(self) -> Coverage:
        """Parts of the data that ε does not cover, and why it is infinite where it is.

        Without a document it is what the ledger's first line says.
        """
        if self.document is not None:
            return coverage_of(self.document)
        if not self.state.plan.is_private:
            return Coverage(reason=NO_NOISE)
        return coverage_without_document({**self.state.extra, "mode": self.mode})

    @property
    def guaranteed(self) -> Epsilon:
        """The ε of everything that the plan pays for, with what it does not cover."""
        return self.coverage.marked(self.coverage.explained(self.state.plan.guaranteed()))

    @property
    def identity(self) -> dict[str, str]:
        """Name, mode and digests that identify the run, from its ledger alone.

        They are of the plan's JSON, of `experiment.json` as the ledger seals it ("" of a training
        loop, which has none), and of the ledger's first line, which has the random run id.
        """
        return {
            "experiment": str(self.state.extra.get("experiment", "")),
            "mode": self.mode,
            "plan_sha256": document_sha256(self.state.plan.to_json()),
            "experiment_sha256": str(self.state.extra.get(SEAL, "")),
            "ledger_sha256": self.records[0].hash,
        }

    @property
    def start(self) -> Mapping[str, Any] | None:
        """Start of training, as the document says; None without one."""
        return None if self.document is None else as_object(self.document.get("start"))

    @property
    def with_start(self) -> Epsilon | None:
        """The ε of the run and of what it started from; None where the two do not add up."""
        state, secure = self.state, self.state.mode == "secure"
        return with_start(state.plan, state.epsilon(), self.start, secure=secure)

    def trained(self) -> TrainedBefore:
        """Return the privacy of its training, for runs that start from one of its models."""
        state, plan = self.state, self.state.plan
        before, both = trained_before(self.start), self.with_start
        spent = both or state.epsilon()
        bare = not plan.is_private or (before is not None and before.epsilon is None)
        seeded = before is not None and before.mode != "secure"
        missing = self.coverage.not_covered
        return TrainedBefore(
            ledger_head=self.records[-1].hash,
            mode="simulation" if seeded else self.mode,
            unit=plan.unit,
            relation=plan.relation.value,
            roster_sha256=plan.roster_sha256,
            epsilon=None if bare else spent.value,
            delta=None if bare else spent.delta,
            accountant=spent.accountant,
            claimed=both is not None and both.claimed,
            not_covered=tuple(said for said in missing if not (both and said.startswith(COST))),
        )


def user_defined_of(plan: AnyPlan, document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return parts of a run's mechanisms that are not fedpriv's own, in words.

    Args:
        plan: Its plan.
        document: What is known of it; without any, only of the plan's mechanism it is told.
    """
    own = () if plan.mechanism is None else plan.mechanism.user_defined
    asked = document.get(ASKED)
    return (*own, *(map(str, asked) if isinstance(asked, list) else ()))


def read_sealed(folder: str | os.PathLike[str]) -> SealedRun:
    """Read the ledger of a run folder, and its document where it has one.

    Raises:
        ValueError: If the ledger is missing or damaged, the document is of a newer format or not
            the one that the run was started with, or the folder has a link in it.
    """
    folder = Path(folder)
    refuse_links(folder)
    file = folder / DOCUMENT
    document = parse_document(file.read_bytes(), file) if file.exists() else None
    records, state = _ledger(folder / LEDGER)
    if document is not None:
        check_sealed(document, state, file)
    return SealedRun(folder=folder, records=records, state=state, document=document)


def parse_document(content: bytes, file: Path) -> dict[str, Any]:
    """Return the document in the bytes of an `experiment.json`; raise `ValueError` for none."""
    try:
        document = parse_object(content)
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise ValueError(
            f"{file} has format {document.get('format')!r} version {document.get('version')!r}; "
            f"this fedpriv reads {FORMAT!r} version {VERSION}"
        )
    return document


def check_sealed(document: Mapping[str, Any], state: LedgerState, file: Path) -> None:
    """Compare a document with the ledger's digest of it, and its plan and mode with the ledger's.

    Raises:
        ValueError: If they differ.
    """
    if state.extra.get(SEAL) != document_sha256(document):
        raise ValueError(
            f"{file} is not the one the run was started with, which its ledger seals: it was "
            "edited, or is another run's, and nothing is said from it; restore it"
        )
    if read_plan(document.get("plan")) != state.plan or document.get("mode") != state.mode:
        raise ValueError(f"{file} states another plan or mode than the ledger; restore both")


def _ledger(path: Path) -> tuple[tuple[Record, ...], LedgerState]:
    try:
        seen = path.stat()
    except OSError:
        read_ledger(path)  # which says what is wrong with it
        raise
    return _read(path, seen.st_size, seen.st_mtime_ns)


# A page asks for the same ledger a dozen times; one of ten thousand steps takes a while to check.
@lru_cache(maxsize=64)
def _read(path: Path, size: int, changed: int) -> tuple[tuple[Record, ...], LedgerState]:
    records, state, _ = read_ledger(path)
    return records, state


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise `ValueError` if it holds none."""
    return parse_object(path.read_bytes())


AUDIT_FILE = "audit.json"
DECIDING = {"simultaneous": "many canaries", "clopper_pearson": "Clopper-Pearson"}
"""The bounds of an audit, by their names in the file, and how a reader knows them."""
NOT_AUDITED = {"outcome": "not audited"}
"""Value in JSON where there is no audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """The outcome of an audit of a run's mechanism.

    Attributes:
        of: The run, as `SealedRun.identity`.
        version: Of the fedpriv that audited.
        stated: The ε that the plan states after all of its rounds.
        delta: Its δ.
        bound: The larger of the bounds.
        form: Which of `DECIDING` it is.
        confidence: That the true ε is not below it.
        canaries: How many, in and out.
        canaries_in: Of them in.
        rounds: Of each run of the mechanism.
        runs: How many.
        seed: Of a simulation; None of a secure one.
    """

    of: Mapping[str, str]
    version: str
    stated: float
    delta: float
    bound: float
    form: str
    confidence: float
    canaries: int
    canaries_in: int
    rounds: int
    runs: int
    seed: int | None

    @property
    def refuted(self) -> bool:
        """Whether the bound is above the stated ε."""
        return self.bound > self.stated

    @property
    def outcome(self) -> str:
        """The outcome in one word."""
        return "refuted" if self.refuted else "consistent"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"outcome": self.outcome, **asdict(self)}

    def __repr__(self) -> str:
        least = math.floor(1000 * self.bound) / 1000  # a lower bound is rounded down
        return (
            f"{self.outcome.upper() if self.refuted else self.outcome}: ε ≥ {least:.3f} with "
            f"{100 * self.confidence:g} % confidence ({DECIDING[self.form]}; {self.canaries:,} "
            f"canaries, {self.canaries_in:,} in, {self.runs:,} x {self.rounds:,} rounds), against "
            f"the plan's ε = {format_epsilon(self.stated)} at δ = {format_delta(self.delta)}"
        )


def write_audit(
    folder: Path, found: Mapping[str, Any], of: Mapping[str, str], *, version: str
) -> None:
    """Keep an audit in its run's folder.

    Args:
        folder: The run's.
        found: What `fedpriv audit --json` prints.
        of: The run.
        version: Of fedpriv.

    Raises:
        ValueError: If the folder holds one: an outcome is not replaced by a later one.
    """
    refuse_second_audit(folder)
    text = json.dumps({**found, "of": dict(of), "version": version}, indent=2, sort_keys=True)
    part = folder / f".{AUDIT_FILE}.part"
    try:
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, folder / AUDIT_FILE)
    finally:
        part.unlink(missing_ok=True)


def refuse_second_audit(folder: Path) -> None:
    """Raise `ValueError` if a run's folder holds an audit."""
    if (folder / AUDIT_FILE).exists():
        raise ValueError(
            f"{folder / AUDIT_FILE} holds an audit, which no later one replaces; take it away first"
        )


def read_audit(run: SealedRun) -> AuditRecord | None:
    """Return the audit in a run's folder; None if it was not audited.

    Raises:
        ValueError: If the file cannot be read, is of another run, or contradicts itself or the
            ledger's plan.
    """
    path = run.folder / AUDIT_FILE
    if not path.exists():
        return None
    try:
        document = read_object(path)
        stated = document["stated"]
        bounds = {name: float(document["bounds"][name]["epsilon"]) for name in DECIDING}
        record = AuditRecord(
            of={name: str(value) for name, value in document["of"].items()},
            version=str(document["version"]),
            stated=float(stated["epsilon"]),
            delta=float(stated["delta"]),
            bound=float(document["bound"]),
            form=max(bounds, key=lambda name: bounds[name]),
            confidence=float(document["confidence"]),
            canaries=int(document["canaries"]),
            canaries_in=int(document["canaries_in"]),
            rounds=int(document["rounds"]),
            runs=int(document["runs"]),
            seed=None if document["seed"] is None else int(document["seed"]),
        )
        refuted = document["refuted"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no audit that can be read ({error!r}); audit again") from error
    if record.of != run.identity:
        other, this = (name_run(of) for of in (record.of, run.identity))
        raise ValueError(
            f"{path} is the audit of another run: of {other}, and this is {this}; take it away"
        )
    problems = _contradictions(record, bounds, refuted, run.state.plan)
    if problems:
        raise ValueError(f"{path} contradicts {'; '.join(problems)}; take it away and audit again")
    return record


def name_run(of: Mapping[str, str]) -> str:
    """Return the run that an identity is of, in words."""
    named = of.get("experiment") or "a user-defined training loop"
    plan, first = (of.get(f"{name}_sha256", "")[:12] for name in ("plan", "ledger"))
    return f"{named} ({of.get('mode')}, plan {plan}, run {first})"


def _contradictions(
    record: AuditRecord, bounds: Mapping[str, float], refuted: Any, plan: AnyPlan
) -> list[str]:
    expected = audited_rounds(plan)
    problems = []
    if expected is None or record.rounds != expected:
        problems.append(f"the plan: {record.rounds} rounds instead of {expected}")
    else:
        due = plan.epsilon(expected)
        if not math.isclose(record.stated, due.value, rel_tol=1e-6):
            problems.append(f"the plan: ε {record.stated} instead of {due.value:.6f}")
        if not math.isclose(record.delta, due.delta, rel_tol=1e-9):
            problems.append(f"the plan: δ {record.delta} instead of {due.delta}")
    if record.bound != bounds[record.form]:
        problems.append(f"itself: bound {record.bound}, and its forms give {bounds[record.form]}")
    if refuted is not record.refuted:
        problems.append(f"itself: a bound of {record.bound} over {record.stated}, and {refuted=}")
    if not (0 <= record.canaries_in <= record.canaries and 0.5 < record.confidence < 1):
        problems.append("itself: more canaries in than there are, or no confidence")
    if (record.seed is None) != (record.of["mode"] == "secure"):
        problems.append(f"itself: seed {record.seed} in mode {record.of['mode']}")
    return problems


def audited_rounds(plan: AnyPlan) -> int | None:
    """Return how many rounds an audit runs: as many as the plan pays for; None if that is open."""
    if not isinstance(plan, Plan):
        return None
    return plan.num_rounds if plan.charged_once else plan.affordable_rounds
