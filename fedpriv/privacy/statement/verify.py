"""Verification of a run folder: recompute its ε from the ledger and compare all that it decides.

ε comes from the ledger's charges alone. What the ledger decides of a document is built again by the
functions that the run wrote it with (`fedpriv.privacy.statement.stated`), and compared. Files are
compared with digests: the ledger's first line has that of `experiment.json`, a release that of its
checkpoint, and the last line of a finished run those of its other files; `experiment.json` has
those of what was there before the first round. `Verification.not_checked` lists what is left.

A run under way can be verified: what refers to the ledger is read before it, and what the ledger
refers to after it.

With the run's anchor also lines cut off the end of a ledger, an older backup, and a copy of the
folder that was continued elsewhere are found. Without it those are not, and a folder all of whose
files were forged together is not either way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fedpriv.checkpoints.store import load_state
from fedpriv.checkpoints.tensor_files import (
    FROZEN,
    SELECTED,
    START_FILE,
    read_metadata,
    read_sealed_model,
)
from fedpriv.hashes import file_sha256
from fedpriv.json_lines import parse_object
from fedpriv.output_paths import refuse_links
from fedpriv.privacy.epsilon import Epsilon, rounded_up
from fedpriv.privacy.ledger.chain import (
    ANCHORED,
    WITHOUT_ANCHOR,
    Anchor,
    LedgerError,
    Record,
    check_anchor,
    decode,
)
from fedpriv.privacy.ledger.state import LedgerState, read_ledger
from fedpriv.privacy.statement.coverage import KEY, NOT_KNOWN, Coverage, as_object
from fedpriv.privacy.statement.sealed import (
    AUDIT_FILE,
    DOCUMENT,
    LEDGER,
    NOT_AUDITED,
    SEAL,
    AuditRecord,
    SealedRun,
    check_sealed,
    parse_document,
    read_audit,
    user_defined_of,
)
from fedpriv.privacy.statement.stated import (
    ROUND_VALUES,
    gaps_of_rounds,
    round_values,
    summary_values,
)
from fedpriv.untrusted_text import plain

_Read = TypeVar("_Read")
_TRIES = 5


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
        checks: In the order they were made; those on absent files are left out.
        epsilon: ε recomputed from the ledger's lines, or None if it cannot be read.
        num_charges: Charges on the ledger.
        num_releases: Releases on the ledger.
        num_lost: Charges without a release.
        num_discarded: Rounds of correlated noise that a crash discarded.
        mode: "simulation", "secure", or "" if the ledger cannot be read.
        coverage: What ε does not cover, as `experiment.json` has it; without the run's own one
            that is not known, and said.
        audit: What `audit.json` records, if it is this run's.
        not_found: What these checks cannot find, in plain phrases, because they compare the files
            of the folder with each other; empty where they were compared with an anchor outside it.
        not_checked: What of this folder was not checked, in plain phrases.
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
    not_checked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "not_found": list(self.not_found),
            "not_checked": list(self.not_checked),
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


def verify_run(
    run_dir: str | os.PathLike[str], *, anchor: str | os.PathLike[str] | None = None
) -> Verification:
    """Verify a run folder; a run in progress may be verified too.

    Args:
        run_dir: Folder with `ledger.jsonl` and whatever else the run wrote.
        anchor: Where the ledger's lines were marked outside the folder. Without it the checks
            show that the files agree with each other: a folder that was rewritten with another
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
    for tries_left in reversed(range(_TRIES)):
        size = (folder / LEDGER).stat().st_size
        found = _verify(folder, anchor)
        # A finished run that is resumed meanwhile rewrites files that its ledger had named.
        if found.ok or not tries_left or size == (folder / LEDGER).stat().st_size:
            break
    return found


