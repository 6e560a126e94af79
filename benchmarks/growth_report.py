"""The tables of `growth.py`, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

Results = dict[str, Any]
Rows = list[dict[str, Any]]

_PACKAGES = ("fedpriv", "numpy", "numba", "scipy", "torch", "ray")


def describe_machine() -> dict[str, Any]:
    """Return processor, memory, load and versions."""
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
        "cpu": cpu[0] if cpu else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "load_at_start": round(os.getloadavg()[0], 1),
    }


def write_markdown(results: Results) -> str:
    """Return the results as a page."""
    parts = [
        "# How a round grows",
        "Everything here is measured on **synthetic** corpora, made by a generator "
        "(`benchmarks/growth.py`): speed and memory mean something, accuracies would not. Seconds "
        "are of steady rounds without evaluation, ledger and checkpoints synced to disk; each row "
        "is a process of its own. Memory is the PSS of its whole process tree.",
    ]
    if "machine" in results:
        parts.append(_machine(results["machine"]))
    titles = {
        "cohort": "Cohort",
        "users": "Users",
        "params": "Parameters",
        "workers": "Workers",
    }
    for panel, title in titles.items():
        if results.get(panel):
            parts += [f"## {title} (synthetic)", _table(results[panel])]
    if results.get("equal"):
        parts += ["## A user's cost among many users and among few (synthetic)", _equal(results)]
    if results.get("endurance"):
        parts += ["## Endurance (synthetic)", *map(_endurance, results["endurance"])]
    return "\n\n".join(parts) + "\n"


def _machine(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}, OMP_NUM_THREADS {machine['threads']}, "
        f"load {machine['load_at_start']} when it began. {versions}."
    )


def _table(rows: Rows) -> str:
    lines = [
        "| users | cohort | parameters | engine | ms a round (quartiles) | ms a user | "
        "CPU ms a user | memory, MiB (highest) | ready after, s |",
        "|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "skipped" in row:
            lines.append(
                f"| – | {row['cohort']:,} | – | {engine_of(row)} | "
                f"skipped: {row['skipped']} | | | | |"
            )
            continue
        low, high = row["quartiles"]
        lines.append(
            f"| {row['users']:,} | {row['cohort']:,} | {row['num_params']:,} | "
            f"{engine_of(row)} | {_ms(row['median'])} ({_ms(low)}–{_ms(high)}) | "
            f"{_ms(row['median'] / row['cohort'])} | {_ms(row['round_cpu_per_user'])} | "
            f"{row['pss_mib']['total']:,.0f} ({row['peak_pss_mib']:,.0f}) | "
            f"{row['ready_seconds']:.1f} |"
        )
    return "\n".join(lines)


def _equal(results: Results) -> str:
    lines = [
        "Users of the same size and the same model; runs alternate. *Work* is the CPU time inside "
        "`partial_sum`; *round* is the CPU time of the whole process, over the users drawn.",
        "",
        "| users | cohort | work, CPU ms a user | round, CPU ms a user | highest memory, MiB |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in results["equal"]:
        lines.append(
            f"| {row['users']:,} | {row['cohort']:,} | {_ms(row['cpu_per_user'])} | "
            f"{_ms(row['round_cpu_per_user'])} | {row['peak_pss_mib']:,.0f} |"
        )
    ratios = results["equal_ratios"]
    lines += [
        "",
        f"Many over few, medians: work {ratios['work']:.3f} at the same cohort and "
        f"{ratios['work_large_cohort']:.3f} at the large one; round {ratios['round']:.3f} at the "
        "same cohort (asked: within 10 %).",
    ]
    return "\n".join(lines)


def _endurance(row: dict[str, Any]) -> str:
    looks, every = row["looks"], row["look_every"]
    some = max(len(looks) // 4, 1)

    def change(kind: str) -> str:
        first, last = (
            median(look["pss_mib"][kind] for look in part) for part in (looks[:some], looks[-some:])
        )
        return f"{first:,.0f} to {last:,.0f} MiB, {last / first - 1:+.1%}"

    lines = [
        f"**Noise {row['noise']}.** {row['rounds']:,} rounds after {row['warm_up']} to warm up, "
        f"cohort {row['cohort']:,} of {row['users']:,} synthetic users, {row['num_params']:,} "
        f"parameters, {row['engine']} engine, evaluated every {every} rounds: median "
        f"{_ms(row['median'])} ms a round.",
        "",
        "Growth between rounds, medians of the first and the last quarter of the table (asked: "
        f"below 2 %): **anonymous {change('anonymous')}**; mapped files {change('files')}; "
        f"together {change('total')}. Anonymous memory is what a leak would show in. The kernel "
        "takes back pages of mapped files when it likes, so where those fall the total "
        f"hides growth and is no verdict. Highest ever {row['peak_pss_mib']:,.0f} MiB, "
        "evaluation included (asked: below 4,096).",
        "",
        _machine(row["machine"]),
        "",
        "| rounds | highest memory, MiB | between rounds, MiB | anonymous | mapped files "
        "| ms a round |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for number, look in enumerate(looks, start=1):
        pss = look["pss_mib"]
        lines.append(
            f"| {number * every:,} | {look['peak_mib']:,.0f} | {pss['total']:,.0f} | "
            f"{pss['anonymous']:,.0f} | {pss['files']:,.0f} | {_ms(look['median'])} |"
        )
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def engine_of(row: dict[str, Any]) -> str:
    """Return a row's engine and its number of workers, in words."""
    return f"{row['engine']} x {row['workers']}"
