"""Who takes part in a round: cohorts drawn on the server from a frozen roster.

A sampler is a public rule; the key it is given and the ids it returns are secret. What a sampler
earns in privacy is decided by its type alone, in `fedpriv.privacy.accounting`: independent coins
earn Poisson amplification, a cohort of fixed size earns only what is proved for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from fedpriv.ranges import positive_float, positive_int
from fedpriv.rng import Key


class Sampler(Protocol):
    """A rule that draws the cohort of one attempt of one round."""

    def cohort(self, key: Key, roster: Sequence[str]) -> tuple[str, ...]:
        """Return the drawn user ids, in roster order; the empty cohort is a legal draw."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSampler:
    """Every user on the roster tosses a coin of its own.

    Attributes:
        sampling_prob: Probability of heads, in (0, 1].
        cap: Largest cohort ever sent out, or None. When more users were drawn, a uniform subset
            of `cap` of them takes part. A plan wants the cap at twice the mean or above, where
            truncation is so rare that it costs nothing.

    Guarantees:
        * Inclusion is independent between users (without a cap) and between keys.
        * Neighbouring relation: with or without one rostered user's records. The roster itself,
          hence everybody else's coin, does not change.
        * Amplification: Poisson subsampling (Abadi et al. 2016, section 3); with a cap the
          truncated form, which the accountant prices through the roster's size.
    """

    sampling_prob: float
    cap: int | None = None

    def __post_init__(self) -> None:
        prob = positive_float("sampling_prob", self.sampling_prob)
        if prob > 1.0:
            raise ValueError(
                f"sampling_prob {prob} is above 1; give expected_cohort_size / num_users"
            )
        object.__setattr__(self, "sampling_prob", prob)
        if self.cap is not None:
            object.__setattr__(self, "cap", positive_int("cap", self.cap))

    def cohort(self, key: Key, roster: Sequence[str]) -> tuple[str, ...]:
        """Draw the cohort of one attempt.

        Args:
            key: The key of this attempt's cohort, used for nothing else.
            roster: The frozen list of n distinct user ids.

        Returns:
            Between 0 and n ids (at most `cap`), in roster order.

        Raises:
            ValueError: If the roster is empty or names a user twice.
        """
        _check_roster(roster)
        generator = key.generator()
        drawn = np.flatnonzero(generator.random(len(roster)) < self.sampling_prob)
        if self.cap is not None and drawn.size > self.cap:
            drawn = np.sort(generator.choice(drawn, self.cap, replace=False, shuffle=False))
        return tuple(roster[int(index)] for index in drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeSampler:
    """A uniform subset of exactly `size` users, without replacement.

    Attributes:
        size: Users a cohort, at least 1 and at most the roster.

    Guarantees:
        * Every user is included with probability size / n, but not independently of the others,
          so this is far weaker than Poisson: at σ = 1, 20 of 400 users, 100 rounds and
          δ = 1/400 its ε under replace-one is at least 10.79 where Poisson add-remove has 1.91
          (Lebeda, Regehr, Kamath and Steinke, arXiv:2405.20769).
        * Neighbouring relation: one user's records replaced by another's (`replace-one`).
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", positive_int("size", self.size))

    def cohort(self, key: Key, roster: Sequence[str]) -> tuple[str, ...]:
        """Draw `size` distinct ids, in roster order.

        Raises:
            ValueError: If the roster is shorter than `size`, empty, or names a user twice.
        """
        _check_roster(roster)
        if self.size > len(roster):
            raise ValueError(
                f"a cohort of {self.size} cannot be drawn from {len(roster)} users; "
                "lower the cohort size"
            )
        drawn = key.generator().choice(len(roster), self.size, replace=False, shuffle=False)
        return tuple(roster[int(index)] for index in np.sort(drawn))


def _check_roster(roster: Sequence[str]) -> None:
    if isinstance(roster, str) or len(roster) == 0:
        raise ValueError(f"roster {roster!r} holds no users; give the list of the corpus's ids")
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
