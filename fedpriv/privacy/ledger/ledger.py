"""The ledger of a run: every charge is on disk and synced before anything private is drawn.

A charge returns only when its line is on the disk; the cohort and the noise are drawn afterwards.
So a process killed at any moment leaves a ledger that counts every release, and beyond it at most
the charges since the last release: one attempt, or the several that a release is made of. Lines are
hash-chained (`fedpriv.privacy.ledger.chain`) and appended. One process writes at a time.

No line of a ledger with a charge is rewritten or removed. `create` restarts one without any, and
opening removes a last line without its newline: its write never returned, so the charge was never
acknowledged and nothing was drawn for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from fedpriv.mechanisms.event import Event
from fedpriv.privacy.epsilon import Epsilon
from fedpriv.privacy.ledger.chain import (
    ANCHORED,
    GENESIS,
    AnchoredFile,
    Chain,
    LedgerError,
    Record,
    decode,
    encode,
)
from fedpriv.privacy.ledger.state import (
    UPDATE,
    Charge,
    End,
    Entry,
    LedgerState,
    Release,
    Resume,
    Row,
    Seal,
    as_ranges,
    first_line,
    is_unspent,
)
from fedpriv.privacy.plan import AnyPlan

STARTED = "started"
"""Key of the first line's further facts: when the run was started."""
_Line = TypeVar("_Line", bound=Entry)


