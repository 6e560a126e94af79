"""Libraries that are untyped, those that only an extra of fedpriv brings, and PyTorch's threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def library(name: str) -> Any:
    """Return a module by its name, such as "scipy.signal"; what it holds is `Any`."""
    return import_module(name)


def need(module: str, extra: str, wanted_by: str) -> None:
    """Refuse to go on without a library that an extra of fedpriv brings.

    Where fedpriv is installed pip takes that installation and adds the extra's packages alone.

    Args:
        module: Top-level name that is imported next.
        extra: Of pyproject.toml.
        wanted_by: What cannot be done without, as the beginning of the sentence.

    Raises:
        ValueError: If it is not installed; in one line, with the command that installs it.
    """
    if find_spec(module) is None:
        raise ValueError(
            f"{wanted_by} needs {module}, which is not installed; run "
            f"pip install 'fedpriv[{extra}]'"
        )


_LOCK = threading.Lock()
_WITHIN: list[int] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, in each of the threads that are within at the same time.

    How an operation is split among threads shows in its last bits. PyTorch's number of threads is
    partly the process's, so the last to leave puts it back.
    """
    import torch  # a process that needs none of it does without

    with _LOCK:
        _WITHIN.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            before = max(_WITHIN)
            _WITHIN.pop()
            if not _WITHIN:
                torch.set_num_threads(before)
