"""A child process that computes partial sums and can be killed, without pickle.

It is forked, so it has everything that its parent has, and what it sends back is bytes in the one
form below: a JSON line that describes the tensors, and their bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.sums import PartialSum
from fedpriv.training.devices import use_one_thread
from fedpriv.tree import RowSparse, Tensor

Send = Callable[[bytes], None]
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def can_fork() -> bool:
    """Return whether a child can be forked here and compute.

    Not where there is no `fork` or it is not safe (Windows, macOS), nor once this process has
    opened a GPU, which a child cannot use, nor within a worker of Ray's.
    """
    torch, ray = sys.modules.get("torch"), sys.modules.get("ray")
    if torch is not None and torch.cuda.is_initialized():
        return False
    if ray is not None and getattr(ray, "is_initialized", lambda: False)():
        return False
    return sys.platform.startswith("linux") and hasattr(os, "fork")


class Child:
    """A forked process that runs a function and sends messages.

    It dies with its parent, is the first that a machine short of memory kills, and computes on one
    thread: those of its parent are not there.

    Args:
        target: What it does, given a function that sends bytes.
        memory: Bytes that it may take beyond what it begins with; None for any number.
    """

    def __init__(self, target: Callable[[Send], None], memory: int | None = None) -> None:
        self._reader, writer = Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                self._reader.close()
                _prepare(memory)
                target(writer.send_bytes)
                code = 0
            finally:
                os._exit(code)  # nothing of the parent's is to be ended here
        writer.close()

    def message(self, seconds: float) -> bytes | None:
        """Return what it sent next, or None after so many seconds.

        Raises:
            EOFError: If it has died, or is at its end.
        """
        if not self._reader.poll(max(0.0, min(seconds, threading.TIMEOUT_MAX / 2))):
            return None
        try:
            return self._reader.recv_bytes()
        except OSError as error:
            raise EOFError from error

    def kill(self) -> None:
        """End it, and whatever it has started."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._reader.close()


def _prepare(memory: int | None) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    use_one_thread()
    if memory is not None:
        import resource

        limit = _data_bytes() + memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def encoded(done: PartialSum) -> bytes:
    """Return a partial sum as bytes."""
    said: dict[str, Any] = {
        "num_users": done.num_users,
        "num_failed": done.num_failed,
        "first_error": done.first_error,
        "granularity": None if done.granularity is None else done.granularity.hex(),
        "tensors": [],
    }
    parts: list[bytes] = []
    for name, tensor in done.compact().total.items():
        sparse = isinstance(tensor, RowSparse)
        arrays = (tensor.rows, tensor.values) if sparse else (tensor,)
        parts += [np.ascontiguousarray(array).tobytes() for array in arrays]
        said["tensors"].append(
            {
                "name": name,
                "num_rows": tensor.num_rows if sparse else None,
                "arrays": [[array.dtype.str, list(array.shape)] for array in arrays],
            }
        )
    return b"\n".join([json.dumps(said).encode(), b"".join(parts)])


def decoded(data: bytes) -> PartialSum:
    """Return the partial sum that a child encoded; its arrays are writable copies."""
    line, _, rest = data.partition(b"\n")
    said: Mapping[str, Any] = json.loads(line)
    total: dict[str, Tensor] = {}
    at = 0
    for item in said["tensors"]:
        arrays = []
        for dtype, shape in item["arrays"]:
            count = int(np.prod(shape, dtype=np.int64))
            found = np.frombuffer(rest, np.dtype(dtype), count, at).reshape(shape)
            at += found.nbytes
            arrays.append(found.copy())
        total[item["name"]] = (
            arrays[0]
            if item["num_rows"] is None
            else RowSparse(rows=arrays[0], values=arrays[1], num_rows=item["num_rows"])
        )
    granularity = said["granularity"]
    return PartialSum(
        total=total,
        num_users=said["num_users"],
        num_failed=said["num_failed"],
        first_error=said["first_error"],
        granularity=None if granularity is None else float.fromhex(granularity),
    )
