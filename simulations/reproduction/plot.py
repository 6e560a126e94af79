"""Plots of tables (dots next to the paper's) and of figures (curves with a band)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from simulations.reproduction.items import Block, Table
from simulations.reproduction.page import (
    Found,
    epsilons,
    heading,
    measured,
    spread,
    values,
)
from simulations.reproduction.runs import Done, curve_of, reported_runs
from simulations.reproduction.study import bars, drawing, note_below, save

#: Distinct to most people who do not tell red from green: Okabe and Ito, "Color Universal
#: Design" (2008), without their yellow, which is too light on white. Marks and dashes differ too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKS = ("o", "s", "^", "v", "D", "P", "X")
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
_SHADE = "#ececec"
#: Small letters below a drawing, an inch.
_LETTERS = 16
#: A column has more ε than a reader of a picture wants; the page has them all.
_MOST_EPSILONS = 3


def draw(
    table: Table, done: Done, path: Path, *, seeds: Sequence[int], reduced: bool = False
) -> None:
    """Draw a table or figure into a PNG or SVG file.

    A table is one line a method: the paper's value a hollow diamond, ours a mark a column with its
    spread over seeds, in panels where its layout has them. A figure is a panel a column: means over
    seeds with a band of one standard deviation. What is not private is shaded, or dotted; every ε
    is written below.

    Args:
        table: What is drawn.
        done: Runs by identity.
        path: Where to, ending in .png or .svg; folders are made. The same runs give the same SVG.
        seeds: Which are reported.
        reduced: Whether they are of the reduced size.

    Raises:
        ValueError: If a run is missing.
    """
    found = reported_runs(table, done, seeds=seeds, reduced=reduced)
    title = heading(table, found) + (", reduced size" if reduced else "")
    picture, entries = _dots(table, found) if table.kind == "table" else _curves(table, found)
    # The title is the legend's: above each other they would be laid over each other.
    picture.legend(
        handles=entries,
        loc="outside upper center",
        ncols=_abreast([entry.get_label() for entry in entries], picture.get_figwidth()),
        frameon=False,
        fontsize=9,
        title=textwrap.fill(title, int(9 * picture.get_figwidth())),
        title_fontproperties={"size": 12, "weight": "bold"},
    )
    below = [_spread_words(table, len(seeds)), *_epsilons_below(table, found)]
    wide = int(_LETTERS * picture.get_figwidth())
    note_below(picture, "\n".join(textwrap.fill(line, wide) for line in below))
    save(picture, path, name=table.name)


def _abreast(labels: Sequence[str], width: float) -> int:
    """Return how many entries of a legend stand side by side in a width in inches."""
    one = 0.8 + 0.075 * max(map(len, labels))  # its mark, and letters of size 9
    return max(1, min(3, len(labels), int(width / one)))


def _dots(table: Table, found: Found) -> tuple[Any, list[Any]]:
    labels = [row.label for row in table.rows]
    panels = table.layout.panels or (Block(title="", columns=table.columns),)
    picture = drawing(
        8.0 if len(panels) == 1 else 2.5 + 3.2 * len(panels),
        1.9 + 0.34 * len(labels) + 0.2 * len(table.columns),
    )
    row = picture.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    entries: dict[str, Any] = {}
    for axes, block in zip(row, panels, strict=True):
        for entry in _panel(axes, table, found, block):
            entries.setdefault(entry.get_label(), entry)
        better = "right" if table.measure.higher_is_better else "left"
        words = f"{measured(table)} on {table.measured_on}, {better} is better"
        axes.set_xlabel(textwrap.fill(words, 36 if block.title else 90))
    if any(_without_guarantee(found, label) for label in labels):
        shade = row[0].fill_between([], [], color=_SHADE, label="not private")
        entries[shade.get_label()] = shade
    row[0].set_yticks(range(len(labels)), [textwrap.fill(label, 34) for label in labels])
    row[0].set_ylim(len(labels) - 0.5, -0.5)
    return picture, list(entries.values())


def _panel(axes: Any, table: Table, found: Found, block: Block) -> list[Any]:
    """Draw columns that stand together and return what a legend says of them."""
    for place, row in enumerate(table.rows):
        if _without_guarantee(found, row.label):
            axes.axhspan(place - 0.5, place + 0.5, color=_SHADE, linewidth=0, zorder=0)
    entries = []
    printed = [(row.paper, place) for place, row in enumerate(table.rows) if row.paper is not None]
    if printed:
        dots = axes.scatter(
            *zip(*printed, strict=True),
            s=62,
            marker="D",
            facecolors="none",
            edgecolors="#000000",
            linewidths=1.3,
            label="the paper",
            zorder=2,
        )
        entries.append(dots)
    for index, (column, name) in enumerate(block.columns.items()):
        shift = 0.44 * ((index + 0.5) / len(block.columns) - 0.5)
        entries.append(_column_dots(axes, table, found, column, name, index, shift))
    if block.title:
        axes.set_title(block.title, fontsize=10)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    _bare(axes)
    return entries


def _column_dots(
    axes: Any,
    table: Table,
    found: Found,
    column: str,
    name: str,
    index: int,
    shift: float,
) -> Any:
    colour, mark = _COLOURS[index % len(_COLOURS)], _MARKS[index % len(_MARKS)]
    x, y, error = [], [], []
    for place, row in enumerate(table.rows):
        if (row.label, column) not in found:
            continue
        numbers = values(found[row.label, column], table)
        if not all(map(math.isfinite, numbers)):
            axes.annotate(
                "diverged",
                (0.01, place + shift),
                xycoords=("axes fraction", "data"),
                color=colour,
                fontsize=8,
                va="center",
            )
            continue
        x.append(mean(numbers))
        y.append(place + shift)
        error.append(spread(numbers, table) if len(numbers) > 1 else 0.0)
    return axes.errorbar(
        x, y, xerr=bars(x, error, _most(table)), fmt=mark, color=colour, markersize=5.5,
        capsize=2.5, label=name, zorder=3,
    )  # fmt: skip


def _curves(table: Table, found: Found) -> tuple[Any, list[Any]]:
    panels = len(table.columns)
    width = max(7.0, 4.6 * panels)
    labels = [f"{row.label} †" for row in table.rows]
    abreast = _abreast(labels, width)
    rows_of_legend = math.ceil(len(labels) / abreast)
    picture = drawing(width, 4.3 + 0.22 * (rows_of_legend + panels))
    axes = picture.subplots(1, panels, sharey=True, squeeze=False)[0]
    entries: dict[str, Any] = {}
    for panel, (column, name) in zip(axes, table.columns.items(), strict=True):
        for index, row in enumerate(table.rows):
            if (row.label, column) in found:
                line = _curve(panel, table, found[row.label, column], index)
                line.set_label(row.label + (" †" if _without_guarantee(found, row.label) else ""))
                entries.setdefault(row.label, line)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("round" if _of_users(found) else "step")
        panel.grid(color="#dddddd", linewidth=0.8)
        panel.set_axisbelow(True)
        _bare(panel)
    axes[0].set_ylabel(textwrap.fill(f"{measured(table)} on {table.measured_on}", 40))
    return picture, list(entries.values())


def _most(table: Table) -> float:
    """Return the largest value that the measure can have; infinite where there is none."""
    return table.scale if table.measure.form == "share" else math.inf


def _of_users(found: Found) -> bool:
    return any(row["unit"] == "user" for rows in found.values() for row in rows)


def _curve(panel: Any, table: Table, rows: Sequence[Mapping[str, Any]], index: int) -> Any:
    """Draw one method and return its line; where a seed diverged there is a gap."""
    # The seeds of a cell are measured at the same steps.
    curves = [curve_of(row, table.measure) for row in rows]
    steps = [step for step, _ in curves[0]]
    tracks = np.array(
        [[np.nan if value is None else value for _, value in curve] for curve in curves],
        dtype=float,
    )
    tracks = table.scale * np.where(np.isfinite(tracks), tracks, np.nan)
    middle = tracks.mean(axis=0)
    colour = _COLOURS[index % len(_COLOURS)]
    if len(rows) > 1:
        below, above = bars(middle, tracks.std(axis=0, ddof=1), _most(table))
        panel.fill_between(
            steps, middle - below, middle + above, color=colour, alpha=0.18, linewidth=0
        )
    [line] = panel.plot(
        steps,
        middle,
        color=colour,
        linestyle=_DASHES[index % len(_DASHES)],
        marker=_MARKS[index % len(_MARKS)],
        markevery=max(1, len(steps) // 8),
        markersize=4.5,
        linewidth=1.7,
    )
    return line


def _bare(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _without_guarantee(found: Found, label: str) -> bool:
    """Return whether a method has no ε in some column."""
    return any(own == label and rows[0]["epsilon"] is None for (own, _), rows in found.items())


def _spread_words(table: Table, num_seeds: int) -> str:
    if num_seeds == 1:
        return "One seed."
    shape = "Bars" if table.kind == "table" else "Bands"
    kind = "one standard deviation"
    if table.layout.spread == "interval":
        kind = "half the 95 % t-interval"
    return f"Mean of {num_seeds} seeds. {shape}: ± {kind}."


def _epsilons_below(table: Table, found: Found) -> list[str]:
    """Return what is written below: every column's ε with what makes it mean something."""
    lines: list[str] = []
    if table.kind == "figure" and any(_without_guarantee(found, row.label) for row in table.rows):
        lines.append("† not private")
    for column, name in table.columns.items():
        labels_of = epsilons(found, column)
        private = [text for text in labels_of if not text.startswith("∞")]
        if not private:
            text = "no ε, not private"
        elif len(private) > _MOST_EPSILONS:
            text = f"{len(private)} values of ε; the page has them"
        else:
            text = "ε = " + "; or ε = ".join(private)
        lines.append(f"{name}: {text}.")
    return lines