class Ledger:
    """The one writer of a run's ledger, in a file or in memory.

    Guarantees:
        * `charge` and `row` return after the line was written and synced; if they raise, nothing
          may be drawn, and after a failed write no later call succeeds.
        * The charges never exceed what the plan pays for.
        * An attempt of a query is charged at most once, and a row is used at most once.
    """

    def __init__(self, file: AnchoredFile | None, chain: Chain) -> None:
        """Take over a file; use `create`, `open` or `in_memory`."""
        self._file, self._closed, self._one_at_a_time = file, False, Lock()
        self._num_lines, self._head = len(chain.records), chain.head
        self._opened_with = frozenset(record.hash for record in chain.records)
        self._state = LedgerState.replay(chain.records) if chain.records else None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        plan: AnyPlan,
        *,
        mode: str,
        extra: Mapping[str, Any] | None = None,
        anchor: str | os.PathLike[str] | None = None,
    ) -> Ledger:
        """Start the ledger of a new run, in a folder that exists.

        Args:
            path: The file; one that holds a ledger without any charge is restarted.
            plan: The plan, frozen in the first line.
            mode: "simulation" or "secure", the mode of the run's keys.
            extra: Further public facts for the first line, as plain JSON.
            anchor: A file outside the folder where its lines are marked, for good; None for none.

        Returns:
            The ledger, its first line on disk, with a random run id so that no other run's
            ledger can stand in for it.

        Raises:
            LedgerError: If a ledger with charges, or something else, is there already, another
                process holds it, or the disk refuses.
        """
        facts = {**(extra or {}), **({ANCHORED: True} if anchor is not None else {})}
        if plan.trials is None:  # else it would tell when in a study its best trial was run
            facts[STARTED] = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        fields = first_line(plan, mode, facts)
        file = AnchoredFile(path, anchor, new=True)
        try:
            if not is_unspent(file.read()):
                raise LedgerError(
                    f"{path} already holds a ledger with charges; resume that "
                    "run, or choose another folder"
                )
            file.keep(0)
            ledger = cls(file, _NO_LINES)
            ledger._start(fields)
            file.sync_folder()
        except OSError as error:
            file.close()
            raise LedgerError(
                f"cannot start the ledger {path}: {error}; nothing was drawn"
            ) from error
        except BaseException:
            file.close()
            raise
        return ledger

    @classmethod
    def in_memory(cls, plan: AnyPlan, *, mode: str) -> Ledger:
        """Return a ledger in memory for a run that is not kept; the same rules apply.

        Args:
            plan: The plan.
            mode: "simulation" or "secure".
        """
        ledger = cls(None, _NO_LINES)
        ledger._start(first_line(plan, mode, None))
        return ledger

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, anchor: str | os.PathLike[str] | None = None
    ) -> Ledger:
        """Open the ledger of an interrupted run for writing, verifying its chain.

        Raises:
            LedgerError: If it is missing, damaged, without a first line, held by another
                process, or not as far as its anchor.
        """
        file = AnchoredFile(path, anchor)
        try:
            chain = decode(file.read())
            ledger = cls(file, chain)
            if ledger._state is None:
                raise ValueError(
                    "it holds no complete line, so nothing was ever charged; start the run again"
                )
            file.check(chain)
            file.keep(chain.num_bytes)
        except (OSError, ValueError) as error:
            file.close()
            raise LedgerError(f"cannot open the ledger {path}: {error}") from error
        except BaseException:
            file.close()
            raise
        return ledger

    def charge(
        self, round_num: int, attempt: int, event: Event | None = None, *, query: str = UPDATE
    ) -> Charge:
        """Spend one charge of the plan; draw the cohort and the noise only after this returns.

        Args:
            round_num: Round, from 1; in a fixed plan to its number of rounds.
            attempt: Its next attempt, `attempts(round_num, query) + 1`.
            event: What it does; None takes a fixed plan's own.
            query: What is asked, where a round asks several things.

        Raises:
            BudgetSpentError: If the plan does not pay for it. Nothing is written.
            LedgerError: If the numbers repeat or fall back, or the disk refuses.
        """
        event = self.plan.event if event is None else event
        if event is None:
            raise LedgerError("a charge of an adaptive plan says what it does; give its event")
        return self._append(Charge, round_num=round_num, attempt=attempt, event=event, query=query)

    def row(self, round_num: int) -> Row:
        """Use up the next row of correlated noise; draw it only after this returns.

        Args:
            round_num: The round it is for.

        Raises:
            BudgetSpentError: If the plan's rows are used up. Nothing is written.
            LedgerError: If the run was not charged, or the disk refuses.
        """
        return self._append(Row, row=self.rows + 1, round_num=round_num)

    def release(self, round_num: int, attempt: int, digest: str) -> Release:
        """Record that a result was released, and of which charges it is made.

        It is made of the charges since the release before, each query of each round in its last
        attempt; earlier attempts are lost.

        Args:
            round_num: Round of the last charge.
            attempt: Attempt of that charge.
            digest: SHA-256 of the round's checkpoint file, 64 hex digits; `fedpriv verify`
                compares the checkpoints that still exist.

        Raises:
            LedgerError: If it is not the attempt charged last, or was released before, or the disk
                refuses.
        """
        state = self.state
        first = len(state.charges) - len(state.unreleased) + 1
        last = {
            (charge.query, charge.round_num): number
            for number, charge in enumerate(state.unreleased, start=first)
            if charge.round_num <= round_num
        }
        return self._append(
            Release,
            round_num=round_num,
            attempt=attempt,
            digest=digest,
            charges=as_ranges(sorted(last.values())) or None,
        )

    def resume(self) -> None:
        """Record that the run continues after an interruption; lost attempts stay spent."""
        self._append(Resume)

    def end(self, reason: str) -> None:
        """Record that the run ended with budget left; nothing is charged afterwards.

        Args:
            reason: As `End.reason`.

        Raises:
            LedgerError: If it has ended before, or the disk refuses.
        """
        self._append(End, reason=reason)

    def seal(self, files: Mapping[str, str]) -> None:
        """Record the files of a run at its end; any further line voids it.

        Args:
            files: As `Seal.files`.

        Raises:
            LedgerError: If the disk refuses.
        """
        self._append(Seal, files=files)

    @property
    def path(self) -> Path | None:
        """The file; None in memory."""
        return None if self._file is None else self._file.path

    @property
    def plan(self) -> AnyPlan:
        """The plan of the first line."""
        return self.state.plan

    @property
    def mode(self) -> str:
        """The run's mode, "simulation" or "secure"."""
        return self.state.mode

    @property
    def extra(self) -> Mapping[str, Any]:
        """The further facts of the first line."""
        return self.state.extra

    @property
    def run_id(self) -> str:
        """The random id of the run, 32 hex digits."""
        return self.state.run_id

    @property
    def charges(self) -> int:
        """Number of charges."""
        return len(self.state.charges)

    @property
    def rows(self) -> int:
        """Number of rounds' correlated noises that are used up."""
        return len(self.state.rows)

    @property
    def state(self) -> LedgerState:
        """The state of the lines: charges, rows and releases, in order."""
        assert self._state is not None
        return self._state

    @property
    def lost(self) -> tuple[Charge, ...]:
        """Charges without a release; they are spent all the same."""
        return self.state.lost

    @property
    def head(self) -> str:
        """Hash of the last line, for checkpoints."""
        return self._head

    @property
    def last_attempt(self) -> int:
        """Attempt of a result computed now: that of the last charge, or the last row."""
        if self.rows:
            return self.rows
        charges = self.state.charges
        return charges[-1].attempt if charges else 1

    @property
    def pays_for_more(self) -> bool:
        """Whether the budget covers another round; an adaptive plan may still refuse its charge."""
        return self.state.pays_for_more

    def knows(self, head: str) -> bool:
        """Return whether a hash is one of this ledger's lines.

        A checkpoint whose head the ledger does not know is newer than the ledger, or another
        run's: refuse to resume from it. Hashes of lines since it was opened are read from its file.
        """
        if head in self._opened_with or self._file is None:
            return head in self._opened_with
        return any(record.hash == head for record in decode(self._file.read()).records)

    def attempts(self, round_num: int, query: str = UPDATE) -> int:
        """Return how many attempts of a round were charged; the next one is one more."""
        return self.state.attempts(round_num, query)

    def reached(self, round_num: int, attempt: int) -> bool:
        """Return whether this round and attempt was charged, so that a result of it may exist."""
        if self.state.rows:
            return any((row.round_num, row.row) == (round_num, attempt) for row in self.state.rows)
        return any(
            (charge.round_num, charge.attempt) == (round_num, attempt)
            for charge in self.state.charges
        )

    def release_of(self, round_num: int, attempt: int) -> Release | None:
        """Return the release of an attempt; None where it was not released."""
        wanted = round_num, attempt
        found = (one for one in self.state.releases if (one.round_num, one.attempt) == wanted)
        return next(found, None)

    def epsilon(self) -> Epsilon:
        """Return ε of all charges so far, lost attempts included."""
        return self.state.epsilon()

    def close(self) -> None:
        """Release the file and its lock; the ledger takes no further line."""
        self._closed = True
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, fields: Mapping[str, Any]) -> None:
        try:
            record, line = encode(0, GENESIS, "plan", fields)
            state = LedgerState(record)
        except (ValueError, TypeError) as error:
            raise LedgerError(str(error)) from error
        self._write(record, line)
        self._state = state

    def _append(self, kind: Callable[..., _Line], **fields: Any) -> _Line:
        """Check an entry against the lines so far, write its line and add it to them."""
        with self._one_at_a_time:
            where, broken = "", "it was closed" if self._closed else ""
            if self._file is not None:
                where, broken = f" {self._file.path}", self._file.broken
            if broken:
                raise LedgerError(f"the ledger{where} takes no further line: {broken}")
            try:
                entry = kind(**fields)
                self.state.admit(entry)
                name = type(entry).__name__.lower()
                record, line = encode(self._num_lines, self._head, name, entry.to_line())
            except LedgerError:
                raise
            except (ValueError, TypeError) as error:
                raise LedgerError(str(error)) from error
            self._write(record, line)
            self.state.add(entry)
            return entry

    def _write(self, record: Record, line: bytes) -> None:
        if self._file is not None:
            self._file.append(line)
        self._num_lines, self._head = self._num_lines + 1, record.hash


_NO_LINES = Chain(records=(), num_bytes=0, torn=0)
