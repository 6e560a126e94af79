"""The entries of a ledger, the state that they add up to, and which entry may follow which.

Writer and verifier apply the same rules, so that a ledger that could not have been written is
refused when it is read. An entry is first checked, then added: one that is refused changes nothing.
"""

from __future__ import annotations

import math
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from fedpriv.hashes import hex_digest
from fedpriv.mechanisms.event import Event
from fedpriv.parts import Part, PositiveInt
from fedpriv.privacy.epsilon import BudgetUse, Epsilon
from fedpriv.privacy.ledger.chain import LedgerError, Record, decode
from fedpriv.privacy.plan import AnyPlan, read_plan
from fedpriv.ranges import json_object, positive_int


class BudgetSpentError(LedgerError):
    """The budget covers no further charge: stop the run, keep what was released."""


UPDATE = "update"
"""The query of an ordinary round; its name is left out of a line."""
_UNREADABLE = (
    *(ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),  # of numbers and depths that nobody writes
)


def _event(name: str, value: Any) -> Event:
    if isinstance(value, Event):
        return value
    given = json_object(value)
    if given is None:
        raise ValueError(f"{value!r} is not an event; expected an object with a 'kind'")
    # A ledger repeats one event thousands of times: it is checked once.
    return _known_event(tuple(given.items()), tuple(map(type, given.values())))


@lru_cache(maxsize=256)
def _known_event(items: tuple[tuple[str, Any], ...], kinds: tuple[type, ...]) -> Event:
    return Event.from_json(dict(items))


def _query(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} {value!r} is not a name")
    return value


def _ranges(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    last, out = 0, list[tuple[int, int]]()
    for first, end in value:
        first, end = positive_int("charge", first), positive_int("charge", end)
        if not last < first <= end:
            raise ValueError(f"{name} {value!r} are not ascending ranges")
        out.append((first, end))
        last = end
    if not out:
        raise ValueError("a release of no charges is written without them")
    return tuple(out)


def _files(name: str, value: Any) -> Mapping[str, str]:
    found = json_object(value)
    if found is None:
        raise ValueError(f"{name} {value!r} are no digests by name")
    for file, digest in found.items():
        hex_digest(f"digest of {file!r}", digest)
        if Path(file).name != file:
            raise ValueError(f"{file!r} is not the name of a file in the run's folder")
    return dict(found)


class Entry(Part):
    """Base of what a line says; its fields are checked wherever the line comes from."""

    def to_line(self) -> dict[str, Any]:
        """Return the fields of its line; one that has its default is left out."""
        values = self.to_json()
        return {
            item.name: values[item.name]
            for item in fields(cast(Any, self))
            if getattr(self, item.name) != item.default
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge(Entry):
    """A charge: one spent attempt.

    Attributes:
        round_num: Round, from 1.
        attempt: Attempt of this query in this round, from 1.
        event: What it does.
        query: What was asked; a round may ask several things.
    """

    round_num: PositiveInt
    attempt: PositiveInt
    event: Annotated[Event, _event]
    query: Annotated[str, _query] = UPDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Entry):
    """One round's row of correlated noise, written before it is drawn; its run was charged before.

    Attributes:
        row: From 1, in order; a row is never used twice.
        round_num: The round that it is for.
    """

    row: PositiveInt
    round_num: PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Entry):
    """A released result, with the charges that it is made of.

    Attributes:
        round_num: Round, from 1.
        attempt: The attempt that got through.
        digest: SHA-256 of the round's checkpoint file, 64 hex digits.
        charges: The charges it is made of, as ranges of their numbers from 1, both ends
            included; None of a round whose noise was charged with an earlier one.
    """

    round_num: PositiveInt
    attempt: PositiveInt
    digest: Annotated[str, hex_digest]
    charges: Annotated[tuple[tuple[int, int], ...], _ranges] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Entry):
    """The run goes on after an interruption; lost attempts stay spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Entry):
    """The end of a run with budget left; nothing is charged afterwards.

    Attributes:
        reason: "refused" if what was left did not pay for the next answer, "finished" if the
            algorithm had nothing left to ask.
    """

    reason: Literal["refused", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(Entry):
    """The files of a run at its end; void once another line follows.

    Attributes:
        files: SHA-256 of each file, 64 hex digits, by its name in the run's folder.
    """

    files: Annotated[Mapping[str, str], _files]


_KINDS: dict[str, type[Entry]] = {
    kind.__name__.lower(): kind for kind in (Charge, Row, Release, Resume, End, Seal)
}
"""By the kinds of lines, what they say."""


def as_ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as ranges.

    >>> as_ranges([1, 2, 3, 7, 9, 10])
    ((1, 3), (7, 7), (9, 10))
    """
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


