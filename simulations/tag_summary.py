"""Markdown and a plot of the tag-prediction results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import t as student

from fedpriv.privacy.accounting import rounded_up_to
from simulations.tag_grid import METHODS, SETTINGS, TUNING_SEED

INPUTS = {"tff": "TFF inputs", "unit-norm": "unit-norm inputs"}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half-width of its 95 % t-interval (0 for a single value)."""
    if len(values) < 2:
        return mean(values), 0.0
    width = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return mean(values), width


def figures(
    results: Sequence[dict[str, Any]], setting: str, inputs: str, method: str
) -> tuple[float, float] | None:
    """Return mean and half-width of a cell in percent, or None where nothing was run."""
    values = [
        100 * r["accuracy"]
        for r in results
        if (r["setting"], r["inputs"], r["method"]) == (setting, inputs, method)
    ]
    return interval(values) if values else None


def table(results: Sequence[dict[str, Any]], settings: Sequence[str]) -> str:
    """Return a Markdown table: a row for each method, a column for each setting and input."""
    columns = [(s, i) for i in INPUTS for s in settings]
    short = {"private-8": "ε = 8", "private-2": "ε = 2", "paper": "σ = 0.3"}
    head = ["accuracy, %"] + [f"{INPUTS[i]}, {short[s]}" for s, i in columns]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * len(columns) + "|"]
    tops = {
        column: max(
            (
                f[0]
                for m in METHODS
                if METHODS[m].options.get("noise") != "none"
                and (f := figures(results, *column, m)) is not None
            ),
            default=math.nan,
        )
        for column in columns
    }
    for method, described in METHODS.items():
        cells = []
        for column in columns:
            found = figures(results, *column, method)
            if found is None:
                cells.append("–")
                continue
            text = f"{found[0]:.1f} ± {found[1]:.1f}"
            cells.append(f"**{text}**" if found[0] == tops[column] else text)
        lines.append(f"| {described.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def statement(results: Sequence[dict[str, Any]], setting: str) -> str:
    """Return the ε of a setting with everything that belongs to it."""
    one = next((r for r in results if r["setting"] == setting and r["epsilon"] is not None), None)
    if one is None:
        return "not run"
    return (
        f"ε = {rounded_up_to(one['epsilon'], 4):.4g} by {one['accountant']} "
        f"(RDP: {rounded_up_to(one['epsilon_rdp'], 4):.4g}) at "
        f"δ = {one['delta']:.3g}, {one['unit']}-level, {one['relation']}, Poisson cohorts, noise "
        f"multiplier {one['noise_multiplier']:.4f}; simulated (seeded noise)"
    )


def write_tables(
    results: Sequence[dict[str, Any]], tuning: Sequence[dict[str, Any]], out: Path
) -> None:
    """Write `tags.md` and `tags.svg`."""
    seeds = sorted({r["seed"] for r in results})
    parts = [
        "# Tag prediction by user",
        "Answers on Startups (CC BY-SA 3.0, its contributors), accuracy on held-out examples of "
        f"rostered users after the last round: mean over seeds {', '.join(map(str, seeds))} ± "
        "half the 95 % t-interval. These accuracies, and the tuning on seed "
        f"{TUNING_SEED} that chose each configuration from the committed grid, look at private "
        "data and are not covered by ε. Bold: best private figure of a column.",
        "## Where privacy is real",
        "\n".join(f"- {statement(results, s)}" for s in ("private-8", "private-2")),
        table(results, ("private-8", "private-2")),
        "## The paper's setting: no meaningful protection",
        f"- {statement(results, 'paper')}",
        table(results, ("paper",)),
        "## Chosen configurations",
        chosen(results),
        "## The grid",
        f"{len(tuning)} tuning runs; all of them are in `tag-tuning.jsonl`.",
        grid_counts(tuning),
    ]
    (out / "tags.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    plot(results).savefig(out / "tags.svg")


def chosen(results: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of the configuration behind every cell."""
    seen: dict[tuple[str, str, str], str] = {}
    for r in results:
        options = ", ".join(f"{k} {v}" for k, v in r["options"].items())
        seen[r["setting"], r["inputs"], r["method"]] = options
    lines = ["| setting | inputs | method | options |", "|---|---|---|---|"]
    order = list(METHODS)
    for (s, i, m), options in sorted(seen.items(), key=lambda x: (*x[0][:2], order.index(x[0][2]))):
        lines.append(f"| {s} | {i} | {METHODS[m].title} | {options} |")
    return "\n".join(lines)


def grid_counts(tuning: Sequence[dict[str, Any]]) -> str:
    """Return how many configurations each method was given, and the best tuning accuracy."""
    lines = [
        "| setting | inputs | method | configurations | best on the tuning seed, % |",
        "|---|---|---|---:|---:|",
    ]
    for setting in SETTINGS:
        for inputs in INPUTS:
            for method in METHODS:
                mine = [
                    100 * (r["accuracy"] or 0)
                    for r in tuning
                    if (r["setting"], r["inputs"], r["method"]) == (setting, inputs, method)
                ]
                if mine:
                    lines.append(
                        f"| {setting} | {inputs} | {METHODS[method].title} | {len(mine)} "
                        f"| {max(mine):.1f} |"
                    )
    return "\n".join(lines)


def plot(results: Sequence[dict[str, Any]]) -> Figure:
    """Return bars with intervals, one panel for each setting."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    names = [m for m in METHODS]
    panels = figure.subplots(1, len(SETTINGS), sharex=True, sharey=True)
    heights = {"tff": -0.2, "unit-norm": 0.2}
    colours = {"tff": "#3b6ea5", "unit-norm": "#d98c3f"}
    titles = {
        "private-8": "ε = 8",
        "private-2": "ε = 2",
        "paper": "paper's setting\n(no meaningful protection)",
    }
    for axis, setting in zip(panels, SETTINGS, strict=True):
        for inputs, shift in heights.items():
            for row, method in enumerate(names):
                found = figures(results, setting, inputs, method)
                if found is None:
                    continue
                private = METHODS[method].options.get("noise") != "none"
                axis.barh(
                    row + shift,
                    found[0],
                    0.38,
                    xerr=found[1] or None,
                    color=colours[inputs],
                    alpha=1.0 if private else 0.4,
                    label=INPUTS[inputs] if row == 0 else None,
                    error_kw={"lw": 1, "ecolor": "#333333"},
                )
        axis.set_title(titles[setting], fontsize=11)
        axis.set_xlabel("accuracy, %")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", lw=0.4, alpha=0.6)
        axis.set_axisbelow(True)
    panels[0].set_yticks(range(len(names)), [METHODS[m].title for m in names])
    panels[0].invert_yaxis()
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False
    )
    return figure
