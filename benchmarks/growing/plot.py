"""The plot of `growth.py`: seconds and memory against what grows."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from growing.report import Results, Rows, backend_of

_COLOURS = {
    "serial x 1": "#1f5fa8",
    "serial x 2": "#7a47a3",
    "ray x 1": "#ad4a10",
    "ray x 2": "#2a7548",
}


def plot(results: Results, file: Path) -> None:
    """Draw seconds and memory against cohort, users, params and workers."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(13, 5.4), sharey="row", height_ratios=(1.5, 1))
    titles = (
        ("cohort", "cohort", "expected users a round"),
        ("users", "users", "users on the roster"),
        ("num_params", "params", "parameters"),
    )
    for column, (field, panel, label) in zip(axes.T, titles, strict=False):
        _lines(column, [r for r in results.get(panel, ()) if "skipped" not in r], field)
        column[0].set_title(_title(panel, results.get(panel, ())), fontsize=9, loc="left")
        column[1].set_xlabel(label)
    _dots(axes[:, 3], [r for r in results.get("workers", ()) if "skipped" not in r])
    axes[0, 3].set_title("workers: 5,000,500 parameters", fontsize=9, loc="left")
    axes[0, 0].set_ylabel("ms a round")
    axes[1, 0].set_ylabel("highest memory, MiB")
    axes[0, 0].set_yscale("log")
    axes[0, 0].yaxis.set_major_formatter("{x:,.0f}")
    axes[1, 0].yaxis.set_major_formatter("{x:,.0f}")
    axes[1, 0].set_ylim(bottom=0)
    if axes[0, 3].lines:
        axes[0, 3].legend(frameon=False, fontsize=8, loc="lower right")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.yaxis.set_minor_formatter("")
        axis.tick_params(labelsize=8)
    figure.suptitle("How a round grows, on synthetic corpora", x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _title(panel: str, rows: Rows) -> str:
    """Return a panel's name and what its rows have in common."""
    done = [row for row in rows if "skipped" not in row]
    said = [panel]
    for field, form in (
        ("users", "{:,} users"),
        ("cohort", "cohort {:,}"),
        ("num_params", "{:,} parameters"),
    ):
        values = {row[field] for row in done}
        if len(values) == 1:
            said.append(form.format(values.pop()))
    return f"{said[0]}: " + ",\n".join(said[1:])


def _lines(column: Any, rows: Rows, field: str) -> None:
    for name, group in groupby(rows, key=backend_of):
        points = sorted(group, key=lambda row: row[field])
        across = [row[field] for row in points]
        style = {"marker": "o", "markersize": 3.5, "color": _COLOURS[name], "label": name}
        column[0].plot(across, [row["median"] * 1000 for row in points], **style)
        low, high = zip(*(row["quartiles"] for row in points), strict=True)
        column[0].fill_between(
            across,
            [seconds * 1000 for seconds in low],
            [seconds * 1000 for seconds in high],
            color=_COLOURS[name],
            alpha=0.2,
            linewidth=0,
        )
        column[1].plot(across, [row["peak_pss_mib"] for row in points], **style)
    ticks = sorted({row[field] for row in rows})
    for axis in column:
        axis.set_xscale("log")
        axis.set_xticks(ticks, [_short(tick) for tick in ticks])
        axis.minorticks_off()


def _dots(column: Any, rows: Rows) -> None:
    jobs = list(dict.fromkeys(row["said"] for row in rows))
    for place, (name, colour) in enumerate(_COLOURS.items()):
        here = [row for row in rows if backend_of(row) == name]
        across = [jobs.index(row["said"]) + (place - 1.5) * 0.12 for row in here]
        style = {"marker": "o", "markersize": 5, "linestyle": "", "color": colour, "label": name}
        column[0].plot(across, [row["median"] * 1000 for row in here], **style)
        column[1].plot(across, [row["peak_pss_mib"] for row in here], **style)
    for axis in column:
        axis.set_xlim(-0.5, len(jobs) - 0.5)
        axis.set_xticks(range(len(jobs)), [job.replace(" of ", "\nof ") for job in jobs])


def _short(number: int) -> str:
    """Return a number as 400, 50 k, 342 k or 20 M."""
    for unit, name in ((1_000_000, " M"), (1_000, " k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number}"
