"""The backend of threads: workers within this process, for trainers that are compiled and pure.

A compiled trainer holds the interpreter's lock for a tenth of its time, so threads share the cores
as processes would, and nothing is sent or copied. Trainers that keep a resident model, or draw from
a generator of the whole process, go to worker processes (`--backend ray`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedpriv.backends.backend import Measure
from fedpriv.backends.worker import shards_of, work_of
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, merged
from fedpriv.training.evaluate import Metrics, combined
from fedpriv.training.work import TRAIN, Trainers, UserData, as_works, find_work, summed
from fedpriv.tree import Params


def check_shareable(trainer: Trainers) -> None:
    """Refuse a trainer, or one of several works by name, that threads may not use at once.

    Raises:
        ValueError: If it does not say of itself that it is `thread_safe`.
    """
    for one in trainer.values() if isinstance(trainer, Mapping) else (trainer,):
        if not getattr(one, "thread_safe", False):
            raise ValueError(
                f"threads: {type(one).__name__} keeps a model of its own and cannot be shared by "
                "threads; use 'ray' (worker processes) or 'serial'"
            )


class ThreadBackend:
    """Trains the cohort in this process, on several threads.

    Guarantees:
        * The sum equals the one-thread backend's: exactly where the bound is on a grid, to
          rounding otherwise.

    Args:
        trainer: What a user does, or works by name.
        data: The users' examples.
        measure: How a model is measured, as `Task.evaluate`.
        num_workers: How many threads.
        max_examples: The cap on a user's work, for sharding users evenly.

    Raises:
        ValueError: If the trainer may not be used by several threads.
    """

    def __init__(
        self,
        *,
        trainer: Trainers,
        data: UserData,
        measure: Measure,
        num_workers: int,
        max_examples: int,
    ) -> None:
        check_shareable(trainer)
        if num_workers < 1:
            raise ValueError(f"workers {num_workers} must be at least 1")
        self._works, self._data, self._measure = as_works(trainer), data, measure
        self._num_workers, self._max_examples = num_workers, max_examples
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="users")

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
        """Return the sum of the cohort's bounded updates."""
        named = find_work(self._works, work)

        def share(user_ids: Sequence[str]) -> PartialSum:
            return summed(
                named, params=params, bound=bound, data=self._data, user_ids=user_ids, key=key
            )

        sizes = {user: work_of(self._data, user, self._max_examples) for user in cohort}
        shards = shards_of(sizes, self._num_workers)
        # Without users a shard would only clear a sum of its own; the first always makes one.
        shares = [shard for number, shard in enumerate(shards) if shard or number == 0]
        return merged(template or params, list(self._pool.map(share, shares)), reuse=True)

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return the metrics of all threads' parts of the examples, combined."""
        of = self._num_workers
        parts = [(number, of) for number in range(of)]
        return combined(
            self._pool.map(lambda part: self._measure(params, public=public, part=part), parts)
        )

    def describe(self) -> dict[str, Any]:
        """Return the threads and that they compute on the CPU."""
        return {"name": "threads", "workers": self._num_workers, "devices": ["cpu"]}

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
