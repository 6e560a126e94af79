"""Noise on the mean over cohort size, one line a number of rounds, as a file of its own."""

from __future__ import annotations

import base64
import itertools
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint, describe_saturation_point
from fedpriv.privacy.plan import unit_words
from fedpriv.report import theme
from fedpriv.report.charts import spread

KINDS = (".svg", ".png", ".html")
_HEIGHT, _DPI = 5.4, 150
#: Least distance of two labels, as a share of the axis.
_LABEL_GAP = 0.045


def write_noise_plot(grid: NoiseGrid, path: Path, planned: NoisePoint | None = None) -> None:
    """Write the plot of a grid into an SVG, PNG or HTML file.

    Both axes are logarithmic. A ring marks each line's saturation point where it lies within the
    cohorts. The same grid gives the same SVG.

    Args:
        grid: What is drawn.
        path: Where to.
        planned: A point of its own, marked as the plan.

    Raises:
        ValueError: As `fedpriv.report.theme.check_plot_file`; or if no cell of the grid has noise
            to draw.
    """
    theme.check_plot_file(path, KINDS)
    if all(point.noise_on_mean is None for point in grid.points):
        raise ValueError(f"nothing to draw: {grid.points[0].reason}")
    match path.suffix.lower():
        case ".png":
            _drawn(grid, planned, theme.LIGHT).savefig(path, dpi=_DPI, format="png")
        case ".svg":
            path.write_bytes(theme.as_svg(_drawn(grid, planned, theme.LIGHT), "noise"))
        case _:
            path.write_text(_page(grid, planned), encoding="utf-8")


def _page(grid: NoiseGrid, planned: NoisePoint | None) -> str:
    light, dark = (
        base64.b64encode(theme.as_svg(_drawn(grid, planned, colours), "noise")).decode()
        for colours in (theme.LIGHT, theme.DARK)
    )
    words = unit_words(grid.unit)
    return theme.render(
        "noise.html.md",
        title="Noise on the mean before a run",
        grid=grid,
        words=words,
        saturation_point=describe_saturation_point(words.drawn),
        light_svg=light,
        dark_svg=dark,
    )


def _drawn(grid: NoiseGrid, planned: NoisePoint | None, colours: Mapping[str, str]) -> Any:
    figure = theme.new_figure(8.0, _HEIGHT, colours)
    axes = theme.plain_axes(figure, (0.09, 0.2, 0.76, 0.66), colours)
    axes.set_xscale("log")
    axes.set_yscale("log")
    turn = unit_words(grid.unit).turn
    ends: list[tuple[float, float, str, str]] = []
    for number, rounds in enumerate(grid.rounds):
        line = [(p.cohort, p.noise_on_mean) for p in grid.line(rounds) if p.noise_on_mean]
        if not line:
            continue
        colour = colours[theme.series(number)]
        x, y = [cohort for cohort, _ in line], [noise for _, noise in line]
        axes.plot(x, y, color=colour, linewidth=2.0, marker="o", markersize=3.6, clip_on=False)
        ends.append((x[-1], y[-1], f"{rounds:,} {turn}s", colour))
        point = grid.saturation_points[number]
        if point.side == "at" and point.cohort is not None:
            axes.plot(
                [point.cohort], [_on_line(line, point.cohort)], marker="o", markersize=11,
                markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.8,
            )  # fmt: skip
    if planned is not None and planned.noise_on_mean is not None:
        where = planned.cohort, planned.noise_on_mean
        axes.plot(*where, marker="*", markersize=13, color=colours["ink"], linestyle="")
    _label_ends(axes, ends)
    _style(figure, axes, grid, planned, colours)
    return figure


def _on_line(line: list[tuple[float, float]], cohort: float) -> float:
    for (left, high), (right, low) in itertools.pairwise(line):
        if cohort <= right:
            share = math.log(cohort / left) / math.log(right / left)
            return high * (low / high) ** share
    return line[-1][1]


def _label_ends(axes: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Write what each line is right of its end, pushed apart where labels would touch."""
    bottom, top = (math.log(limit) for limit in axes.get_ylim())
    ordered = sorted(ends, key=lambda end: end[1])
    shares = [(math.log(y) - bottom) / (top - bottom) for _, y, _, _ in ordered]
    places = spread(shares, _LABEL_GAP)
    for (x, y, label, colour), share, place in zip(ordered, shares, places, strict=True):
        shift = (place - share) * 0.66 * _HEIGHT * 72
        axes.annotate(
            label, (x, y), xytext=(10, shift - 3.5), textcoords="offset points", color=colour,
            fontsize=10, annotation_clip=False,
        )  # fmt: skip


def _style(
    figure: Any, axes: Any, grid: NoiseGrid, planned: NoisePoint | None, colours: Mapping[str, str]
) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    muted, words_for = colours["muted"], unit_words(grid.unit)
    axes.xaxis.set_major_locator(FixedLocator(list(grid.cohorts)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{1e3 * value:g}"))
    axes.grid(axis="y", color=colours["grid"], linewidth=1)
    axes.tick_params(labelsize=10)
    axes.set_xlabel(words_for.drawn, color=muted, fontsize=10)
    figure.text(
        0.03, 0.95, "Noise on the mean per C, in thousandths", fontsize=13, color=colours["ink"],
        weight="bold",
    )  # fmt: skip
    figure.text(
        0.03, 0.905, f"{grid.num_users:,} {grid.unit}s, {grid.privacy}", fontsize=10, color=muted
    )
    words = textwrap.fill(f"Ring = {describe_saturation_point(words_for.drawn)}.", 112)
    if planned is not None and planned.noise_on_mean is not None:
        words += (
            f"\nStar = this plan: {words_for.drawn} {planned.cohort:,g}, {planned.rounds:,} "
            f"{words_for.turn}s."
        )
    figure.text(0.03, 0.03, words, fontsize=8.5, color=muted)
