"""What plans of every kind promise with: whom they protect, under which relation and δ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedpriv.privacy.accounting import checked_delta
from fedpriv.privacy.epsilon import default_delta
from fedpriv.privacy.event import Event
from fedpriv.privacy.unit_words import words_of

Unit = Literal["user", "example", "owner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """How much of a budget is spent.

    Attributes:
        amount: So far, in the budget's own units: charges, rows, or ρ.
        total: All that there is.
        text: Both in words.
    """

    amount: float
    total: float
    text: str


def delta_of(delta: float | None, num_users: int, event: Event) -> float:
    """Return δ, checked; None gives n^-1.1, or 0 where every answer is pure.

    Raises:
        ValueError: If it is out of range.
    """
    if delta is None:
        return 0.0 if event.kind == "pure" else default_delta(num_users)
    return checked_delta(delta, [event])


def check_unit(unit: str) -> None:
    """Refuse what no plan protects.

    Raises:
        ValueError: If it is none of the three.
    """
    if unit not in get_args(Unit):
        raise ValueError(
            f"unit {unit!r} is unknown; a plan protects a 'user', an 'example' or an 'owner'"
        )


def check_roster(roster: Sequence[str], num_users: int, unit: Unit) -> None:
    """Refuse a roster of another size than a plan was made for.

    Raises:
        ValueError: If its length is not num_users.
    """
    if len(roster) != num_users:
        raise ValueError(
            f"the roster has {len(roster)} {words_of(unit).contributor}s, the plan was made for "
            f"{num_users}; make a new plan for the new roster"
        )


def check_roster_sha256(digest: str | None) -> None:
    """Refuse what is no hash of a roster.

    Raises:
        ValueError: If it is given, and not 64 hex digits.
    """
    if digest is not None and not (
        isinstance(digest, str) and len(digest) == 64 and set(digest) <= set("0123456789abcdef")
    ):
        raise ValueError(
            f"roster_sha256 {digest!r} is not 64 hex digits; give the hash of the corpus's roster"
        )
