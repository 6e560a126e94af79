"""Resources of a run, and Ray, which is started or joined for it and stopped after it.

Each worker's share is decided before anything is started; Ray is only imported when that happens.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import shutil
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedpriv.libraries import need
from fedpriv.training import stopping
from fedpriv.training.devices import usable_cores

_MIB = 1 << 20
_FREE_SECONDS = 10.0
_KNOCK_SECONDS = 10.0
_MOST_A_CORE = 1000
#: One thread a worker: sums do not depend on the machine, and workers do not fight for cores.
_WORKER_ENVIRONMENT = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
}
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's default is 15: anything else that computes on the machine would push workers aside.
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Resources that a run requests.

    Attributes:
        workers: How many; None for one a core, or as many as the GPUs hold.
        gpus_per_worker: The part of a GPU that each gets, such as 0.5 or 1; 0 for none.
        address: A running Ray cluster to join, as `host:port` or "auto"; None starts Ray here.
        logical_gpus: Pretend that this machine has so many GPUs, all of them its CPU: a way to try
            the placement of workers without any.
        device: "cpu" trains many users at once, as on a GPU, where workers have none; None for what
            is quickest on a processor.
    """

    workers: int | None = None
    gpus_per_worker: float = 0.0
    address: str | None = None
    logical_gpus: int = 0
    device: str | None = None

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
    """Share of the resources that every worker gets.

    Attributes:
        num_workers: How many there are.
        num_cpus: Cores of each; less than one where workers share cores.
        num_gpus: GPUs of each.
        logical: Whether those GPUs are simulated.
        device: As of `Request`.
    """

    num_workers: int
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    logical: bool = False
    device: str | None = None


def share_of(request: Request, machines: Sequence[Mapping[str, float]]) -> Share:
    """Return what each worker gets of these machines.

    Each worker has one core. Only on this machine alone may there be more workers than
    cores, where that was asked for or the GPUs make it so; they then share the cores.

    Args:
        request: What is asked.
        machines: For each, how many "CPU" and "GPU" it has.

    Raises:
        ValueError: If it cannot be had; names what is missing.
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
        device=request.device,
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


class Cluster:
    """Ray, for as long as a run needs it. Use it as a context manager.

    Making it decides what every worker gets, which joins a cluster that was named but starts
    nothing. `start` starts Ray on this machine, unless one was joined. Leaving the context stops
    what was started; a joined cluster goes on.

    Args:
        request: What the run asks for.
        tell: Called with lines of progress.

    Raises:
        ValueError: If the request cannot be met, or Ray is not installed.

    Attributes:
        share: What every worker gets.
        tell: As given.
    """

    def __init__(
        self, request: Request, *, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.tell = tell
        self._folder: str | None = None
        self._connected = False
        self._before_sigterm: Any = None
        need("ray", "ray", "the backend ray")
        if request.address is None:
            self._here = this_machine(request)
            self.share = share_of(request, [self._here])
            if self.share.num_cpus < 1:
                tell(f"{self.share.num_workers} workers share {self._here['CPU']:g} cores")
        else:
            self._join(request.address)
            try:
                self.share = share_of(request, _machines())
                _wait_until_free(self.share, request.address)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self, num_bytes: int) -> None:
        """Start Ray here, without its dashboard; does nothing where a cluster was joined.

        Args:
            num_bytes: Of the model's params; the object store gets room for a few rounds' objects.
        """
        if self._connected:
            return
        began, number = time.perf_counter(), self.share.num_workers
        self.tell(f"starting Ray for {number} worker{'s' * (number > 1)}")
        parent = tempfile.gettempdir()
        # Ray's sockets lie in there, and the system allows their paths 107 characters.
        self._folder = tempfile.mkdtemp(prefix="fedpriv-", dir="/tmp" if len(parent) > 30 else None)
        self._connect(
            address="local",
            num_cpus=math.ceil(self.share.num_cpus * self.share.num_workers),
            num_gpus=int(self._here["GPU"]),
            include_dashboard=False,
            object_store_memory=store_bytes(num_bytes, self.share.num_workers),
            _temp_dir=self._folder,
        )
        self.tell(f"Ray took {time.perf_counter() - began:.1f} s to start")

    def _join(self, address: str) -> None:
        try:
            _knock(address)
            self._connect(address=address, runtime_env={"env_vars": _WORKER_ENVIRONMENT})
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"no Ray cluster answers at --ray-address {address} ({error}); start one with "
                "`ray start --head`, or leave the option out to start Ray here"
            ) from error

    def _connect(self, **arguments: Any) -> None:
        with _environment(_WORKER_ENVIRONMENT | _RAY_ENVIRONMENT), _without_warnings():
            import ray

            if ray.is_initialized():
                raise ValueError(
                    "Ray is running in this process already; call ray.shutdown() first"
                )
            _silence(ray)
            self._before_sigterm = signal.getsignal(signal.SIGTERM)
            self._connected = True  # from here on, what there is of it is taken down again
            try:
                ray.init(**arguments, log_to_driver=False, logging_level=logging.ERROR)
            except BaseException:
                self.close()
                raise
        stopping.install()

    def close(self) -> None:
        """Stop what was started, and leave what was joined."""
        if self._connected:
            import ray

            with _without_warnings():
                ray.shutdown()
            stopping.restore(self._before_sigterm)
            self._connected = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def store_bytes(num_bytes: int, num_workers: int) -> int:
    """Return the object store's size for a model of so many bytes.

    The params of two rounds, and from every worker one sum, at most twice as wide as the params,
    with as much again for objects that are not freed yet.
    """
    return 100 * _MIB + num_bytes * (2 + 4 * num_workers)


def _knock(address: str) -> None:
    """Raise an error if nothing listens at host:port; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, separator, port = address.rpartition(":")
    if not (separator and port.isdigit()) or "/" in host:
        raise ValueError("an address is host:port, or auto")
    socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()


def _machines() -> list[Mapping[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _wait_until_free(share: Share, address: str) -> None:
    """Wait a little for the share to be free, and raise an error rather than wait for long.

    Raises:
        ValueError: If others keep it.
    """
    import ray

    wanted = {"CPU": share.num_cpus * share.num_workers, "GPU": share.num_gpus * share.num_workers}
    until = time.monotonic() + _FREE_SECONDS
    while True:
        free = ray.available_resources()
        missing = {name: n for name, n in wanted.items() if free.get(name, 0.0) + 1e-6 < n}
        if not missing:
            return
        if time.monotonic() > until:
            left = ", ".join(f"{free.get(k, 0.0):g} of {n:g} {k}s" for k, n in missing.items())
            raise ValueError(
                f"the cluster at {address} is busy: {left} are free; wait for other jobs, or ask "
                "for fewer workers"
            )
        time.sleep(0.2)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore Ray's advice to programmers, and Python's warnings of files that are closed late."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()  # now, and not where the warnings would be somebody else's


def _silence(ray: Any) -> None:
    """Keep Ray from printing on stdout that a worker died: the pool logs it."""
    worker = ray._private.worker
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *arguments, **options: None
