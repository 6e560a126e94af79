"""Worker of another process: it holds a context, trains the users of its shard, measures its share.

Nothing here knows how the worker is reached. A worker context is made where the work is done, from
what can be named: the experiment, its options, the path of a corpus. Users' data are never sent.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpriv.backends.backend import Measure, Order
from fedpriv.sums import PartialSum
from fedpriv.training.devices import device_description, usable_device, use_one_thread
from fedpriv.training.evaluate import Metrics, Part
from fedpriv.training.work import Trainers, UserData, as_works, checking_kept_state, find_work
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Data, trainer and measure of a worker.

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


class Worker:
    """One worker. It does one thing at a time, on one thread.

    Making it does nothing that can fail: what goes wrong in `open` is an error with a text, and
    not to be mistaken for a worker that died.
    """

    _context: WorkerContext

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
            logical: Whether the devices handed out are simulated, to try the placement without any.

        Raises:
            ValueError: If there is no such GPU, or as the worker context does.
        """
        use_one_thread()
        device = description = "cpu"
        if device_ids and logical:
            description = f"logical device {device_ids[0]}: cpu"
        elif device_ids:
            # Ray shows a worker only its own GPU, and so it is the first one there.
            gpu = usable_device("cuda:0")
            device, description = str(gpu), f"GPU {device_ids[0]}: {device_description(gpu)}"
        self._context = make_context(device)
        return Opened(host=platform.node(), process=os.getpid(), device=description)

    def partial_sum(self, order: Order, user_ids: Sequence[str]) -> PartialSum:
        """Return one sum over these users, stored by rows where that is smaller.

        Raises:
            KeepsStateError: As of `fedpriv.training.work.checking_kept_state`.
        """
        works = as_works(self._context.trainer)
        with checking_kept_state(find_work(works, order.work), order.key):
            done = order.sum_of(works, self._context.data, user_ids)
        return done.compact()

    def evaluate(self, params: Params, public: bool, part: Part) -> Metrics | None:
        """Return metrics on one part of the examples."""
        return self._context.measure(params, public=public, part=part)
