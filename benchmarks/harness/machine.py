"""The machine and the checkout that figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("fedpriv", "numpy", "numba", "scipy", "torch", "ray")


def describe() -> dict[str, Any]:
    """Return processor, memory, load, versions and commit, to be kept with the results."""
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = Path("/proc/meminfo").read_text().split()[1]
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": cpu[0] if cpu else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(),
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "load_at_start": round(os.getloadavg()[0], 1),
    }


def hardware(machine: dict[str, Any]) -> str:
    """Return what was described of the machine itself, without a full stop."""
    return (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, load {machine['load_at_start']} when it began"
    )


def sentence(machine: dict[str, Any]) -> str:
    """Return the whole description in words; results of before commits were kept have none."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    commit = f" Commit {machine['commit']}." if "commit" in machine else ""
    return (
        f"{hardware(machine)}. Python {machine['python']}, OMP_NUM_THREADS {machine['threads']}, "
        f"{versions}.{commit}"
    )


def _commit() -> str:
    folder = Path(__file__).resolve().parents[1]
    git = ["git", "-C", str(folder)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "../fedpriv"], capture_output=True, text=True
    )
    return head.stdout.strip() + (" with uncommitted changes" if changed.stdout.strip() else "")
