"""The ledger of a run: charged on disk, and synced, before anything private is drawn.

A charge returns only when its line is on the disk; the cohort and the noise are drawn afterwards.
So a process killed at any moment leaves a ledger that counts every release, and at most one
attempt too many. Lines are hash-chained (`fedpriv.privacy.ledger.chain`), appended, never
rewritten. One process writes at a time.

The one thing opening may remove is a last line without its newline: its write never returned, so
the charge was never acknowledged and nothing was drawn for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fedpriv.privacy.accounting import Epsilon, rounded_up
from fedpriv.privacy.ledger.chain import GENESIS, Chain, Record, decode, encode
from fedpriv.privacy.ledger.state import Charge, LedgerState, Release, mode_name
from fedpriv.privacy.plan import Plan


class LedgerError(ValueError):
    """The ledger refuses: it is damaged, held by another process, or cannot be written."""


class BudgetSpentError(LedgerError):
    """The plan pays for no further charge; stop the run, keep what was released."""


class Ledger:
    """The one writer of a run's ledger.

    Guarantees:
        * `charge` returns after the line was written and synced; if it raises, nothing may be
          drawn, and after a failed write no later call succeeds.
        * The charges never exceed the plan's rounds, nor its target ε.
        * A (round, attempt) is charged at most once.
    """

    def __init__(self, path: Path, descriptor: int, chain: Chain) -> None:
        """Take over a locked file; use `create` or `open`."""
        self._path, self._fd, self._size = path, descriptor, chain.num_bytes
        self._records = list(chain.records)
        self._hashes = {record.hash for record in chain.records}
        self._state = LedgerState.replay(chain.records) if chain.records else None
        self._broken = ""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        plan: Plan,
        *,
        mode: str,
        extra: Mapping[str, Any] | None = None,
    ) -> Ledger:
        """Start the ledger of a new run, in a folder that exists.

        Args:
            path: The file; one that holds a ledger without any charge is started anew.
            plan: The promise, frozen in the first line.
            mode: "simulation" or "secure", the mode of the run's keys.
            extra: Further public facts for the first line, as plain JSON.

        Returns:
            The ledger, its first line on disk, with a random run id so that no other run's
            ledger can stand in for it.

        Raises:
            LedgerError: If a ledger with charges, or something else, is there already, another
                process holds it, or the disk refuses.
        """
        fields = {
            "format": "fedpriv-ledger",
            "version": 1,
            "run_id": secrets.token_hex(16),
            "plan": plan.to_json(),
            "mode": mode_name(mode),
            "extra": dict(extra or {}),
        }
        target = Path(path)
        descriptor = _lock(target, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            if not _is_unspent(_read(descriptor)):
                raise LedgerError(
                    f"{target} already holds a ledger with charges; resume that "
                    "run, or choose another folder"
                )
            os.ftruncate(descriptor, 0)
            ledger = cls(target, descriptor, Chain(records=(), num_bytes=0, torn=0))
            ledger._append("plan", fields)
            _sync_folder(target.parent)
        except OSError as error:
            os.close(descriptor)
            raise LedgerError(
                f"cannot start the ledger {target}: {error}; nothing was drawn"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        return ledger

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open the ledger of an interrupted run for writing, verifying its chain.

        Raises:
            LedgerError: If it is missing, damaged, without a first line, or held by another
                process.
        """
        target = Path(path)
        descriptor = _lock(target, os.O_RDWR | os.O_APPEND)
        try:
            chain = decode(_read(descriptor))
            ledger = cls(target, descriptor, chain)
            if ledger._state is None:
                raise ValueError(
                    "it holds no complete line, so nothing was ever charged; start the run anew"
                )
            if chain.torn:
                os.ftruncate(descriptor, chain.num_bytes)
            os.fsync(descriptor)
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise LedgerError(f"cannot open the ledger {target}: {error}") from error
        except BaseException:
            os.close(descriptor)
            raise
        return ledger

    def charge(self, round_num: int, attempt: int) -> Charge:
        """Spend one charge of the plan; draw the cohort and the noise only after this returns.

        Args:
            round_num: Round, from 1 to the plan's number of rounds.
            attempt: Its next attempt, `attempts(round_num) + 1`.

        Raises:
            BudgetSpentError: If the plan's rounds or its target ε are spent. Nothing is written.
            LedgerError: If the numbers repeat or fall back, or the disk refuses.
        """
        state = self._live()
        plan = state.plan
        if not plan.affords(len(state.charges)):
            spent = len(state.charges)
            why = f"all {plan.num_rounds} charges are spent"
            if spent < plan.num_rounds:
                after = rounded_up(plan.epsilon(spent + 1).value, 4)
                why = (
                    f"charge {spent + 1} would take ε to {after:.4f}, above the target "
                    f"{plan.target_epsilon:g}"
                )
            raise BudgetSpentError(
                f"round {round_num} is not started: {why}; a further round needs a new plan"
            )
        event = None if plan.event is None else plan.event.to_json()
        self._append("charge", {"round_num": round_num, "attempt": attempt, "event": event})
        return self._past().charges[-1]

    def release(self, round_num: int, attempt: int, digest: str) -> Release:
        """Record that the result of the attempt charged last was released.

        Args:
            round_num: Round of the charge.
            attempt: Attempt of the charge.
            digest: SHA-256 of the round's checkpoint file, 64 hex digits; `fedpriv verify`
                compares the checkpoints that still exist.

        Raises:
            LedgerError: If it is not the attempt charged last, or was released before, or the disk
                refuses.
        """
        self._live()
        fields = {"round_num": round_num, "attempt": attempt, "digest": digest}
        self._append("release", fields)
        return self._past().releases[-1]

    def resume(self) -> None:
        """Record that the run continues after an interruption; lost attempts stay spent."""
        self._live()
        self._append("resume", {})

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def plan(self) -> Plan:
        """The plan of the first line."""
        return self._past().plan

    @property
    def mode(self) -> str:
        """The run's mode, "simulation" or "secure"."""
        return self._past().mode

    @property
    def extra(self) -> Mapping[str, Any]:
        """The further facts of the first line."""
        return self._past().extra

    @property
    def run_id(self) -> str:
        """The random id of the run, 32 hex digits."""
        return self._past().run_id

    @property
    def charges(self) -> int:
        """How many charges are spent."""
        return len(self._past().charges)

    @property
    def state(self) -> LedgerState:
        """Every charge and every release, in order."""
        return self._past()

    @property
    def lost(self) -> tuple[Charge, ...]:
        """Charges without a release: spent, whatever became of them."""
        return self._past().lost

    @property
    def head(self) -> str:
        """Hash of the last line, for checkpoints."""
        return self._records[-1].hash

    def knows(self, head: str) -> bool:
        """Return whether a hash is one of this ledger's lines.

        A checkpoint whose head the ledger does not know is newer than the ledger, or another
        run's: refuse to resume from it.
        """
        return head in self._hashes

    def attempts(self, round_num: int) -> int:
        """Return how many attempts of a round were charged; the next one is one more."""
        return self._past().attempts.get(round_num, 0)

    def has_charge(self, round_num: int, attempt: int) -> bool:
        """Return whether an attempt was charged."""
        return 1 <= attempt <= self.attempts(round_num)

    def has_release(self, round_num: int, attempt: int) -> bool:
        """Return whether an attempt was released."""
        return any(
            (release.round_num, release.attempt) == (round_num, attempt)
            for release in self._past().releases
        )

    def epsilon(self) -> Epsilon:
        """Return ε of everything charged so far, lost attempts included, from the lines."""
        return self._past().epsilon()

    def close(self) -> None:
        """Release the file and its lock; the ledger takes no further line."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._broken = self._broken or "it was closed"

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _past(self) -> LedgerState:
        assert self._state is not None
        return self._state

    def _live(self) -> LedgerState:
        if self._broken:
            raise LedgerError(f"the ledger {self._path} takes no further line: {self._broken}")
        return self._past()

    def _append(self, kind: str, fields: Mapping[str, Any]) -> None:
        previous = self._records[-1].hash if self._records else GENESIS
        try:
            record, line = encode(len(self._records), previous, kind, fields)
            state = (
                LedgerState.replay((record,)) if self._state is None else self._state.then(record)
            )
        except (ValueError, TypeError) as error:
            raise LedgerError(str(error)) from error
        self._write(line)
        self._records.append(record)
        self._hashes.add(record.hash)
        self._state = state

    def _write(self, line: bytes) -> None:
        """Append a line and sync it, or break this object for good."""
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
            os.fsync(self._fd)
        except BaseException as error:
            self._broken = f"a write failed ({error or type(error).__name__})"
            if written < len(line):
                # Half a line would be cut off at the next opening anyway; try to leave none.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._size)
            if not isinstance(error, OSError):
                raise
            raise LedgerError(
                f"cannot write the ledger {self._path}: {error}. Nothing was drawn for this line; "
                "make room or make the disk writable, then resume the run"
            ) from error
        self._size += len(line)


def read_ledger(path: str | os.PathLike[str]) -> tuple[tuple[Record, ...], LedgerState, int]:
    """Read a ledger without locking or changing it, a running run's too.

    Returns:
        The records, what they add up to, and how many bytes of a torn last line were skipped.

    Raises:
        LedgerError: If it is missing or damaged.
    """
    try:
        chain = decode(Path(path).read_bytes())
        return chain.records, LedgerState.replay(chain.records), chain.torn
    except (OSError, ValueError) as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error


def _lock(path: Path, flags: int) -> int:
    """Open a file and take its lock, which dies with the process that holds it."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LedgerError(f"cannot open the ledger {path}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise LedgerError(
                f"the ledger {path} is in use by another process; wait for that run "
                "to end, or stop it"
            ) from None
        raise LedgerError(f"cannot lock the ledger {path}: {error}") from error
    return descriptor


def _read(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()


def _is_unspent(data: bytes) -> bool:
    """Return whether a file holds nothing, or a ledger that was started but never charged."""
    try:
        records = decode(data).records
        return not records or not LedgerState.replay(records).charges
    except ValueError:
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
