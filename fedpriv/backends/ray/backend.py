"""The Ray backend: long-lived workers, one broadcast and one partial sum each a round.

The params go once into the object store, which the workers of a machine share, and are read in
place. Users are sharded longest first. What comes back from a worker is one sum over all its users,
stored by rows where that is smaller; no user's own update ever leaves the worker that trained it.
Large sums of many workers are added by the workers, two by two, through the object store: not by a
collective operation of the GPUs, which would hang where a worker dies.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray

from fedpriv.backends.backend import (
    Measured,
    OpenBackend,
    Opened,
    ShardedBackend,
    Shards,
    Worker,
    shapes_of,
)
from fedpriv.backends.ray.cluster import Share
from fedpriv.backends.ray.pool import LOST, Call, Pool
from fedpriv.sums import PartialSum, merged
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.evaluate import Part
from fedpriv.training.failures import log_of_users, users_not_logged
from fedpriv.training.stopping import stop_if_asked
from fedpriv.training.work import Attempt, UserData
from fedpriv.tree import Params

_LOG = logging.getLogger(__name__)
_TRIES_OF_A_SHARE = 3
_TRIES_OF_A_USER = 2
# The server adds sums of fewer workers, or of fewer bytes, sooner than they are handed around.
_FEWEST_OF_A_TREE, _BYTES_OF_A_TREE = 4, 4 << 20


class RayBackend(ShardedBackend):
    """Trains the cohort in worker processes; Ray must be running.

    Guarantees:
        * The sum equals the in-process backend's: exactly where the bound is on a grid, to
          rounding otherwise, whatever the number of workers.
        * A worker that dies is replaced and its users are trained again with the same keys; the
          sum is that of a round without the fault.
        * A user that kills its worker whenever it is trained, even alone, contributes zero.

    Args:
        share: How many workers, and what each may use.
        open_backend: Opens the data and makes the trainer, in each worker.
        data: Asked for the number of users' examples, to shard them evenly; never for examples.
        max_examples: The cap on a user's work.
    """

    def __init__(
        self,
        *,
        share: Share,
        open_backend: OpenBackend,
        data: UserData,
        max_examples: int,
    ) -> None:
        super().__init__(data=data, num_workers=share.num_workers, max_examples=max_examples)
        self._device = share.device
        actor = ray.remote(_Actor).options(
            num_cpus=share.num_cpus, num_gpus=share.num_gpus, max_restarts=0, max_task_retries=0
        )
        self._pool = Pool(
            actor.remote,
            Call("open", (open_backend, share.logical, share.device)),
            share.num_workers,
        )

    def sums(
        self, request: SumRequest, attempt: Attempt, shards: Shards
    ) -> tuple[Sequence[PartialSum], int]:
        """Return the sums over shards, and how many users kill the worker that trains them."""
        stop_if_asked()
        shapes = shapes_of(request, attempt)
        # Template and mechanism are the server's alone.
        sent = ray.put(replace(request, mechanism=None))
        attempt = replace(attempt, template=None)

        def run_shards(shards: Shards, tries: int) -> list[Any]:
            calls = [Call("sum", (sent, attempt, shard)) for shard in shards]
            return self._pool.run(calls, tries=tries, references=True)

        with users_not_logged(attempt.key):
            sums = run_shards(shards, _TRIES_OF_A_SHARE)
            found = self._added([done for done in sums if done is not LOST], shapes)
            suspects = [u for s, done in zip(shards, sums, strict=True) if done is LOST for u in s]
            num_lost = 0
            for start in range(0, len(suspects), self.num_workers):
                few = suspects[start : start + self.num_workers]
                sums = run_shards([(user,) for user in few], _TRIES_OF_A_USER)
                num_lost += sum(done is LOST for done in sums)
                if done := [done for done in sums if done is not LOST]:
                    found = [merged(shapes, [*found, *ray.get(done)])]  # few at a time
            if num_lost:
                lost = "%d drawn users contribute zero: each kills its worker"
                log_of_users(_LOG, logging.WARNING, lost, num_lost)
        return found, num_lost

    def _added(self, sums: list[Any], shapes: Params) -> list[PartialSum]:
        """Return sums whose references are given, added by workers until fewer than four are left.

        Args:
            sums: References.
            shapes: Of the sums; public, and they decide who adds.
        """
        num_bytes = 4 * sum(math.prod(shape.shape) for shape in shapes.values())
        while len(sums) >= _FEWEST_OF_A_TREE and num_bytes >= _BYTES_OF_A_TREE:
            pairs = list(zip(sums[::2], sums[1::2], strict=False))
            calls = [Call("add", pair) for pair in pairs]
            added = self._pool.run(calls, tries=_TRIES_OF_A_SHARE, references=True)
            if any(one is LOST for one in added):
                break  # the server adds them
            sums = [*added, *sums[2 * len(pairs) :]]
        return ray.get(sums)

    def measures(self, params: Params, public: bool, parts: Sequence[Part]) -> Measured:
        """Return the metrics of all workers' parts of the examples.

        Nothing, with a warning, if a part cannot be measured because it kills every worker.
        """
        broadcast = ray.put(params)
        measured = self._pool.run([Call("evaluate", (broadcast, public, part)) for part in parts])
        if any(part is LOST for part in measured):
            _LOG.warning("the model is not measured: doing so kills workers")
            return ()
        return measured

    def describe(self) -> dict[str, Any]:
        """Return the workers and the device of each."""
        devices = [opened.device for opened in self._pool.opened]
        found = {"name": "ray", "workers": self.num_workers, "devices": devices}
        return found if self._device is None else {**found, "device": self._device}

    def processes(self) -> list[int]:
        """Return the process ids of the workers that were last seen alive."""
        return [opened.process for opened in self._pool.opened]

    def close(self) -> None:
        """End the workers."""
        self._pool.close()


class _Actor(Worker):
    """A worker that is reached through Ray, which hands out its device."""

    def sum(self, request: SumRequest, attempt: Attempt, users: Sequence[str]) -> PartialSum:
        """Return one sum; a worker whose GPU has failed ends, and another takes its place."""
        try:
            return super().sum(request, attempt, users)
        except RuntimeError as error:
            if type(error).__name__ == "AcceleratorError":  # nothing can be computed there again
                os._exit(1)
            raise

    def open(  # type: ignore[override]
        self, open_backend: OpenBackend, logical: bool, device: str | None
    ) -> Opened:
        """Open the backend on the device that Ray set aside."""
        ids = ray.get_gpu_ids()
        return super().open(open_backend, device_ids=ids, logical=logical, device=device)
