"""Devices by name, and the threads and freed memory of a process that trains.

The same path serves the CPU, one GPU and the n-th of several. Every training step of a model of a
megabyte or more frees tensors that the next step asks for again; glibc returns such memory to the
system at once, and every page is faulted in again: 3,000 to 5,000 faults a user on a CNN of 1.6 M
parameters, a tenth of its training time. `keep_freed_memory` avoids that.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.untrusted_text import is_device_name

if TYPE_CHECKING:
    import torch
    from torch import nn


# Loading it takes seconds, and workers of compiled tasks have no use for it: it is loaded where a
# device is asked for.


def use_one_thread() -> None:
    """Have this process compute on one thread: its torch, once that is loaded, and its backends.

    Sums then do not depend on the machine, and processes side by side do not fight.
    """
    global _on_one_thread
    _on_one_thread = True
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


_MOST_THREADS = 8
_on_one_thread = False


def default_threads() -> int:
    """Return how many threads share a cohort: a core each, at most eight.

    Workers, trials of a study and children of nodes share the cores with others, and have one
    (`use_one_thread`). OMP_NUM_THREADS, the threads of one operation, does not decide it.
    """
    return 1 if _on_one_thread else min(usable_cores(), _MOST_THREADS)


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


def load_optimizers() -> None:
    """Where this process has torch, load what it loads at the first step of an optimiser."""
    torch = sys.modules.get("torch")
    if torch is not None:
        weight = torch.zeros(1, requires_grad=True)
        weight.sum().backward()
        torch.optim.SGD([weight]).step()


def usable_device(name: str) -> torch.device:
    """Return the device of a name such as "cpu", "cuda" (the first) or "cuda:1".

    On a GPU this process's torch is set to compute float32 products in float32 (no TF32) and to
    use deterministic algorithms alone, so that the same arguments give the same bits.

    Raises:
        ValueError: If there is no such kind of device, or not here; says what is missing.
    """
    import torch

    if not is_device_name(name):
        raise ValueError(f"device {name!r:.80} is not one to train on; use 'cpu' or 'cuda:0'")
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            f"device {name!r}: torch {torch.__version__} sees no GPU here; install a build of "
            "torch for your GPU and its driver, or train on the CPU (leave the device out)"
        )
    number = int(index or 0)
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"device {name!r}: there are {torch.cuda.device_count()} GPUs here, numbered from 0"
        )
    found = torch.device("cuda", number)
    _set_up(found)
    return found


def _set_up(device: torch.device) -> None:
    """Have this process's torch give the same bits each time on a GPU, in full float32.

    Raises:
        ValueError: If the GPU was used before under other settings.
    """
    import torch

    # cuBLAS reads it when its handle is made; without it some of its products are not repeatable.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
    try:
        torch.mm(torch.ones(2, 2, device=device), torch.ones(2, 2, device=device))
    except RuntimeError as error:
        raise ValueError(
            f"device {str(device)!r}: a product fails there ({error}); start a new process, in "
            "which nothing has used the GPU before"
        ) from error


def device_description(device: torch.device) -> str:
    """Return what a run's record says of a device: "cpu", or "cuda:0 NVIDIA ..."."""
    if device.type == "cpu":
        return "cpu"
    import torch

    return f"{device} {torch.cuda.get_device_name(device)}"


def bytes_at_once(device: torch.device) -> int:
    """Return how much memory a step over several examples may hold.

    256 MiB on the CPU; a sixteenth of a GPU's memory, whatever else is in it, so that examples go
    through in the same chunks on every GPU of a kind.
    """
    if device.type != "cuda":
        return 256 << 20
    import torch

    return torch.cuda.get_device_properties(device).total_memory // 16


@contextmanager
def kept_bytes(module: nn.Module) -> Iterator[list[int]]:
    """Note within the `with` how many bytes autograd keeps, tensor by tensor, but of parameters."""
    import torch

    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    sizes: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:  # of a transposed one it is the same
            sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the names of malloc.h
_KEPT_BYTES = 128 << 20
_LARGEST_KEPT = 32 << 20


def keep_freed_memory() -> bool:
    """Let this process keep up to 128 MiB of freed memory; return whether that could be said.

    Blocks above 32 MiB still go back at once. Results do not change. Calling it again does
    nothing. Only glibc offers it.
    """
    mallopt = _glibc("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))


def free_memory() -> None:
    """Give freed memory back to the system, where glibc can be asked to."""
    malloc_trim = _glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _glibc(name: str) -> Any:
    if platform.libc_ver()[0] != "glibc":
        return None
    return getattr(ctypes.CDLL(None), name, None)
