"""What a carrier is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedpriv.mechanisms.bound import Bound
from fedpriv.rng import Key
from fedpriv.training.round import PartialSum
from fedpriv.tree import Params


class Carrier(Protocol):
    """Brings the private work to where the drawn users are, and the sum back.

    Every carrier gives the same sum for the same arguments (to rounding), and a user that cannot
    be reached contributes zero.
    """

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        cohort: Sequence[str],
        key: Key,
        round_num: int,
        attempt: int,
    ) -> PartialSum:
        """Return the sum of the cohort's bounded updates.

        Args:
            params: The global params.
            bound: The public bound.
            cohort: The drawn user ids; may be empty.
            key: The users' key of this round and attempt, already folded by both.
            round_num: The round, from 1.
            attempt: The attempt at it, from 1.
        """
        ...

    def close(self) -> None:
        """Release whatever the carrier holds."""
        ...
