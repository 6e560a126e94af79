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
    """

    protected: str
    turn: str
    drawn: str
    draws: str
    who: str


_USERS = UnitWords(
    protected="rostered users", turn="round", drawn="cohort", draws="cohorts", who="server"
)
_EXAMPLES = UnitWords(
    protected="private examples", turn="step", drawn="batch", draws="batches", who="trainer"
)


def words_of(unit: str) -> UnitWords:
    """Return the words of a plan's unit; all but "example" is read as "user".

    >>> words_of("user").turn, words_of("example").turn
    ('round', 'step')
    """
    return _EXAMPLES if unit == "example" else _USERS