def _verify(folder: Path, anchor: str | os.PathLike[str] | None) -> Verification:
    not_found = WITHOUT_ANCHOR if anchor is None else ()
    stated = _Stated.read(folder)
    try:
        records, state, torn = read_ledger(folder / LEDGER)
    except LedgerError as error:
        failed = Check(name="ledger", ok=False, text=str(error))
        return Verification(checks=(failed,), not_found=not_found)
    run = _Folder(folder, stated, records, state)
    final, covers = state.epsilon(), run.sealed.coverage
    audit = None

    def audited() -> str | None:
        nonlocal audit
        if not state.plan.is_private and not (folder / AUDIT_FILE).exists():
            return None
        audit = read_audit(run.sealed)
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
        ("anchor", lambda: _anchored(run, anchor)),
        ("budget", lambda: _budget(state, final)),
        ("experiment", lambda: _experiment(run)),
        ("rounds", lambda: _rounds(run)),
        ("diagnostics", lambda: _diagnostics(run)),
        ("summary", lambda: _summary(run)),
        ("checkpoints", lambda: _checkpoints(run)),
        ("digests", lambda: _digests(run)),
        ("files", lambda: _files(run)),
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
        not_checked=tuple(map(plain, _not_checked(run))),
    )


ROUNDS, DIAGNOSTICS, SUMMARY = "rounds.jsonl", "diagnostics.jsonl", "summary.json"
STATE, CHECKPOINTS = "state.safetensors", "checkpoints"
_OF_MODEL = (FROZEN, SELECTED)


@dataclass(frozen=True)
class _Stated:
    """What a folder states of its ledger, read before it: the ledger has those lines then.

    Attributes:
        names: Of what lies in the folder; of a folder in it with a slash at the end.
        contents: Of files by name, or why one could not be read.
        tensors: Metadata of the checkpoints and of the resume state, likewise.
    """

    names: Set[str]
    contents: Mapping[str, bytes | Exception]
    tensors: Mapping[str, Mapping[str, str] | Exception]

    @classmethod
    def read(cls, folder: Path) -> _Stated:
        """Read it."""
        found = {f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir()}
        found |= {f"{CHECKPOINTS}/{path.name}" for path in (folder / CHECKPOINTS).glob("*")}
        names = [name for name in (DOCUMENT, ROUNDS, DIAGNOSTICS, SUMMARY) if name in found]
        contents = {name: _try_read((folder / name).read_bytes) for name in names}
        tensors = {}
        for path in sorted((folder / CHECKPOINTS).glob("*.safetensors")):
            metadata = _try_read(lambda path=path: read_metadata(path))
            if path.exists():  # else it was pruned meanwhile
                tensors[f"{CHECKPOINTS}/{path.name}"] = metadata
        if STATE in found:
            tensors[STATE] = _try_read(lambda: load_state(folder / STATE)[1])
        return cls(names=found, contents=contents, tensors=tensors)

    def content(self, name: str) -> bytes | None:
        """Return a file's bytes, None where it is absent; raise what reading it raised.

        Diagnostics are readable by their owner alone, and None to anybody else.
        """
        found = self.contents.get(name)
        if name == DIAGNOSTICS and isinstance(found, PermissionError):
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def rows(self, name: str) -> list[dict[str, Any]] | None:
        """Return a file's lines, None where it is absent.

        A last line without newline was cut off by a kill: it was never stated.
        """
        content = self.content(name)
        lines = None if content is None else content.split(b"\n")[:-1]
        return None if lines is None else [parse_object(line) for line in lines if line.strip()]


def _try_read(read: Callable[[], _Read]) -> _Read | Exception:
    try:
        return read()
    except (OSError, ValueError) as error:
        return error


