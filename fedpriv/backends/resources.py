"""What a run asks of machines, and what each worker gets of them; decided before any is started."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_A_CORE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run asks for.

    Attributes:
        workers: How many; None for one a core, or as many as the GPUs hold.
        gpus_per_worker: The part of a GPU that each gets, such as 0.5 or 1; 0 for none.
        address: A running Ray cluster to join, as `host:port` or "auto"; None starts Ray here.
        logical_gpus: Pretend that this machine has so many GPUs, all of them its CPU: a way to try
            the placement of workers without any.
    """

    workers: int | None = None
    gpus_per_worker: float = 0.0
    address: str | None = None
    logical_gpus: int = 0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers {self.workers} must be at least 1")
        if not 0 <= self.gpus_per_worker <= 1:
            raise ValueError(
                f"gpus-per-worker {self.gpus_per_worker:g} must be from 0 to 1: a worker uses "
                "one GPU or a part of it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What every worker gets.

    Attributes:
        num_workers: How many there are.
        num_cpus: Cores of each; less than one where workers share cores.
        num_gpus: GPUs of each.
        logical: Whether those GPUs are made up.
    """

    num_workers: int
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    logical: bool = False


def share_of(request: Request, machines: Sequence[Mapping[str, float]]) -> Share:
    """Return what each worker gets of these machines.

    A worker has a core of its own. Only on this machine alone may there be more workers than
    cores, where that was asked for or the GPUs make it so; they then share the cores.

    Args:
        request: What is asked.
        machines: For each, how many "CPU" and "GPU" it has.

    Raises:
        ValueError: If it cannot be had; says what is missing.
    """
    cpus = sum(machine.get("CPU", 0.0) for machine in machines)
    gpus = sum(machine.get("GPU", 0.0) for machine in machines)
    where = "this machine" if request.address is None else f"the cluster at {request.address}"
    part, wanted, num_cpus = request.gpus_per_worker, request.workers, 1.0
    if part and gpus < 1:
        raise ValueError(
            f"gpus-per-worker {part:g} asks for GPUs, but {where} has none; leave it out to "
            "train on CPUs"
        )
    if request.address is None:
        if wanted is None:
            wanted = sum(_room(m, None, part) for m in machines) if part else int(cpus)
        if wanted > _MOST_A_CORE * cpus:
            raise ValueError(
                f"workers {wanted} on {cpus:g} cores: at most {_MOST_A_CORE} can share one, and "
                "one a core is quickest; ask for fewer"
            )
        num_cpus = min(1.0, math.floor(1e4 * cpus / wanted) / 1e4)  # Ray counts in such steps
    most = sum(_room(machine, num_cpus, part) for machine in machines)
    if most < (wanted or 1):
        each = f"1 CPU and {part:g} GPU" if part else "1 CPU"
        raise ValueError(
            f"workers {wanted or 1}: each needs {each}, but {where} has {cpus:g} CPUs and "
            f"{gpus:g} GPUs, enough for {most}; ask for fewer"
        )
    return Share(
        num_workers=wanted or most,
        num_cpus=num_cpus,
        num_gpus=part,
        logical=request.logical_gpus > 0,
    )


def _room(machine: Mapping[str, float], num_cpus: float | None, num_gpus: float) -> int:
    """Return how many workers one machine holds; a worker's part is of a single GPU."""
    rooms = []
    if num_cpus is not None:
        rooms.append(int(machine.get("CPU", 0.0) / num_cpus + 1e-9))
    if num_gpus:
        rooms.append(int(machine.get("GPU", 0.0)) * int(1 / num_gpus + 1e-9))
    return min(rooms)


def this_machine(request: Request) -> dict[str, float]:
    """Return this machine's resources: the cores this process may use, and its GPUs."""
    gpus = request.logical_gpus
    if request.gpus_per_worker and not gpus:
        import torch

        gpus = torch.cuda.device_count()
    return {"CPU": float(usable_cores()), "GPU": float(gpus)}


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = Path("/sys/fs/cgroup/cpu.max")
    try:
        allowed, period = quota.read_text("ascii").split()
        cores = min(cores or 1, max(1, int(int(allowed) / int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        pass
    return cores or 1
