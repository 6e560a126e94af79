"""Which kernels are compiled on this machine, and how a process has them all before it forks."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_ROOM = __name__.rpartition(".")[0]


def load_compiled() -> tuple[str, ...]:
    """Import the kernels whose compiled code is on disk; return the names of those that are new.

    A kernel that was never compiled here would be by its import, which takes seconds; it is left to
    whoever needs it.
    """
    places = [_HERE / "__pycache__"]
    if shared := os.environ.get("NUMBA_CACHE_DIR"):
        places += Path(shared).glob(f"{_HERE.name}_*")
    found = {path.name.partition(".")[0] for place in places for path in place.glob("*.nbi")}
    new = [f"{_ROOM}.{name}" for name in sorted(found) if (_HERE / f"{name}.py").exists()]
    new = [name for name in new if name not in sys.modules]
    for name in new:
        importlib.import_module(name)
    return tuple(new)