@dataclass(frozen=True)
class _Folder:
    """A run folder: what it states, then its ledger."""

    path: Path
    stated: _Stated
    records: Sequence[Record]
    state: LedgerState

    def read_document(self) -> dict[str, Any] | None:
        """Return `experiment.json`, None where it is absent; raise where it is not the run's."""
        content, file = self.stated.content(DOCUMENT), self.path / DOCUMENT
        if content is None:
            return None
        document = parse_document(content, file)
        check_sealed(document, self.state, file)
        return document

    @cached_property
    def sealed(self) -> SealedRun:
        """The run with its document, where that is the one that the ledger seals."""
        document = None
        with suppress(OSError, ValueError, KeyError, TypeError):  # its own check says why
            document = self.read_document()
        return SealedRun(
            folder=self.path, records=tuple(self.records), state=self.state, document=document
        )

    @property
    def document(self) -> Mapping[str, Any]:
        """The document that the ledger seals; empty where there is none."""
        return self.sealed.document or {}

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Digests by name of the files that `experiment.json` and the last line name."""
        named = as_object(self.document.get("files"))
        return {name: str(named[name]) for name in named if Path(name).name == name} | dict(
            self.state.sealed
        )

    @cached_property
    def released(self) -> Mapping[str, str]:
        """Digests by name of checkpoints; of a round that was done again, of its last release."""
        return {
            f"{CHECKPOINTS}/round-{release.round_num:06d}.safetensors": release.digest
            for release in self.state.releases
        }

    @cached_property
    def current(self) -> Mapping[str, str | None]:
        """Digests of the files that digests name, as they are now; None of one not to be read.

        They are read after the ledger, which names a file once it is written.
        """
        found: dict[str, str | None] = {}
        for name in (*self.digests, *self.released):
            if (self.path / name).is_file():
                with suppress(FileNotFoundError):  # it was pruned meanwhile
                    try:
                        found[name] = file_sha256(self.path / name)
                    except PermissionError:
                        found[name] = None
        return found

    @property
    def gone(self) -> Set[str]:
        """Files that digests name and that are not there, as of a copy for publication."""
        return {name for name in self.digests if not (self.path / name).is_file()}

    def changed(self, stated: Mapping[str, str]) -> list[str]:
        """Return the files, of these, that have another digest."""
        return [name for name in stated if self.current.get(name) not in (None, stated[name])]


def _check(name: str, compare: Callable[[], str | None]) -> Check | None:
    """Return a comparison's result: it returns what was found, None for nothing, or raises."""
    try:
        text = compare()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        file = _FILES.get(name)
        unread = f"{file} cannot be read: " if file and not isinstance(error, _Differs) else ""
        return Check(name=name, ok=False, text=f"{unread}{error}")
    return None if text is None else Check(name=name, ok=True, text=text)


_FILES = {"rounds": ROUNDS, "diagnostics": DIAGNOSTICS, "summary": SUMMARY}


class _Differs(ValueError):
    """A file was read, and says something else than the ledger."""


def _refuse(problems: Sequence[str]) -> None:
    """Raise `_Differs` with the first three problems; do nothing without any."""
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    if problems:
        raise _Differs("; ".join(problems[:3]) + more)


def _anchored(run: _Folder, anchor: str | os.PathLike[str] | None) -> str | None:
    if anchor is not None:
        # Read again: a run under way marks a line after it is written, and has marked others since.
        return check_anchor(Anchor(anchor), lambda: decode((run.path / LEDGER).read_bytes()))
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
    if run.read_document() is None:
        # It is written after the ledger's first line.
        gone = SEAL in run.state.extra and run.state.charges
        _refuse(["it is missing, and the ledger has its digest"] if gone else [])
        return None
    return f"experiment.json is the one that the ledger names, mode {run.state.mode!r}"


