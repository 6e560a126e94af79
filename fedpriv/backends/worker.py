"""Worker of another process: the oracle over the users of its shard, and a share of a measurement.

Nothing here knows how the worker is reached. What it works with is opened where the work is done,
from what can be named: the experiment, its options, the path of a corpus. Users' data are never
sent.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpriv.backends.in_process import SerialBackend
from fedpriv.sums import PartialSum, merged
from fedpriv.training.devices import device_description, usable_device, use_one_thread
from fedpriv.training.evaluate import Metrics, Part
from fedpriv.training.work import Attempt, SumRequest
from fedpriv.tree import Params

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
