"""Compiled loops over plain arrays: where memory traffic decides, one pass each.

Compiled by Numba when first called, and kept on disk. NumPy makes a pass over memory for every
operation and SciPy one for every product; a round at five million parameters is bound by such
passes. Every loop releases the interpreter's lock. Importing a kernel loads Numba (half a second),
so it is imported where it is called.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_ROOM = __name__


def load_compiled() -> tuple[str, ...]:
    """Import the kernels whose compiled code is on disk; return the names of those that are new.

    A kernel that was never compiled here would be by its import, which takes seconds; it is left to
    its first use.
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