def _rounds(run: _Folder) -> str | None:
    rows, state = run.stated.rows(ROUNDS), run.state
    if rows is None:
        return None
    problems = _not_released(run, rows)
    charged = {
        (release.round_num, release.attempt): number
        for release, number in zip(state.releases, state.charged_before, strict=True)
    }
    gaps = list(gaps_of_rounds(run.document, state.extra, state.mode))
    for row in rows:
        least = charged.get((row["round_num"], row["attempt"]))
        if least is None:
            continue
        counted, most = row.get("epsilon_charges"), state.plan.affordable_rounds
        if not state.plan.is_private:
            counted = None
        elif type(counted) is not int or not least <= counted <= (most or counted):
            problems.append(
                f"round {row['round_num']} states the ε of {counted} charges; {least} were made, "
                f"and the plan pays for {most}"
            )
            continue
        built = round_values(state.plan, counted or 0)
        built |= {KEY: gaps} if gaps and state.plan.is_private else {}
        problems += [
            f"round {row['round_num']} states {name} {row.get(name)}, and the ledger gives "
            f"{built.get(name)}"
            for name in ROUND_VALUES
            if not _same(row.get(name), built.get(name))
        ]
    if not run.document:  # a loop of its own records the rounds that it wants to
        _refuse(problems)
        return f"{len(rows):,} stated rounds were charged and released, their ε is right"
    rounds = {row["round_num"] for row in rows}
    unstated = {r.round_num for r in state.releases if r.round_num < max(rounds, default=0)}
    problems += [f"round {n} is released and not stated" for n in sorted(unstated - rounds)]
    _refuse(problems)
    return f"{len(rows):,} stated rounds were charged and released, their ε is right"


def _diagnostics(run: _Folder) -> str | None:
    rows = run.stated.rows(DIAGNOSTICS)
    if rows is None:
        return None
    problems = _not_released(run, rows)
    if run.state.mode == "secure":
        problems.append("a secure run has no diagnostics")
    problems += [
        f"round {row['round_num']} does not say that ε does not cover it"
        for row in rows
        if row.get("covered_by_epsilon") is not False
    ]
    _refuse(problems)
    return f"{len(rows):,} rounds of diagnostics, not covered by ε, were released"


