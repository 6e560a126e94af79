"""The Ray backend: long-lived workers, one broadcast and one partial sum each a round.

The params go once into the object store, which the workers of a machine share, and are read in
place. Users are sharded longest first. What comes back from a worker is one sum over all its users,
stored by rows where that is smaller; no user's own update ever leaves the worker that trained it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray

from fedpriv.backends.ray.pool import LOST, Call, Pool
from fedpriv.backends.resources import Share
from fedpriv.backends.worker import Opened, Order, Worker, WorkerContextFactory, shards_of, work_of
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, RunningSum, merged
from fedpriv.training.evaluate import Metrics, combined
from fedpriv.training.failures import say_of_users, users_unsaid
from fedpriv.training.stopping import stop_if_asked
from fedpriv.training.work import TRAIN, UserData
from fedpriv.tree import Params

_LOG = logging.getLogger(__name__)
_TRIES_OF_A_SHARE = 3
_TRIES_OF_A_USER = 2


class RayBackend:
    """Trains the cohort in worker processes. A `fedpriv.backends.Backend`; Ray must be running.

    Guarantees:
        * The sum equals the in-process backend's: exactly where the bound is on a grid, to
          rounding otherwise, whatever the number of workers.
        * A worker that dies is replaced and its users are trained again with the same keys; the
          sum is that of a round without the fault.
        * A user that kills its worker whenever it is trained, even alone, contributes zero.

    Args:
        share: How many workers, and what each may use.
        make_context: Opens the data and makes the trainer, in each worker.
        data: Asked for the number of users' examples, to shard them evenly; never for examples.
        max_examples: The cap on a user's work.
    """

    def __init__(
        self,
        *,
        share: Share,
        make_context: WorkerContextFactory,
        data: UserData,
        max_examples: int,
    ) -> None:
        self._share, self._data, self._max_examples = share, data, max_examples
        actor = ray.remote(_Actor).options(
            num_cpus=share.num_cpus, num_gpus=share.num_gpus, max_restarts=0, max_task_retries=0
        )
        self._pool = Pool(
            actor.remote, Call("open", (make_context, share.logical)), share.num_workers
        )

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
        stop_if_asked()
        shapes = params if template is None else template
        order = ray.put(Order(params=params, bound=bound, key=key, work=work))
        sizes = {user: work_of(self._data, user, self._max_examples) for user in cohort}
        shards = [shard for shard in shards_of(sizes, self._share.num_workers) if shard]
        sums = self._sums(order, shards, _TRIES_OF_A_SHARE, key)
        found = [done for done in sums if done is not LOST]
        suspects = [u for s, done in zip(shards, sums, strict=True) if done is LOST for u in s]
        num_lost = 0
        for few in _batched(suspects, self._share.num_workers):
            sums = self._sums(order, [(user,) for user in few], _TRIES_OF_A_USER, key)
            num_lost += sum(done is LOST for done in sums)
            if done := [done for done in sums if done is not LOST]:
                found = [merged(shapes, [*found, *done])]  # no more than a few are ever held
        if num_lost:
            said = "%d drawn users contribute zero: each kills its worker"
            with users_unsaid(key):
                say_of_users(_LOG, logging.WARNING, said, num_lost)
        total = merged(shapes, found or [_nothing(shapes, bound)])
        return replace(total, num_users=len(cohort), num_failed=total.num_failed + num_lost)

    def _sums(
        self, order: Any, shards: Sequence[Sequence[str]], tries: int, key: Key
    ) -> list[PartialSum]:
        calls = [Call("partial_sum", (order, shard)) for shard in shards]
        with users_unsaid(key):
            return self._pool.run(calls, tries=tries)

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return the metrics of all workers' parts of the examples, combined.

        None, with a warning, if a part cannot be measured because it kills every worker.
        """
        broadcast, parts = ray.put(params), self._share.num_workers
        calls = [Call("evaluate", (broadcast, public, (part, parts))) for part in range(parts)]
        measured = self._pool.run(calls)
        if any(part is LOST for part in measured):
            _LOG.warning("the model is not measured: doing so kills workers")
            return None
        return combined(measured)

    def describe(self) -> dict[str, Any]:
        """Return the workers and the device of each."""
        devices = [opened.device for opened in self._pool.opened]
        return {"name": "ray", "workers": self._share.num_workers, "devices": devices}

    def processes(self) -> list[int]:
        """Return the process ids of the workers that were last seen alive."""
        return [opened.process for opened in self._pool.opened]

    def close(self) -> None:
        """End the workers."""
        self._pool.close()


class _Actor(Worker):
    """A worker that is reached through Ray, which says what device it was given."""

    def open(self, make_context: WorkerContextFactory, logical: bool) -> Opened:  # type: ignore[override]
        """Open the worker context on the device that Ray set aside."""
        return super().open(make_context, device_ids=ray.get_gpu_ids(), logical=logical)


def _nothing(shapes: Params, bound: Bound) -> PartialSum:
    """Return the sum over no user, on the bound's grid."""
    zeros = RunningSum(shapes, bound.granularity).result()
    return PartialSum(total=zeros, num_users=0, granularity=bound.granularity)


def _batched(users: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(users), size):
        yield users[start : start + size]
