"""Memory and CPU time of a process and everything it started (Linux, /proc).

Memory is PSS: a page that n processes share counts 1/n in each, so a sum over processes counts
memory-mapped corpora and shared params once. It includes pages of mapped files, which the kernel
may take back at any time.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> list[int]:
    """Return a process and all it started that still live, as process ids."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found = [root]
    for process in found:
        found.extend(children[process])
    return found


def pss_mib(root: int | None = None) -> dict[str, float]:
    """Return the PSS of a process tree, MiB: "total", and of it "anonymous" and "files"."""
    names = {"Pss": "total", "Pss_Anon": "anonymous", "Pss_File": "files"}
    sums = dict.fromkeys(names.values(), 0.0)
    for process in descendants(root or os.getpid()):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:  # it ended meanwhile
            continue
        for line in lines:
            name, _, rest = line.partition(":")
            if name in names:
                sums[names[name]] += int(rest.split()[0]) / 1024
    return sums


def cpu_seconds(root: int | None = None) -> float:
    """Return the CPU time, user and system, of the processes of a tree that still live."""
    found = [_stat(process) for process in descendants(root or os.getpid())]
    return sum(int(fields[11]) + int(fields[12]) for fields in found if fields) / _TICKS


def _stat(process: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name; None for a process that ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


class Peak:
    """Looks at the tree's memory every so often while a block runs, and keeps the highest.

    Reading takes the process's memory lock for some milliseconds: do not time what runs inside.

    Args:
        seconds: Between two looks.
        root: The tree's process; None for this one.

    Attributes:
        mib: The highest PSS seen.
    """

    def __init__(self, seconds: float = 0.02, root: int | None = None) -> None:
        self.mib, self._root = 0.0, root
        self._seconds, self._done = seconds, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(self._seconds):
            self._look()

    def _look(self) -> None:
        self.mib = max(self.mib, pss_mib(self._root)["total"])