def _not_released(run: _Folder, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the rounds and attempts of lines."""
    state = run.state
    charged = {(charge.round_num, charge.attempt) for charge in state.charges}
    charged |= {(row.round_num, row.row) for row in state.rows}
    released = {(release.round_num, release.attempt) for release in state.releases}
    problems: list[str] = []
    seen: set[tuple[Any, Any]] = set()
    for row in rows:
        pair = (row["round_num"], row["attempt"])
        if any(type(number) is not int for number in pair):
            problems.append(f"round {pair[0]!r} attempt {pair[1]!r} are no whole numbers")
        elif pair in seen:
            problems.append(f"round {pair[0]} is stated twice")
        elif pair not in charged:
            problems.append(f"round {pair[0]} attempt {pair[1]} is stated, never charged")
        elif pair not in released:
            problems.append(f"round {pair[0]} attempt {pair[1]} is stated but not released")
        seen.add(pair)
    return problems


def _summary(run: _Folder) -> str | None:
    content = run.stated.content(SUMMARY)
    if content is None:
        return None
    stated = parse_object(content)
    if run.sealed.document is None:
        if SEAL not in run.state.extra:
            raise _Differs("summary.json is no file of a user-defined training loop")
        return None  # the check of experiment.json says what is wrong
    built = summary_values(run.state, run.document)
    _refuse([
        f"it states {name} {stated.get(name, 'nothing')!r:.80}, and the ledger gives {value!r:.80}"
        for name, value in built.items()
        if name not in stated or not _same(stated[name], value)
    ])  # fmt: skip
    return "summary.json states what the ledger gives"


def _checkpoints(run: _Folder) -> str | None:
    rounds = {str(entry.round_num) for entry in (*run.state.charges, *run.state.rows)}
    hashes = {record.hash for record in run.records}
    problems = []
    for name, metadata in run.stated.tensors.items():
        if isinstance(metadata, Exception):
            problems.append(f"{name} cannot be read: {metadata}")
            continue
        if metadata.get("ledger_head") not in hashes:
            problems.append(
                f"{name} was written with a ledger that had a line this one does not have: the "
                "ledger was cut, rolled back, edited or swapped"
            )
        if metadata.get("round_num") not in rounds:
            problems.append(f"{name} is of round {metadata.get('round_num')}, never charged")
    _refuse(problems)
    found = len(run.stated.tensors)
    return f"{found:,} checkpoints carry a line of this ledger" if found else None


def _digests(run: _Folder) -> str | None:
    pending = {f"{CHECKPOINTS}/round-{number:06d}.safetensors" for number in run.state.pending}
    unnamed = run.stated.tensors.keys() - run.released.keys() - pending - {STATE}
    _refuse([
        *(f"{name} is not what was released" for name in run.changed(run.released)),
        *(f"{name} was never released" for name in sorted(unnamed)),
    ])  # fmt: skip
    kept = run.current.keys() & run.released.keys()
    return f"{len(kept):,} checkpoints are what was released, byte for byte" if kept else None


def _files(run: _Folder) -> str | None:
    _refuse([
        *(f"{name} is not the file that the run wrote" for name in run.changed(run.digests)),
        *(f"{name} of the returned model is missing" for name in _OF_MODEL if name in run.gone),
    ])  # fmt: skip
    kept = run.current.keys() & run.digests.keys()
    return f"{len(kept):,} files are what the run wrote, byte for byte" if kept else None


def _start(run: _Folder) -> str | None:
    stated = as_object(run.document.get("start")).get("sha256")
    if stated is None:
        return None
    read_sealed_model(run.path / START_FILE, str(stated))
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


def _not_checked(run: _Folder) -> Iterator[str]:
    """Yield what no check shows of this folder."""
    yield "whether code and data were what the files say, and whether what was measured is true"
    if own := user_defined_of(run.state.plan, run.document):
        yield (
            f"whether what is no part of fedpriv ({_listed(own)}) does what the plan records of "
            "it: ε is of that record"
        )
    sealed, names = run.digests.keys(), set(run.stated.names)
    partly = names & {ROUNDS, DIAGNOSTICS, SUMMARY, STATE} - sealed
    if partly:
        yield (
            f"what the ledger does not decide in {_listed(partly)}, such as measured values, nor "
            "whether lines are missing at the end: the ledger has their digests at a run's end"
        )
    if AUDIT_FILE in names:
        yield f"in {AUDIT_FILE} what the canaries scored"
    names |= {name for name in run.stated.tensors if name != STATE}
    names -= {LEDGER, f"{CHECKPOINTS}/", AUDIT_FILE, *partly, *sealed, *run.released}
    if run.sealed.document is not None:
        start = as_object(run.document.get("start"))
        names -= {DOCUMENT, *([START_FILE] if "sha256" in start else [])}
    if names:
        yield f"{_listed(names)}: the ledger has no digest of it"
    if unread := {name for name, digest in run.current.items() if digest is None}:
        yield f"{_listed(unread)}: not readable by this user"
    if gone := run.gone - {*_OF_MODEL}:
        yield f"{_listed(gone)}: no longer in the folder"
    if pruned := [name for name in run.released if not (run.path / name).is_file()]:
        known = all(int(Path(name).stem.rpartition("-")[2]) % 10 for name in pruned)
        why = ", as a run prunes them on purpose but the newest and every tenth" if known else ""
        yield f"{len(pruned)} released checkpoints, the last {pruned[-1]}: not in the folder{why}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _same(stated: Any, built: Any) -> bool:
    """Compare a stated JSON value with a built one: real numbers to a millionth part."""
    if isinstance(built, Mapping):
        return (
            isinstance(stated, Mapping)
            and stated.keys() == built.keys()
            and all(_same(stated[name], built[name]) for name in built)
        )
    if isinstance(built, list | tuple):
        return (
            isinstance(stated, list)
            and len(stated) == len(built)
            and all(map(_same, stated, built))
        )
    if float in (type(stated), type(built)) and {type(stated), type(built)} <= {int, float}:
        return math.isclose(stated, built, rel_tol=1e-6)
    return type(stated) is type(built) and stated == built
