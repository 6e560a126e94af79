"""The unit of privacy (user, example or owner), its words, and checks of the roster of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Unit = Literal["user", "example", "owner"]


def check_unit(unit: str) -> None:
    """Refuse what no plan protects.

    Raises:
        ValueError: If it is none of the three.
    """
    if unit not in get_args(Unit):
        raise ValueError(
            f"unit {unit!r} is unknown; a plan protects a 'user', an 'example' or an 'owner'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWords:
    """Words of a unit, wherever a run is spoken of.

    Attributes:
        protected: All those whom a plan of it protects.
        turn: One of the plan's charges.
        drawn: Those who are drawn for it.
        draws: The same of several charges.
        who: Who draws them.
        contributor: One of those whose contributions are bounded and summed.
    """

    protected: str
    turn: str
    drawn: str
    draws: str
    who: str
    contributor: str


_USERS = UnitWords(
    protected="rostered users",
    turn="round",
    drawn="cohort",
    draws="cohorts",
    who="server",
    contributor="user",
)
_EXAMPLES = UnitWords(
    protected="private examples",
    turn="step",
    drawn="batch",
    draws="batches",
    who="trainer",
    contributor="example",
)


def unit_words(unit: str) -> UnitWords:
    """Return the words of a plan's unit; an owner's are of its examples, all others of users.

    >>> unit_words("user").turn, unit_words("example").turn, unit_words("owner").turn
    ('round', 'step', 'step')
    """
    return _EXAMPLES if unit in ("example", "owner") else _USERS


def check_roster_size(roster: Sequence[str], num_users: int, unit: Unit) -> None:
    """Refuse a roster of another size than a plan was made for.

    Raises:
        ValueError: If its length is not num_users.
    """
    if len(roster) != num_users:
        raise ValueError(
            f"the roster has {len(roster)} {unit_words(unit).contributor}s, the plan was made for "
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
