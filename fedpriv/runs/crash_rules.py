"""What becomes of an attempt that was charged, and whose answer a crash cut off.

=========  ============================  ========================  =================================
rule       is charged                    draws from                after a crash
=========  ============================  ========================  =================================
`Retry`    every attempt                 a key of the attempt      a new cohort and new noise
`Discard`  once, with the first row      a kept key, row by row    the row is passed over; its users
                                                                   have taken part
`Replay`   every release                 a kept key                the identical answer again
=========  ============================  ========================  =================================

Which of them holds is said by the privatizer (`fedpriv.mechanisms.privatizer.AfterCrash`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.privatizer import AfterCrash, Draw
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.state import UPDATE
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.rng import Key
from fedpriv.runs.secret_state import REPLAY, STREAM, SecretState
from fedpriv.sums import PartialSum
from fedpriv.tree import Params

_ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """An attempt that was charged: nothing else may be drawn under its numbers.

    Attributes:
        round_num: Its round, from 1.
        number: Of the attempt, or of the row of noise.
        keys: The root of its keys.
        again: Whether it is a release that a crash cut off.
    """

    round_num: int
    number: int
    keys: Key
    again: bool = False

    def key(self, stream: str, name: str) -> Key:
        """Return the key of a stream."""
        key = self.keys.fold(stream)
        if name != UPDATE:
            key = key.fold(name)
        return key.fold(self.round_num).fold(self.number)


class Retry:
    """Independent noise: a lost attempt stays spent, and the next has nothing in common with it.

    Args:
        ledger: Where it is charged.
        secrets: The run's secret state.
        noise: The root key of all private draws.
    """

    def __init__(self, ledger: Ledger, secrets: SecretState, noise: Key) -> None:
        self._ledger, self._secrets, self._noise = ledger, secrets, noise

    def prepare(self, name: str, *, fresh: bool, renew: bool) -> None:
        """Have secret state on the disk before the first charge that needs it; here none.

        Args:
            name: Of the question.
            fresh: Whether this question was never charged.
            renew: Whether the run has drawn nothing at all.

        Raises:
            ValueError: If it is gone: noise would go on with another key; or if nothing pays for
                the question.
        """

    def charge(self, round_num: int, name: str, mechanism: Mechanism) -> Charged:
        """Spend what an answer costs, and return the numbers under which it is drawn."""
        number = self._ledger.attempts(round_num, name) + 1
        self._ledger.charge(round_num, number, mechanism.event, query=name)
        return Charged(round_num=round_num, number=number, keys=self._noise)

    def draw(self, mechanism: Mechanism, template: Params, charged: Charged, name: str) -> Draw:
        """Return what is added to the coming sum; nothing of it depends on the sum."""
        # Once a charge: a release that is replayed is drawn again, on a sum checked to be the same.
        return mechanism.draw(template, charged.key("noise", name), once=False)

    def check_sum(self, name: str, charged: Charged, total: PartialSum) -> None:
        """Refuse a sum that the draw must not meet; here none.

        Raises:
            ValueError: If it is one.
        """


class Discard(Retry):
    """Noise that is correlated over rounds: one charge pays for all rows, and none meets two sums.

    A row is made again from a key and its number, so an older ledger that is put back would have it
    meet a second sum, and the difference of the two answers is bare. Older secret state would
    forget who took part. So both count, and each knows what the other must have reached: the
    ledger's row is on the disk before the secret state's, which is there before anything is drawn,
    so the latter is one behind at most, and never behind a row that was released.
    """

    def __init__(self, ledger: Ledger, secrets: SecretState, noise: Key) -> None:
        super().__init__(ledger, secrets, noise)
        self._rows: Iterator[Draw] | None = None
        self._rows_drawn = 0

    def prepare(self, name: str, *, fresh: bool, renew: bool) -> None:
        """Make the key of the rows, and write down that none was drawn.

        Raises:
            ValueError: If the run was charged for another question, or the key is gone.
        """
        charges = self._ledger.state.charges
        if charges and charges[0].query != name:
            raise ValueError(
                f"query {name!r}: the whole run was charged for {charges[0].query!r}, and no "
                "other question is paid for; ask by that name"
            )
        self._secrets.key(STREAM, fresh=fresh, renew=renew)
        if renew:
            self._remember(0)

    def charge(self, round_num: int, name: str, mechanism: Mechanism) -> Charged:
        """Charge the whole run with its first row, and use up the next row.

        Raises:
            ValueError: If the ledger has fewer rows than were drawn, or secret state is more than
                one row behind it.
            BudgetSpentError: As of `Ledger.row`.
            LedgerError: As of `Ledger.row`.
        """
        if not self._ledger.charges:
            self._ledger.charge(round_num, 1, mechanism.event, query=name)
        return Charged(round_num=round_num, number=self._next_row(round_num), keys=self._noise)

    def _next_row(self, round_num: int) -> int:
        known, used = self._secrets.recall(_ROWS), self._ledger.rows
        drawn = 0 if known is None else int(known["row"][0])
        if drawn > used:
            raise ValueError(
                f"the ledger has {used:,} rows of noise and {drawn:,} were drawn: it is older than "
                "the run, and a row would meet a second sum; restore the newest ledger, or start a "
                "new run"
            )
        releases = self._ledger.state.releases
        if drawn < used - 1 or (releases and releases[-1].attempt > drawn):
            raise ValueError(
                f"the folder's secret/ knows of {drawn:,} rows of noise and the ledger has "
                f"{used:,}: it is older than the run, and forgets who took part since "
                "(participation is limited); restore the newest secret/, or start a new run"
            )
        if drawn < used:
            # Or a second interruption at the same place would look like old state.
            self._remember(used)
        row = self._ledger.row(round_num).row
        self._remember(row)
        return row

    def _remember(self, row: int) -> None:
        self._secrets.remember(_ROWS, {"row": np.array([row], np.int64)})

    def draw(self, mechanism: Mechanism, template: Params, charged: Charged, name: str) -> Draw:
        """Return the row; after a restart those before it are made again and passed over."""
        if self._rows is None:
            self._rows = mechanism.draws(template, self._secrets.key(STREAM))
        passed_over, self._rows_drawn = charged.number - self._rows_drawn - 1, charged.number
        return next(islice(self._rows, passed_over, None))


class Replay(Retry):
    """A release that is made again, bit for bit, under the charge that there is."""

    def prepare(self, name: str, *, fresh: bool, renew: bool) -> None:
        """Make the key that the release is made again from."""
        self._secrets.key(REPLAY, fresh=fresh, renew=renew)

    def charge(self, round_num: int, name: str, mechanism: Mechanism) -> Charged:
        """Charge a release, or take the charge of the one that was cut off.

        Raises:
            ValueError: If what was charged before the crash was something else.
        """
        open_ = [
            charge
            for charge in self._ledger.state.unreleased
            if (charge.round_num, charge.query) == (round_num, name)
        ]
        if open_ and open_[-1].event != mechanism.event:
            raise ValueError(
                f"round {round_num}: {name!r} was charged for {open_[-1].event} before the "
                f"crash and now asks for {mechanism.event}; what is replayed is the same"
            )
        if not open_:
            self._remember(name, round_num, b"")
            super().charge(round_num, name, mechanism)
        return Charged(
            round_num=round_num,
            number=self._ledger.attempts(round_num, name),
            keys=self._secrets.key(REPLAY),
            again=bool(open_),
        )

    def check_sum(self, name: str, charged: Charged, total: PartialSum) -> None:
        """Refuse another sum than before the crash: the difference of the answers would be bare.

        Raises:
            ValueError: If it is another, or what is known of the sum before is gone.
        """
        digest, before = _digest(total), self._secrets.recall(f"{REPLAY}-{name}")
        if before is None or int(before["round"][0]) != charged.round_num:
            raise ValueError(
                f"round {charged.round_num}: the secret record of the sum of {name!r} is gone: "
                "restore the folder's secret/, or start a new run"
            )
        if charged.again and before["sha256"].tobytes() not in (b"", digest):
            raise ValueError(
                f"round {charged.round_num}: {name!r} was cut off by a crash, and its sum is not "
                "the same any more (other params, users or data); nothing is released: start a new "
                "run"
            )
        self._remember(name, charged.round_num, digest)

    def _remember(self, name: str, round_num: int, digest: bytes) -> None:
        """Write down the digest of a sum; empty before it is made."""
        kept = {"round": np.array([round_num]), "sha256": np.frombuffer(digest, np.uint8)}
        self._secrets.remember(f"{REPLAY}-{name}", kept)


RULES: Mapping[AfterCrash, type[Retry]] = {
    "retry": Retry,
    "discard": Discard,
    "replay": Replay,
}


def _digest(total: PartialSum) -> bytes:
    """Return a digest of a raw sum; secret like the sum."""
    found = sha256()
    for name, array in sorted(tree.to_dense(total.total).items()):
        found.update(f"{name} {array.dtype} {array.shape} {total.granularity}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()