class LedgerState:
    """The state of a ledger after its lines so far. Only `add` changes it.

    Attributes:
        plan: The plan, from the first line.
        mode: "simulation" or "secure".
        run_id: Random id of the run.
        extra: Further public facts.
        num_resumes: How often the run was resumed.
        ended: How the run ended with something of its budget left; None if it did not, or not yet.
        sealed: Digests of files by name, where the last line is a seal; else empty.
    """

    def __init__(self, first: Record) -> None:
        """Start from the first line.

        Raises:
            ValueError: If it is not that of a ledger of this version.
        """
        fields = first.fields
        if first.kind != "plan" or fields.get("format") != "fedpriv-ledger":
            raise ValueError("the first line is not the plan of a fedpriv ledger")
        if fields.get("version") != 1:
            raise ValueError(
                f"ledger version {fields.get('version')!r} is not 1; use the fedpriv that wrote it"
            )
        self.plan: AnyPlan = read_plan(fields["plan"])
        self.mode = check_mode(fields["mode"])
        self.run_id = str(fields["run_id"])
        self.extra: Mapping[str, Any] = dict(fields["extra"])
        self.num_resumes = 0
        self.ended: End | None = None
        self.sealed: Mapping[str, str] = {}
        self._charges: list[Charge] = []
        self._rows: list[Row] = []
        self._releases: list[Release] = []
        self._charged_before: list[int] = []
        self._attempts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._spent: Counter[Event] = Counter()
        self._last_round = 0

    @classmethod
    def replay(cls, records: Iterable[Record]) -> LedgerState:
        """Return the state after these lines, in time linear in their number.

        Raises:
            ValueError: Naming the first line that could not have been written.
        """
        state: LedgerState | None = None
        for record in records:
            try:
                if state is None:
                    state = cls(record)
                else:
                    state.add(state.read(record))
            except _UNREADABLE as error:
                raise ValueError(f"line {record.seq + 1}: {error}") from error
        if state is None:
            raise ValueError("the ledger holds no complete line, so nothing was ever charged")
        return state

    @property
    def charges(self) -> Sequence[Charge]:
        """Every charge, in order."""
        return self._charges

    @property
    def rows(self) -> Sequence[Row]:
        """Every row of correlated noise, in order."""
        return self._rows

    @property
    def discarded(self) -> tuple[Row, ...]:
        """Rows of correlated noise that were discarded after a crash.

        By user that is a row without a release, as of a charge in `lost`; in centralised training,
        whose releases are of many steps, one that another follows for the same round or for an
        earlier one.
        """
        if self.plan.unit == "user":
            kept = {release.attempt for release in self._releases}
            return tuple(row for row in self._rows if row.row not in kept)
        found: list[Row] = []
        redone = math.inf
        for row in reversed(self._rows):
            if row.round_num >= redone:
                found.append(row)
            redone = min(redone, row.round_num)
        return tuple(reversed(found))

    @property
    def releases(self) -> Sequence[Release]:
        """Every release, in order."""
        return self._releases

    @property
    def charged_before(self) -> Sequence[int]:
        """Number of charges before each release, which its model is covered by."""
        return self._charged_before

    @property
    def spent(self) -> Counter[Event]:
        """Number of charges of each event."""
        return self._spent

    def read(self, record: Record) -> Entry:
        """Return the entry of a line, if it may follow; the state is not changed.

        Raises:
            ValueError: If it may not follow.
        """
        if record.kind not in _KINDS:
            raise ValueError(f"a line of kind {record.kind!r} is unknown")
        entry = _KINDS[record.kind](**record.fields)
        self.admit(entry)
        return entry

    def admit(self, entry: Entry) -> None:
        """Check that an entry may follow; the state is not changed.

        Raises:
            BudgetSpentError: A ValueError; if the plan does not pay for it.
            ValueError: If it may not follow.
        """
        if self.ended is not None and not isinstance(entry, Charge | Seal | Resume):
            raise ValueError(f"the run ended ({self.ended.reason}); nothing follows")
        match entry:
            case Charge():
                self._admit_charge(entry)
            case Row():
                self._admit_row(entry)
            case Release():
                self._admit_release(entry)
            case _:
                pass

    def add(self, entry: Entry) -> None:
        """Add an admitted entry to the state."""
        self.sealed = entry.files if isinstance(entry, Seal) else {}
        match entry:
            case Resume():
                self.num_resumes += 1
            case Charge():
                self._charges.append(entry)
                self._attempts[entry.query][entry.round_num] += 1
                self._spent[entry.event] += 1
                self._last_round = max(self._last_round, entry.round_num)
            case Row():
                self._rows.append(entry)
            case Release():
                self._releases.append(entry)
                self._charged_before.append(len(self._charges))
            case End():
                self.ended = entry
            case _:
                pass

    def _admit_charge(self, charge: Charge) -> None:
        refusal, planned = self.refusal(charge.event), self.plan.planned_rounds
        if refusal:
            raise BudgetSpentError(
                f"round {charge.round_num} is not started: {refusal}; a further round needs a new "
                "plan"
            )
        if planned is not None and charge.round_num > planned:
            raise ValueError(f"round {charge.round_num} is beyond the {planned} rounds of the plan")
        if self.plan.unit != "user" and charge.round_num > self._last_round + 1:
            raise ValueError(
                f"round {charge.round_num} is charged before round {self._last_round + 1}"
            )
        wanted = 1 + self.attempts(charge.round_num, charge.query)
        if charge.attempt != wanted:
            raise ValueError(
                f"attempt {charge.attempt} of round {charge.round_num} cannot be "
                f"charged; its next attempt is {wanted}"
            )

    def _admit_row(self, row: Row) -> None:
        planned = self.plan.planned_rounds
        if planned is None or not self.plan.charged_once:
            raise ValueError(f"row {row.row} is of a run that is charged round by round")
        if not self._charges:
            raise ValueError(f"row {row.row} is drawn before the run was charged")
        if row.row != len(self._rows) + 1:
            raise ValueError(f"row {row.row} cannot be used; the next row is {len(self._rows) + 1}")
        if row.row > planned:
            raise BudgetSpentError(
                f"round {row.round_num} is not started: all {planned} rows of noise are used up; a "
                "further round needs a new plan"
            )

    def _admit_release(self, release: Release) -> None:
        named = release.charges
        if named is not None and not (
            self._through < named[0][0] and named[-1][1] <= len(self._charges)
        ):
            raise ValueError(
                f"round {release.round_num} is released of charges that are not there, or that "
                "another release is made of"
            )
        if self._rows:
            row = self._rows[-1]
            if (release.round_num, release.attempt) != (row.round_num, row.row):
                raise ValueError(f"round {release.round_num} is released without a row of its own")
            if self._releases and self._releases[-1].round_num == release.round_num:
                raise ValueError(f"round {release.round_num} is released twice")
            return
        if not self._charges:
            raise ValueError(f"round {release.round_num} is released before it was charged")
        last = self._charges[-1]
        if (release.round_num, release.attempt) != (last.round_num, last.attempt):
            raise ValueError(
                f"round {release.round_num} attempt {release.attempt} is released but "
                "is not what was charged last; charge it first"
            )
        if self._through == len(self._charges):
            raise ValueError(
                f"round {release.round_num} attempt {release.attempt} is released twice"
            )

    def refusal(self, event: Event) -> str:
        """Return why a charge is refused, or "" if it fits the budget."""
        refused = self.plan.refusal(self._spent, event)
        return refused or ("" if self.ended is None else f"the run ended ({self.ended.reason})")

    @property
    def pays_for_more(self) -> bool:
        """Whether the budget covers another round; an adaptive plan may still refuse its charge."""
        return self.ended is None and self.plan.pays_for_more(self._spent, len(self._rows))

    @property
    def used(self) -> BudgetUse:
        """Share of the budget that is spent."""
        return self.plan.used(self._spent, len(self._rows))

    def attempts(self, round_num: int, query: str = UPDATE) -> int:
        """Return how many attempts of a query were charged in a round."""
        return self._attempts[query][round_num] if query in self._attempts else 0

    def knows_query(self, query: str) -> bool:
        """Return whether a query was ever charged."""
        return query in self._attempts

    @property
    def _through(self) -> int:
        """Charges up to it are in a release, or lost for good."""
        return self._charged_before[-1] if self._charged_before else 0

    @property
    def unreleased(self) -> Sequence[Charge]:
        """Charges since the last release."""
        return self._charges[self._through :]

    @property
    def lost(self) -> tuple[Charge, ...]:
        """Charges that no release is made of; they are spent all the same."""
        kept: set[int] = set()
        for release in self._releases:
            for first, end in release.charges or ():
                kept.update(range(first, end + 1))
        numbered = enumerate(self._charges, start=1)
        return tuple(charge for number, charge in numbered if number not in kept)

    @property
    def pending(self) -> Collection[int]:
        """Rounds that were charged since the last release, whose results may be on disk."""
        last = self._releases[-1].attempt if self._releases else None
        rows = [row for row in self._rows[-1:] if row.row != last]
        return {entry.round_num for entry in (*self.unreleased, *rows)}

    @property
    def rounds_done(self) -> int:
        """Number of rounds that the released models have seen."""
        if self.plan.unit != "user":
            return self._releases[-1].round_num if self._releases else 0
        return len({release.round_num for release in self._releases})

    def epsilon(self) -> Epsilon:
        """Return ε of all charges, from their recorded events."""
        return self.plan.epsilon_of(self._spent)


