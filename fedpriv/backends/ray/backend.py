"""The Ray backend: long-lived workers, one broadcast and one partial sum each a round.

The params go once into the object store, which the workers of a machine share, and are read in
place. Users are sharded longest first. What comes back from a worker is one sum over all its users,
stored by rows where that is smaller; no user's own update ever leaves the worker that trained it.
Large sums of many workers are added by the workers, two by two, through the object store: not by a
collective operation of the GPUs, which would hang where a worker dies.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from fedpriv.backends.backend import Backend, SerialBackend, shapes_of, sum_of_nobody
from fedpriv.backends.ray.cluster import Share
from fedpriv.backends.ray.pool import LOST, Call, Opened, Pool
from fedpriv.sums import PartialSum, merged
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.devices import device_description, usable_device, use_one_thread
from fedpriv.training.evaluate import Metrics, Part, combined
from fedpriv.training.failures import log_of_users, users_not_logged
from fedpriv.training.stopping import stop_if_asked
from fedpriv.training.work import Attempt, UserData, size_of
from fedpriv.tree import Params

_LOG = logging.getLogger(__name__)
_TRIES_OF_A_SHARE = 3
_TRIES_OF_A_USER = 2
# The server adds sums of fewer workers, or of fewer bytes, sooner than they are handed around.
_FEWEST_OF_A_TREE, _BYTES_OF_A_TREE = 4, 4 << 20

#: From a device ("cpu", "cuda:0"), or None, to the oracle on it. Sent to workers by reference.
OpenBackend = Callable[[str | None], SerialBackend]


class RayBackend(Backend):
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
        self.num_workers, self._device = share.num_workers, share.device
        self._users, self._max_examples = data, max_examples
        actor = ray.remote(Worker).options(
            num_cpus=share.num_cpus, num_gpus=share.num_gpus, max_restarts=0, max_task_retries=0
        )
        self._pool = Pool(
            actor.remote,
            Call("open", (open_backend, share.logical, share.device)),
            share.num_workers,
        )

    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        """Return the sum of the cohort's bounded updates; a user that kills workers adds zero."""
        stop_if_asked()
        shapes = shapes_of(request, attempt)
        sizes = {user: size_of(self._users, user, self._max_examples) for user in cohort}
        shards = [shard for shard in shards_of(sizes, self.num_workers) if shard]
        # Template and mechanism are the server's alone.
        sent = ray.put(replace(request, mechanism=None))
        given = replace(attempt, template=None)

        def run_shards(shards: Sequence[Sequence[str]], tries: int) -> list[Any]:
            calls = [Call("sum", (sent, given, shard)) for shard in shards]
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
        empty = sum_of_nobody(shapes, attempt.bound.granularity)
        total = merged(shapes, found or [empty], reuse=True)
        return replace(total, num_users=len(cohort), num_failed=total.num_failed + num_lost)

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

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return the metrics of all workers' parts of the examples, combined.

        None, with a warning, if a part cannot be measured because it kills every worker.
        """
        broadcast, of = ray.put(params), self.num_workers
        calls = [Call("evaluate", (broadcast, public, (part, of))) for part in range(of)]
        measured = self._pool.run(calls)
        if any(part is LOST for part in measured):
            _LOG.warning("the model is not measured: doing so kills workers")
            return None
        return combined(measured)

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


def shards_of(sizes: Mapping[str, int], num_workers: int) -> list[tuple[str, ...]]:
    """Return each worker's users, longest first.

    The longest worker has at most 4/3 of the work of the best assignment (Graham 1969). Ties
    go to the earlier user and the earlier worker, so the same sizes always give the same shards.

    Args:
        sizes: How much work each user is, in any unit; a user without any still costs one.
        num_workers: How many share it.

    Returns:
        `num_workers` tuples, some of them empty when there are fewer users.
    """
    shards: list[list[str]] = [[] for _ in range(num_workers)]
    loads = [(0, worker) for worker in range(num_workers)]
    for user_id in sorted(sizes, key=lambda user: -sizes[user]):
        load, worker = loads[0]
        shards[worker].append(user_id)
        heapq.heapreplace(loads, (load + max(sizes[user_id], 1), worker))
    return [tuple(shard) for shard in shards]


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


class Worker:
    """An actor of Ray's. It does one thing at a time, on one thread.

    Making it does nothing that can fail: what goes wrong in `open` is an error with a text, and
    not to be mistaken for a worker that died.
    """

    _backend: SerialBackend

    def open(
        self, open_backend: OpenBackend, logical: bool = False, device: str | None = None
    ) -> Opened:
        """Open the corpus and put the model on the device that Ray set aside, if any.

        Args:
            open_backend: Called once, here.
            logical: Whether the devices handed out are simulated, to try the placement without any:
                users are trained as on a GPU, by the processor.
            device: "cpu" for the same where no GPU was set aside; None for what is quickest there.

        Raises:
            ValueError: If there is no such GPU, or as what opens the backend does.
        """
        use_one_thread()
        ids, description = ray.get_gpu_ids(), "cpu"
        if ids and logical:
            device, description = "cpu", f"logical device {ids[0]}: cpu"
        elif ids:
            # Ray shows a worker only its own GPU, and so it is the first one there.
            gpu = usable_device("cuda:0")
            if _num_gpus() != 1:
                raise ValueError(
                    f"{_num_gpus()} GPUs are visible to a worker that was given one; unset "
                    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
                )
            device, description = str(gpu), f"GPU {ids[0]}: {device_description(gpu)}"
        self._backend = open_backend(device)
        return Opened(host=platform.node(), process=os.getpid(), device=description)

    def sum(self, request: SumRequest, attempt: Attempt, users: Sequence[str]) -> PartialSum:
        """Return one sum over these users, stored by rows where that is smaller.

        A worker whose GPU has failed ends, and another takes its place.
        """
        try:
            return self._backend.sum(request, attempt, users).compact()
        except RuntimeError as error:
            if type(error).__name__ == "AcceleratorError":  # nothing can be computed there again
                os._exit(1)
            raise

    def add(self, first: PartialSum, second: PartialSum) -> PartialSum:
        """Return the sum of two workers' sums, stored by rows where that is smaller."""
        return merged(first.total, [first, second]).compact()

    def evaluate(self, params: Params, public: bool, part: Part) -> Metrics | None:
        """Return metrics on one part of the examples."""
        return self._backend.evaluate(params, public=public, part=part)
