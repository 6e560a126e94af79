"""The in-process backend: every user in turn. The oracle that the other backends are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.backends.backend import Measure
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.evaluate import Metrics
from fedpriv.training.work import (
    TRAIN,
    Trainers,
    UserData,
    as_works,
    find_work,
    looked_back,
    summed,
)
from fedpriv.tree import Params


class SerialBackend:
    """Trains the cohort in this process, one user after another, or sums over a batch.

    Args:
        trainer: What a user does, or the sum over examples of centralised training; or works
            by name.
        data: The users' examples; None where the trainer holds its examples itself.
        measure: How a model is measured, as `Task.evaluate`; None measures nothing.
    """

    def __init__(
        self, *, trainer: Trainers, data: UserData | None = None, measure: Measure | None = None
    ) -> None:
        self._works, self._data, self._measure = as_works(trainer), data, measure

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        cohort: Sequence[str],
        key: Key,
        round_num: int,
        attempt: int,
        work: str = TRAIN,
        template: Params | None = None,
    ) -> PartialSum:
        """Return the sum of the cohort's bounded updates.

        Raises:
            KeepsStateError: As of `fedpriv.training.work.looked_back`.
        """
        named = find_work(self._works, work)
        with looked_back(named, key):
            return summed(
                named, params=params, bound=bound, data=self._data, user_ids=cohort, key=key
            )

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return the metrics of this process's own measure."""
        return None if self._measure is None else self._measure(params, public=public)

    def describe(self) -> dict[str, Any]:
        """Return that everything happens here."""
        return {"name": "serial", "workers": 1, "devices": ["cpu"]}

    def close(self) -> None:
        """Nothing is held."""
