"""What a unit of privacy calls those it protects, and its charges: rounds of users, or steps."""

from __future__ import annotations

from dataclasses import dataclass


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


def words_of(unit: str) -> UnitWords:
    """Return the words of a plan's unit; an owner's are of its examples, all others of users.

    >>> words_of("user").turn, words_of("example").turn, words_of("owner").turn
    ('round', 'step', 'step')
    """
    return _EXAMPLES if unit in ("example", "owner") else _USERS
