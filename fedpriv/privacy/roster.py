"""The frozen roster that cohorts are drawn from: what it may be, and uniform subsets of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedpriv.rng import Key


def least_of(key: Key, number: int, size: int) -> np.ndarray:
    """Return a uniform subset of positions, sorted: those with the least of cryptographic words.

    Two of n equal words, at most n² 2^-65 likely, prefer the earlier position.
    """
    order = np.argsort(key.words(number), kind="stable")
    return np.sort(order[:size])


def check_roster(roster: Sequence[str], num_users: int) -> None:
    """Refuse a roster of another size than was accounted, or that names a user twice.

    Raises:
        ValueError: If it is one.
    """
    if isinstance(roster, str) or len(roster) == 0:
        raise ValueError(f"roster {roster!r} holds no users; give the list of the corpus's ids")
    if len(roster) != num_users:
        raise ValueError(
            f"the roster has {len(roster)} users, the sampler was made for {num_users}: they would "
            "be drawn with another probability than is accounted; make a new plan"
        )
    if type(roster) is tuple:
        _check_distinct_once(_Itself(roster))
    else:
        _check_distinct(roster)


class _Itself:
    """A roster that equals nothing but the very same object: hashing it does not read it."""

    __slots__ = ("roster",)

    def __init__(self, roster: tuple[str, ...]) -> None:
        self.roster = roster

    def __hash__(self) -> int:
        return id(self.roster)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.roster is other.roster


@lru_cache(maxsize=2)
def _check_distinct_once(itself: _Itself) -> None:
    # A run draws every cohort from one frozen tuple, and the set of 342,477 ids takes longer than
    # the draw. The cache holds the tuple, so no other object can come to have its address, and
    # what raises is not cached. A list may change between two draws: it is always looked at.
    _check_distinct(itself.roster)


def _check_distinct(roster: Sequence[str]) -> None:
    distinct = len(set(roster))
    if distinct != len(roster):
        raise ValueError(
            f"the roster has {len(roster)} entries but only {distinct} distinct users; "
            "a user listed twice would be drawn twice as often: remove the duplicates"
        )
