"""The tables of `growth.py`."""

from __future__ import annotations

from typing import Any

from harness.machine import sentence

Results = dict[str, Any]
Rows = list[dict[str, Any]]


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
        parts.append(sentence(results["machine"]))
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
        parts += ["## Endurance (synthetic)", _COUNTED, *map(_endurance, results["endurance"])]
    return "\n\n".join(parts) + "\n"


def _table(rows: Rows) -> str:
    lines = [
        "| users | cohort | parameters | backend | ms a round (quartiles) | ms a user | "
        "CPU ms a user | memory, MiB (highest) | ready after, s |",
        "|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "skipped" in row:
            lines.append(
                f"| – | {row['cohort']:,} | – | {backend_of(row)} | "
                f"skipped: {row['skipped']} | | | | |"
            )
            continue
        low, high = row["quartiles"]
        lines.append(
            f"| {row['users']:,} | {row['cohort']:,} | {row['num_params']:,} | "
            f"{backend_of(row)} | {_ms(row['median'])} ({_ms(low)}–{_ms(high)}) | "
            f"{_ms(row['median'] / row['cohort'])} | {_ms(row['round_cpu_per_user'])} | "
            f"{row['pss_mib']['total']:,.0f} ({row['peak_pss_mib']:,.0f}) | "
            f"{row['ready_seconds']:.1f} |"
        )
    return "\n".join(lines)


def _equal(results: Results) -> str:
    lines = [
        "Users of the same size and the same model; runs alternate. *Work* is the CPU time inside "
        "the backend's `sum`; *round* is the CPU time of the whole process, over the users drawn.",
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


def growth(row: dict[str, Any]) -> str:
    """Return how total PSS and anonymous memory grew from the first look to the last."""
    first, last = row["looks"][0], row["looks"][-1]

    def change(kind: str) -> str:
        a, b = (look["pss_mib"][kind] for look in (first, last))
        return f"{a:,.0f} to {b:,.0f} MiB, {b / a - 1:+.1%}"

    return (
        f"total PSS {change('total')}; anonymous {change('anonymous')} "
        f"(from round {first['rounds']:,} to round {last['rounds']:,} after the warm-up; asked: "
        "below 2 %)"
    )


_COUNTED = (
    "What is counted: the PSS of the process and all it started, read between two rounds, after "
    "one that was evaluated, and after the process gave back freed memory that its allocator kept "
    "for reuse (the highest memory has it). *Anonymous* is memory of the program's own (arrays, "
    "heap, stacks), in which a leak would show. The *total* adds the pages of mapped files "
    "(corpus, libraries) and shared memory; the kernel takes pages of files back when it likes, "
    "so a total that falls proves nothing.\n\n"
    "Of Python's objects a round leaves its charge and its release, about 0.7 KiB, and nothing "
    "else, also where users raise (`tests/running/loop/test_memory.py`). Growth in steps that "
    "end, as in the wide run, is what freed memory kept for reuse looks like. Ray's processes "
    "together grow by about 1.7 MiB in 100 rounds; which of them, was not taken apart. The growth "
    "of the last run was not seen again, at the same size without a fixed noise multiplier. `flwr "
    "run` was not measured over many rounds."
)


def _endurance(row: dict[str, Any]) -> str:
    if "skipped" in row:
        return f"**{row['said']}.** Skipped: {row['skipped']}"
    raising = ", of whom every tenth raises whenever it is drawn" if row["failing"] else ""
    lines = [
        f"**{row['said'][0].upper()}{row['said'][1:]}.** {row['rounds']:,} rounds after "
        f"{row['warm_up']} to warm up, cohort {row['cohort']:,} of {row['users']:,} synthetic "
        f"users{raising}, {row['num_params']:,} parameters, {backend_of(row)}, evaluated every "
        f"{row['look_every']} rounds: median {_ms(row['median'])} ms a round.",
        "",
        f"Growth from the first look to the last: **{growth(row)}**.",
        f"Highest ever {row['peak_pss_mib']:,.0f} MiB, evaluation included (asked: below 4,096).",
        "",
        sentence(row["machine"]),
        "",
        "| rounds | highest memory, MiB | between rounds, MiB | anonymous | mapped files "
        "| ms a round |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for look in row["looks"]:
        pss = look["pss_mib"]
        # No rounds went before the look at 0.
        peak = f"{look['peak_mib']:,.0f}" if "peak_mib" in look else "–"
        speed = _ms(look["median"]) if "median" in look else "–"
        lines.append(
            f"| {look['rounds']:,} | {peak} | {pss['total']:,.0f} | {pss['anonymous']:,.0f} "
            f"| {pss['files']:,.0f} | {speed} |"
        )
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def backend_of(row: dict[str, Any]) -> str:
    """Return a row's backend and its number of workers, in words."""
    return f"{row['backend']} x {row['workers']}"
