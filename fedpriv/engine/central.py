"""The in-process carrier of centralised training: one machine holds every example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.engine.carrier import Measure
from fedpriv.mechanisms.bound import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.central import CentralSum
from fedpriv.training.evaluate import Metrics
from fedpriv.tree import Params


class CentralCarrier:
    """Sums over batches of examples in this process.

    Args:
        trainer: What sums bounded updates over a batch.
        measure: How a model is measured; None measures nothing.
    """

    def __init__(self, *, trainer: CentralSum, measure: Measure | None = None) -> None:
        self._trainer, self._measure = trainer, measure

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
        """Return the sum of the batch's bounded updates."""
        return self._trainer.partial_sum(params=params, bound=bound, cohort=cohort, key=key)

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return the metrics of this process's own measure."""
        return None if self._measure is None else self._measure(params, public=public)

    def describe(self) -> dict[str, Any]:
        """Return that everything happens here."""
        return {"name": "serial", "workers": 1, "devices": ["cpu"]}

    def close(self) -> None:
        """Nothing is held."""
