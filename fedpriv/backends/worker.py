"""Worker processes, and the sharding of users over workers.

A worker holds a context, trains the users of its shard and measures its share.

Nothing here knows how the worker is reached. A worker context is made where the work is done, from
what can be named: the experiment, its options, the path of a corpus. Users' data are never sent.
"""

from __future__ import annotations

import heapq
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedpriv.backends.backend import Measure
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.devices import device_description, usable_device, use_one_thread
from fedpriv.training.evaluate import Metrics, Part
from fedpriv.training.stopping import end_if_interrupted
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a worker works with.

    Attributes:
        trainer: What a user does, or works by name.
        data: The users' examples.
        measure: From (params, public, part) to metrics, as `Task.evaluate`.
    """

    trainer: Trainers
    data: UserData
    measure: Measure


#: From a device ("cpu", "cuda:0") to the worker context on it. It is sent to workers by reference.
WorkerContextFactory = Callable[[str], WorkerContext]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What every worker needs for one attempt of one round; broadcast once.

    Attributes:
        params: The global params; a worker sees them read-only, in memory that all share.
        bound: The public bound.
        key: The users' key of the round and attempt.
        work: What is done, by name.
    """

    params: Params = field(repr=False)
    bound: Bound
    key: Key
    work: str = TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a worker says once it can work.

    Attributes:
        host: The machine it is on.
        process: Its process id there.
        device: What it computes on, in words.
    """

    host: str
    process: int
    device: str


class Worker:
    """One worker. It does one thing at a time, on one thread.

    Making it does nothing that can fail: what goes wrong in `open` is an error with a text, and
    not to be mistaken for a worker that died.
    """

    def __init__(self) -> None:
        self._context: WorkerContext | None = None

    def open(
        self,
        make_context: WorkerContextFactory,
        *,
        device_ids: Sequence[int | str] = (),
        logical: bool = False,
    ) -> Opened:
        """Open the corpus and put the model on its device.

        Args:
            make_context: Called once, here.
            device_ids: The GPU that was set aside for this worker, if any.
            logical: Whether the devices handed out are made up, to try the placement without any.

        Raises:
            ValueError: If there is no such GPU, or as the worker context does.
        """
        use_one_thread()
        device, said = _device(device_ids, logical)
        self._context = make_context(device)
        return Opened(host=platform.node(), process=os.getpid(), device=said)

    def partial_sum(self, order: Order, user_ids: Sequence[str]) -> PartialSum:
        """Return one sum over these users; see `fedpriv.training.work.Work`.

        Raises:
            KeepsStateError: As of `fedpriv.training.work.looked_back`.
        """
        context = self._opened()
        named = find_work(as_works(context.trainer), order.work)
        with looked_back(named, order.key):
            done = summed(
                named,
                params=order.params,
                bound=order.bound,
                data=context.data,
                user_ids=user_ids,
                key=order.key,
            )
        return done.compact()

    def evaluate(self, params: Params, public: bool, part: Part) -> Metrics | None:
        """Return metrics on one part of the examples."""
        return self._opened().measure(params, public=public, part=part)

    def _opened(self) -> WorkerContext:
        assert self._context is not None, "a worker is opened before it works"
        return self._context


def _device(device_ids: Sequence[int | str], logical: bool) -> tuple[str, str]:
    """Return the device for torch and its name for people."""
    if not device_ids:
        return "cpu", "cpu"
    if logical:
        return "cpu", f"logical device {device_ids[0]}: cpu"
    # Ray shows a worker only the GPU that is its own, and so it is the first one there.
    device = usable_device("cuda:0")
    return str(device), f"GPU {device_ids[0]}: {device_description(device)}"


def work_of(data: UserData, user_id: str, max_examples: int) -> int:
    """Return how many examples a user will train on; it only decides who trains it."""
    try:
        return min(data.num_examples(user_id), max_examples)
    except Exception as error:  # where training fails too, the user contributes zero
        end_if_interrupted(error)
        return 1


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
