"""Backends: they bring the private work to where the drawn users are, and the sum back.

The serial one trains in this process, and is the oracle of all others. A compiled trainer holds the
interpreter's lock for a tenth of its time, so threads share the cores as processes would, and
nothing is sent or copied. Trainers that keep a resident model, or draw from a generator of the
whole process, use more than one core in worker processes (`--backend ray`). Nothing here knows how
a worker is reached. What it works with is opened where the work is done, from what can be named:
the experiment, its options, the path of a corpus. Users' data are never sent.
"""

from __future__ import annotations

import heapq
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedpriv.sums import PartialSum, RunningSum, merged
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.devices import (
    default_threads,
    device_description,
    usable_device,
    use_one_thread,
)
from fedpriv.training.evaluate import Metrics, Part, combined
from fedpriv.training.failures import counted_failures, users_not_logged
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.work import Attempt, Trainers, UserData, Users, Work, as_works, find_work
from fedpriv.tree import Params

# Fewer users a thread are trained sooner than sums are merged.
_FEWEST_SHARED = 8

#: From (params, public=, and optionally part=) to metrics; `Task.evaluate` is one.
Measure = Callable[..., Metrics | None]


def answered(
    works: Mapping[str, Work],
    data: UserData | None,
    request: SumRequest,
    attempt: Attempt,
    users: Sequence[str],
) -> PartialSum:
    """Return the sum over users whose examples are here, with the first error among them.

    A secure run logs nothing about users and reports no error.

    Raises:
        ValueError: If the work is not among these.
    """
    with users_not_logged(attempt.key), counted_failures() as failures:
        done = find_work(works, request.work).answer(request, attempt, Users(users, data))
    return done if failures.text is None else replace(done, first_error=failures.text)


def shapes_of(request: SumRequest, attempt: Attempt) -> Params:
    """Return names and shapes of a sum, as the server knows them."""
    return request.params if attempt.template is None else attempt.template


def sum_of_nobody(shapes: Params, granularity: float | None) -> PartialSum:
    """Return the sum over no user, of these names and shapes."""
    total = RunningSum(shapes, granularity).result()
    return PartialSum(total=total, num_users=0, granularity=granularity)


class Backend(ABC):
    """Brings the private work to where the drawn users are, and the sum back.

    A subclass has `sum`. Every backend gives the same sum for the same
    arguments (to rounding), and a user that cannot be reached contributes zero.

    Attributes:
        trains_again: Whether a simulation may ask one user twice to see whether it is apart from
            others; false where users are on nodes, which may be late or gone in between.
    """

    trains_again: ClassVar[bool] = True

    @abstractmethod
    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        """Return the sum of the bounded contributions of these users, who may be none."""

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return metrics on public users, or on held-out examples of rostered users.

        Every backend gives the same values. None where there are no such examples.
        """
        return None

    def describe(self) -> dict[str, Any]:
        """Return what a run's record says of the backend: its name, workers and devices."""
        return {"name": type(self).__name__, "workers": 1, "devices": []}

    def under(self, plan: str) -> Backend:
        """Return the backend that names a plan, by its digest, to those that have the users."""
        return self

    def check_mode(self, mode: str) -> None:
        """Raise `ValueError`, with what to do, for a mode ("simulation", "secure") it refuses."""
        return

    def close(self) -> None:
        """Release whatever the backend holds."""
        return


class SerialBackend(Backend):
    """Trains the cohort in this process, or sums over a batch: the oracle of all other backends.

    Guarantees:
        * The sum is that of one thread to the bit: several threads share a cohort only where the
          trainer may be shared and the bound is on a grid.

    Args:
        trainer: What a user does, or the sum over examples of centralised training; or works
            by name.
        data: The users' examples; None where the trainer holds its examples itself.
        measure: How a model is measured, as `Task.evaluate`; None measures nothing.
        device: What it computes on, in words.
        asked: The device that the trainer was made for, where it trains many users, or examples,
            at once; None for what is quickest on a processor. Their last bits differ.
        threads: Among how many a cohort may be shared; None for `default_threads`.
    """

    def __init__(
        self,
        *,
        trainer: Trainers,
        data: UserData | None = None,
        measure: Measure | None = None,
        device: str = "cpu",
        asked: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._threads = default_threads() if threads is None else threads
        self._pool: ThreadPoolExecutor | None = None
        self._works, self._data, self._measure = as_works(trainer), data, measure
        self._device, self._asked = device, asked

    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        """Return the sum of the cohort's bounded updates."""
        work, exact = find_work(self._works, request.work), attempt.bound.granularity is not None
        shared = self._threads > 1 and exact and work.thread_safe
        if not shared or len(cohort) < _FEWEST_SHARED * self._threads:
            return answered(self._works, self._data, request, attempt, cohort)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="users")

        def one(users: Sequence[str]) -> PartialSum:
            return answered(self._works, self._data, request, attempt, users)

        shards = [cohort[first :: self._threads] for first in range(self._threads)]
        calls = [self._pool.submit(copy_context().run, one, shard) for shard in shards]
        found = [call.result() for call in calls]
        return merged(found[0].total, found, reuse=True)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def evaluate(self, params: Params, *, public: bool, **part: Part) -> Metrics | None:
        """Return the metrics of this process's measure, on a `part=` of the examples or on all."""
        return None if self._measure is None else self._measure(params, public=public, **part)

    def describe(self) -> dict[str, Any]:
        """Return that everything happens here, and on which device."""
        found = {"name": "serial", "workers": 1, "devices": [self._device]}
        return found if self._asked is None else {**found, "device": self._asked}


