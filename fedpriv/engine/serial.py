"""The in-process carrier: every user in turn. The oracle that the other carriers are held to."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.mechanisms.bound import Bound
from fedpriv.rng import Key
from fedpriv.training.local import LocalTrainer
from fedpriv.training.round import PartialSum, UserData, partial_sum
from fedpriv.tree import Params


class SerialCarrier:
    """Trains the cohort in this process, one user after another.

    Args:
        trainer: What a user does.
        data: The users' examples.
    """

    def __init__(self, *, trainer: LocalTrainer, data: UserData) -> None:
        self._trainer, self._data = trainer, data

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
        """Return the sum of the cohort's bounded updates."""
        return partial_sum(
            params=params,
            bound=bound,
            trainer=self._trainer,
            data=self._data,
            user_ids=cohort,
            key=key,
        )

    def close(self) -> None:
        """Nothing is held."""
