"""The lines of a ledger as values: a charge, a row of a stream, a release, the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedpriv.privacy.event import NONPRIVATE, Event
from fedpriv.ranges import positive_int

UPDATE = "update"
"""The query of an ordinary round; its name is left out of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One spent attempt.

    Attributes:
        round_num: Round, from 1.
        attempt: Attempt of this query in this round, from 1.
        event: What it does.
        query: What was asked; a round may ask several things.
    """

    round_num: int
    attempt: int
    event: Event
    query: str = UPDATE

    def __post_init__(self) -> None:
        _set_positive_ints(self, "round_num", "attempt")
        if not isinstance(self.query, str) or not self.query:
            raise ValueError(f"query {self.query!r} is not a name")

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the charge's line."""
        named = {} if self.query == UPDATE else {"query": self.query}
        return {
            "round_num": self.round_num,
            "attempt": self.attempt,
            "event": self.event.to_json(),
            **named,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Charge:
        """Return the charge of a line.

        Raises:
            ValueError: If a field is missing, unknown or out of range.
        """
        return cls(**{**fields, "event": _event(fields["event"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of noise with memory, written down before it is drawn; its run was charged before.

    Attributes:
        row: From 1, in order; a row is never used twice.
        round_num: The round that it is for.
    """

    row: int
    round_num: int

    def __post_init__(self) -> None:
        _set_positive_ints(self, "row", "round_num")

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the row's line."""
        return {"row": self.row, "round_num": self.round_num}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One released result.

    Attributes:
        round_num: Round, from 1.
        attempt: The attempt that got through.
        digest: SHA-256 of the round's checkpoint file, 64 hex digits.
        charges: The charges it is made of, as ranges of their numbers from 1, both ends
            included; None in ledgers that do not name them.
    """

    round_num: int
    attempt: int
    digest: str
    charges: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        _set_positive_ints(self, "round_num", "attempt")
        hex_digest(self.digest)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the release's line."""
        fields: dict[str, Any] = {
            "round_num": self.round_num,
            "attempt": self.attempt,
            "digest": self.digest,
        }
        if self.charges is not None:
            fields["charges"] = [list(pair) for pair in self.charges]
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Release:
        """Return the release of a line.

        Raises:
            ValueError: If a field is missing, unknown or out of range.
        """
        values = dict(fields)
        ranges = values.pop("charges", None)
        return cls(charges=None if ranges is None else _ranges(ranges), **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The run ended before its budget was used up; nothing is charged afterwards.

    Attributes:
        reason: "refused" if what was left did not pay for the next answer, "finished" if the
            algorithm had nothing left to ask.
    """

    reason: str

    def __post_init__(self) -> None:
        if self.reason not in ("refused", "finished"):
            raise ValueError(f"reason {self.reason!r} of an end is unknown")

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the end's line."""
        return {"reason": self.reason}


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


def _ranges(value: Any) -> tuple[tuple[int, int], ...]:
    last, out = 0, []
    for first, end in value:
        first, end = positive_int("charge", first), positive_int("charge", end)
        if not last < first <= end:
            raise ValueError(f"charges {value!r} are not ascending ranges")
        out.append((first, end))
        last = end
    if not out:
        raise ValueError("a release of no charges is written without them")
    return tuple(out)


def _set_positive_ints(entry: Charge | Row | Release, *names: str) -> None:
    for name in names:
        value = getattr(entry, name)
        whole = positive_int(name, value)
        if whole is not value:  # a NumPy integer; a ledger holds built-in ones by the ten thousand
            object.__setattr__(entry, name, whole)


def _event(value: Any) -> Event:
    if value is None:  # how charges of runs without noise used to be written
        return NONPRIVATE
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not an event; expected an object with a 'kind'")
    # A ledger repeats one event thousands of times: it is checked once.
    return _known_event(tuple(value.items()), tuple(map(type, value.values())))


@lru_cache(maxsize=256)
def _known_event(items: tuple[tuple[str, Any], ...], kinds: tuple[type, ...]) -> Event:
    return Event.from_json(dict(items))


def hex_digest(digest: Any) -> str:
    """Return a SHA-256 in hex, checked.

    Raises:
        ValueError: If it is not 64 lowercase hex digits.
    """
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"digest {digest!r} is not 64 hex digits; give a SHA-256")
    return digest