Shards = Sequence[Sequence[str]]
"""The users that each worker trains; no shard is empty."""
Measured = Iterable[Metrics | None]
"""Metrics of parts of the examples."""


class ShardedBackend(Backend):
    """Base of backends whose workers each take a share of the cohort, and of what is measured.

    A subclass has `sums`, `measures` and `describe`.

    Args:
        data: Asked for the number of users' examples, to shard them evenly; never for examples.
        num_workers: How many share a round.
        max_examples: The cap on a user's work.
    """

    def __init__(self, *, data: UserData, num_workers: int, max_examples: int) -> None:
        if num_workers < 1:
            raise ValueError(f"workers {num_workers} must be at least 1")
        self._users, self.num_workers, self._max_examples = data, num_workers, max_examples

    @abstractmethod
    def sums(
        self, request: SumRequest, attempt: Attempt, shards: Shards
    ) -> tuple[Sequence[PartialSum], int]:
        """Return the sums over shards, and how many users are in no sum."""

    @abstractmethod
    def measures(self, params: Params, public: bool, parts: Sequence[Part]) -> Measured:
        """Return the metrics of all parts of the examples; nothing if one cannot be had."""

    def sum(self, request: SumRequest, attempt: Attempt, cohort: Sequence[str]) -> PartialSum:
        """Return the sum of the cohort's bounded updates."""
        sizes = work_of(self._users, cohort, self._max_examples)
        shards = [shard for shard in shards_of(sizes, self.num_workers) if shard]
        sums, num_lost = self.sums(request, attempt, shards)
        shapes = shapes_of(request, attempt)
        empty = sum_of_nobody(shapes, attempt.bound.granularity)
        total = merged(shapes, sums or [empty], reuse=True)
        return replace(total, num_users=len(cohort), num_failed=total.num_failed + num_lost)

    def evaluate(self, params: Params, *, public: bool) -> Metrics | None:
        """Return the metrics of all workers' parts of the examples, combined."""
        parts = [(number, self.num_workers) for number in range(self.num_workers)]
        return combined(self.measures(params, public, parts))


def work_of(data: UserData, cohort: Sequence[str], max_examples: int) -> dict[str, int]:
    """Return how many examples each user will train on; it only decides who trains it."""
    found = {}
    for user_id in cohort:
        try:
            found[user_id] = min(data.num_examples(user_id), max_examples)
        except Exception as error:  # where training fails too, the user contributes zero
            end_if_interrupted(error)
            found[user_id] = 1
    return found


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


#: From a device ("cpu", "cuda:0"), or None, to the oracle on it. Sent to workers by reference.
OpenBackend = Callable[[str | None], SerialBackend]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Description of a worker that can work.

    Attributes:
        host: The machine it is on.
        process: Its process id there.
        device: What it computes on, in words.
    """

    host: str
    process: int
    device: str


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


class Worker:
    """One worker. It does one thing at a time, on one thread.

    Making it does nothing that can fail: what goes wrong in `open` is an error with a text, and
    not to be mistaken for a worker that died.
    """

    _backend: SerialBackend

    def open(
        self,
        open_backend: OpenBackend,
        *,
        device_ids: Sequence[int | str] = (),
        logical: bool = False,
        device: str | None = None,
    ) -> Opened:
        """Open the corpus and put the model on its device.

        Args:
            open_backend: Called once, here.
            device_ids: The GPU that was set aside for this worker, if any.
            logical: Whether the devices handed out are simulated, to try the placement without any:
                users are trained as on a GPU, by the processor.
            device: "cpu" for the same where no GPU was set aside; None for what is quickest there.

        Raises:
            ValueError: If there is no such GPU, or as what opens the backend does.
        """
        use_one_thread()
        description = "cpu"
        if device_ids and logical:
            device, description = "cpu", f"logical device {device_ids[0]}: cpu"
        elif device_ids:
            # Ray shows a worker only its own GPU, and so it is the first one there.
            gpu = usable_device("cuda:0")
            if _num_gpus() != 1:
                raise ValueError(
                    f"{_num_gpus()} GPUs are visible to a worker that was given one; unset "
                    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
                )
            device, description = str(gpu), f"GPU {device_ids[0]}: {device_description(gpu)}"
        self._backend = open_backend(device)
        return Opened(host=platform.node(), process=os.getpid(), device=description)

    def sum(self, request: SumRequest, attempt: Attempt, users: Sequence[str]) -> PartialSum:
        """Return one sum over these users, stored by rows where that is smaller."""
        return self._backend.sum(request, attempt, users).compact()

    def add(self, first: PartialSum, second: PartialSum) -> PartialSum:
        """Return the sum of two workers' sums, stored by rows where that is smaller."""
        return merged(first.total, [first, second]).compact()

    def evaluate(self, params: Params, public: bool, part: Part) -> Metrics | None:
        """Return metrics on one part of the examples."""
        return self._backend.evaluate(params, public=public, part=part)
