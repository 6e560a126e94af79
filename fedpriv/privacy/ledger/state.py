"""What the lines of a ledger add up to, and which line may follow which.

Writer and verifier replay through the same rules, so a ledger that could not have been written is
refused when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from fedpriv.privacy.accounting import Epsilon, epsilon_of
from fedpriv.privacy.event import Event
from fedpriv.privacy.ledger.chain import Record
from fedpriv.privacy.plan import Plan
from fedpriv.ranges import positive_int


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One spent attempt.

    Attributes:
        round_num: Round, from 1.
        attempt: Attempt of the round, from 1.
        event: What it does; None for a plan without noise.
    """

    round_num: int
    attempt: int
    event: Event | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "round_num", positive_int("round_num", self.round_num))
        object.__setattr__(self, "attempt", positive_int("attempt", self.attempt))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the charge's line."""
        return {
            "round_num": self.round_num,
            "attempt": self.attempt,
            "event": None if self.event is None else self.event.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One released result.

    Attributes:
        round_num: Round, from 1.
        attempt: The attempt that got through.
        digest: SHA-256 of the round's checkpoint file, 64 hex digits.
    """

    round_num: int
    attempt: int
    digest: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "round_num", positive_int("round_num", self.round_num))
        object.__setattr__(self, "attempt", positive_int("attempt", self.attempt))
        hex_digest(self.digest)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the release's line."""
        return {"round_num": self.round_num, "attempt": self.attempt, "digest": self.digest}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """The state of a ledger after its lines so far.

    Attributes:
        plan: The promise.
        mode: "simulation" or "secure".
        run_id: Random id of the run.
        extra: Further public facts.
        charges: Every charge in order.
        releases: Every release in order.
        attempts: Attempts charged so far, by round.
        num_resumes: How often the run was resumed.
    """

    plan: Plan
    mode: str
    run_id: str
    extra: Mapping[str, Any]
    charges: tuple[Charge, ...] = ()
    releases: tuple[Release, ...] = ()
    attempts: Mapping[int, int] = field(default_factory=dict)
    num_resumes: int = 0

    @classmethod
    def replay(cls, records: Iterable[Record]) -> LedgerState:
        """Return what the lines add up to.

        Raises:
            ValueError: Naming the first line that could not have been written.
        """
        state: LedgerState | None = None
        for record in records:
            try:
                state = cls._start(record) if state is None else state.then(record)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"line {record.seq + 1}: {error}") from error
        if state is None:
            raise ValueError("the ledger holds no complete line, so nothing was ever charged")
        return state

    @classmethod
    def _start(cls, record: Record) -> LedgerState:
        fields = record.fields
        if record.kind != "plan" or fields.get("format") != "fedpriv-ledger":
            raise ValueError("the first line is not the plan of a fedpriv ledger")
        if fields.get("version") != 1:
            raise ValueError(
                f"ledger version {fields.get('version')!r} is not 1; use the fedpriv that wrote it"
            )
        return cls(
            plan=Plan.from_json(fields["plan"]),
            mode=mode_name(fields["mode"]),
            run_id=str(fields["run_id"]),
            extra=dict(fields["extra"]),
        )

    def then(self, record: Record) -> LedgerState:
        """Return the state with one more line.

        Raises:
            ValueError: If that line may not follow.
        """
        fields = dict(record.fields)
        if record.kind == "resume":
            return replace(self, num_resumes=self.num_resumes + 1)
        if record.kind == "charge":
            event = fields.pop("event")
            charge = Charge(**fields, event=None if event is None else Event.from_json(event))
            return self._charged(charge)
        if record.kind == "release":
            return self._released(Release(**fields))
        raise ValueError(f"a line of kind {record.kind!r} is unknown")

    def _charged(self, charge: Charge) -> LedgerState:
        if charge.event != self.plan.event:
            raise ValueError(
                f"round {charge.round_num} was charged for {charge.event}, the plan "
                f"says {self.plan.event}"
            )
        if len(self.charges) >= self.plan.num_rounds:
            raise ValueError(
                f"round {charge.round_num} goes beyond the {self.plan.num_rounds} "
                "charges of the plan"
            )
        if charge.round_num > self.plan.num_rounds:
            raise ValueError(
                f"round {charge.round_num} is beyond the {self.plan.num_rounds} rounds of the plan"
            )
        if self.plan.unit == "example" and charge.round_num > len(self.attempts) + 1:
            raise ValueError(
                f"round {charge.round_num} is charged before round {len(self.attempts) + 1}"
            )
        wanted = 1 + self.attempts.get(charge.round_num, 0)
        if charge.attempt != wanted:
            raise ValueError(
                f"attempt {charge.attempt} of round {charge.round_num} cannot be "
                f"charged; its next attempt is {wanted}"
            )
        return replace(
            self,
            charges=(*self.charges, charge),
            attempts={**self.attempts, charge.round_num: charge.attempt},
        )

    def _released(self, release: Release) -> LedgerState:
        pair = (release.round_num, release.attempt)
        if not self.charges or pair != (self.charges[-1].round_num, self.charges[-1].attempt):
            raise ValueError(
                f"round {release.round_num} attempt {release.attempt} is released but "
                "is not what was charged last; charge it first"
            )
        if self.releases and pair == (self.releases[-1].round_num, self.releases[-1].attempt):
            raise ValueError(
                f"round {release.round_num} attempt {release.attempt} is released twice"
            )
        return replace(self, releases=(*self.releases, release))

    @property
    def lost(self) -> tuple[Charge, ...]:
        """Charges without a release, and in centralised training without a part in one.

        There a release stands for all steps since the one before: their last attempts.
        """
        released = {(release.round_num, release.attempt) for release in self.releases}
        through = self._on_the_way(released) if self.plan.unit == "example" else released
        return tuple(
            charge for charge in self.charges if (charge.round_num, charge.attempt) not in through
        )

    def _on_the_way(self, released: Set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the charges that a released model was made of."""
        through: set[tuple[int, int]] = set()
        since: dict[int, int] = {}
        for charge in self.charges:
            since[charge.round_num] = charge.attempt
            if (charge.round_num, charge.attempt) in released:
                through |= {pair for pair in since.items() if pair[0] <= charge.round_num}
                since = {}
        return through

    @property
    def rounds_done(self) -> int:
        """How many rounds the released models have seen."""
        if self.plan.unit == "example":
            return self.releases[-1].round_num if self.releases else 0
        return len({release.round_num for release in self.releases})

    def epsilon(self) -> Epsilon:
        """Return ε of every charge, accounted from run-length groups of the events written down."""
        if not self.plan.is_private:
            return self.plan.epsilon(len(self.charges))
        assert self.plan.delta is not None
        groups = [
            (event, sum(1 for _ in same))
            for event, same in groupby(charge.event for charge in self.charges)
            if event is not None
        ]
        if not groups:
            return self.plan.epsilon(0)
        spent = epsilon_of(
            groups,
            delta=self.plan.delta,
            relation=self.plan.relation,
            num_rounds=self.plan.num_rounds,
        )
        return replace(spent, unit=self.plan.unit)


def mode_name(mode: Any) -> str:
    """Return a mode of keys, checked.

    Raises:
        ValueError: If it is neither "simulation" nor "secure".
    """
    if mode not in ("simulation", "secure"):
        raise ValueError(f"mode {mode!r} is unknown; give 'simulation' or 'secure'")
    return mode


def hex_digest(digest: Any) -> str:
    """Return a SHA-256 in hex, checked.

    Raises:
        ValueError: If it is not 64 lowercase hex digits.
    """
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"digest {digest!r} is not 64 hex digits; give a SHA-256")
    return digest