def check_mode(mode: Any) -> str:
    """Return the mode of keys, checked.

    Raises:
        ValueError: If it is neither "simulation" nor "secure".
    """
    if mode not in ("simulation", "secure"):
        raise ValueError(f"mode {mode!r} is unknown; give 'simulation' or 'secure'")
    return mode


def first_line(plan: AnyPlan, mode: str, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a new ledger's first line, with a random run id.

    Raises:
        ValueError: If the mode is unknown.
    """
    return {
        "format": "fedpriv-ledger",
        "version": 1,
        "run_id": secrets.token_hex(16),
        "plan": plan.to_json(),
        "mode": check_mode(mode),
        "extra": dict(extra or {}),
    }


def read_ledger(path: str | os.PathLike[str]) -> tuple[tuple[Record, ...], LedgerState, int]:
    """Read a ledger without locking or changing it, a running run's too.

    Returns:
        The records, their state, and how many bytes of a torn last line were skipped.

    Raises:
        LedgerError: If it is missing or damaged.
    """
    try:
        chain = decode(Path(path).read_bytes())
        return chain.records, LedgerState.replay(chain.records), chain.torn
    except (OSError, ValueError) as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error


def is_unspent(data: bytes) -> bool:
    """Return whether a file holds nothing, or a ledger that was started but never charged."""
    try:
        records = decode(data).records
        return not records or not LedgerState.replay(records).charges
    except ValueError:
        return False
