"""Ray, started or joined for a run and stopped after it; only imported when that happens."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedpriv.backends.resources import Request, Share, share_of, this_machine
from fedpriv.training import stopping

_MIB = 1 << 20
_FREE_SECONDS = 10.0
_KNOCK_SECONDS = 10.0
#: One thread a worker: sums do not depend on the machine, and workers do not fight for cores.
_WORKER_ENVIRONMENT = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
}
_RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0"}


class Cluster:
    """Ray, for as long as a run needs it. Use it as a context manager.

    Making it decides what every worker gets, which joins a cluster that was named but starts
    nothing. `start` starts Ray on this machine, unless one was joined. Leaving the context stops
    what was started; a joined cluster goes on.

    Args:
        request: What the run asks for.
        tell: Called with a line that says what is going on.

    Raises:
        ValueError: If the request cannot be met.

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
    """Wait a little for the share to be free, and say so rather than wait for long.

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
    """Ignore Ray's advice to programmers, and what Python says of files it lets go of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()  # now, and not where the warnings would be somebody else's


def _silence(ray: Any) -> None:
    """Keep Ray from printing on stdout, where figures go, that a worker died: the pool tells."""
    worker = ray._private.worker
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *arguments, **options: None
