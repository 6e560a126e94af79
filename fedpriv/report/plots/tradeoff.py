"""A figure against ε: one point a method, between public-only and non-private lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.report.plots.drawing import (
    SENTINELS,
    EndLabel,
    Reference,
    draw_references,
    label_ends,
    marker_html,
    new_axes,
    style_axes,
    to_svg,
)
from fedpriv.untrusted_text import plain, safe

_ENTRY = 20  # height of one line of the drawn legend, in pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one method reached, and for which ε.

    Attributes:
        label: What the legend says.
        epsilon: Finite and positive.
        value: What was reached.
        half_width: Half its interval over seeds; None of a single run.
        colour: A role of the theme.
        hollow: Whether it is drawn empty, as unfinished runs are.
        series: Points of one series differ in nothing but ε, and are joined.
        marker: Its shape, as matplotlib names it, where there are more series than colours.
    """

    label: str
    epsilon: float
    value: float
    half_width: float | None = None
    colour: str = "s1"
    hollow: bool = False
    series: int = 0
    marker: str = "o"


def tradeoff_plot(
    points: Sequence[Point],
    *,
    name: str,
    alternative: str,
    width: int,
    height: int,
    references: Sequence[Reference] = (),
    share: bool = False,
    title: str = "",
    alone: bool = False,
) -> str:
    """Return values against ε, on a scale of doublings, as an `<svg>` element.

    Args:
        points: What is drawn; at least one.
        name: Unique on the page; element ids begin with it.
        alternative: What the plot shows, for those who do not see it; the references are added.
        width: In CSS pixels.
        height: In CSS pixels.
        references: Horizontal lines, labelled in the right margin.
        share: Whether the vertical axis is in percent.
        title: What is written above the legend, in one line or several, and only of a file of its
            own.
        alone: Whether it is a file of its own, with title, legend and light colours.
    """
    below = _ENTRY * (len(_entries(points)) + title.count("\n") + 1) if alone else 0
    axes = new_axes(width, height + below, [r.said for r in references], below=below)
    draw_references(axes, references)
    for members in _series(points):
        joined = sorted(members, key=lambda point: point.epsilon)
        axes.plot(
            [point.epsilon for point in joined],
            [point.value for point in joined],
            color=SENTINELS[joined[0].colour],
            linewidth=1.4,
            alpha=0.55,
            zorder=3,
        )
    for point in points:
        _draw_point(axes, point)
    _limit(axes, points, references, share=share)
    style_axes(axes, share=share, name="ε")
    ends = [EndLabel(value=r.value, text=r.said, colour=r.colour) for r in references]
    label_ends(axes, ends, height + below, below)
    if alone:
        _draw_legend(axes, points, title, height, below)
    known = "".join(f" {reference.said}." for reference in references)
    return to_svg(axes.figure, name, alternative + known, alone=alone)


def dots(points: Sequence[Point]) -> str:
    """Return the legend of the points as an HTML list: an item for each label."""
    items = [
        f"<li>{marker_html(point.marker, point.colour, hollow=point.hollow)}"
        f"{safe(point.label)}</li>"
        for point in _entries(points)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _entries(points: Sequence[Point]) -> list[Point]:
    """Return the points of a legend: one a label."""
    return list({point.label: point for point in reversed(points)}.values())[::-1]


def _series(points: Sequence[Point]) -> list[list[Point]]:
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(point.series, []).append(point)
    return [members for members in found.values() if len(members) > 1]


def _draw_point(axes: Any, point: Point) -> None:
    colour = SENTINELS[point.colour]
    if point.half_width is not None:
        low, high = point.value - point.half_width, point.value + point.half_width
        axes.vlines(point.epsilon, low, high, color=colour, linewidth=2.2, alpha=0.5, zorder=4)
    axes.plot(
        [point.epsilon],
        [point.value],
        zorder=5,
        **_marker(point),
    )


def _marker(point: Point) -> dict[str, Any]:
    """Return how a point is drawn, in the plot and in the legend."""
    return {
        "color": SENTINELS[point.colour],
        "marker": point.marker,
        "markersize": 7,
        "markeredgewidth": 1.8,
        "markerfacecolor": SENTINELS["paper" if point.hollow else point.colour],
        "clip_on": False,
    }


def _limit(
    axes: Any, points: Sequence[Point], references: Sequence[Reference], *, share: bool
) -> None:
    """Let the axes end around what is drawn; the differences are what the plot is for.

    An axis of shares ends at 0 and at 1, however wide an interval is.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    spans = [(p.value - (p.half_width or 0), p.value + (p.half_width or 0)) for p in points]
    spans += [(r.value, r.value) for r in references]
    bottom, top = min(low for low, _ in spans), max(high for _, high in spans)
    room = 0.1 * (top - bottom) or 0.1 * abs(top) or 1.0
    bottom, top = bottom - room, top + room
    axes.set_ylim(max(bottom, 0.0) if share else bottom, min(top, 1.0) if share else top)
    least, most = min(p.epsilon for p in points), max(p.epsilon for p in points)
    first, last = math.floor(math.log2(least / 1.3)), math.ceil(math.log2(most * 1.3))
    step = max(1, math.ceil((last - first) / 8))
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0**first, 2.0**last)
    axes.xaxis.set_major_locator(FixedLocator([2.0**k for k in range(first, last + 1, step)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def _draw_legend(axes: Any, points: Sequence[Point], title: str, height: int, below: int) -> None:
    """Write the title's lines and one for each label under the axes, in a file that has no HTML."""
    figure, whole = axes.figure, height + below
    titles = ((line, None) for line in title.split("\n"))
    lines = [*titles, *((point.label, point) for point in _entries(points))]
    for place, (text, point) in enumerate(lines):
        y = 1 - (height + _ENTRY * (place + 0.5)) / whole
        width = figure.get_size_inches()[0] * 72
        if point is not None:
            axes.plot(
                [22 / width],
                [y],
                transform=figure.transFigure,
                **_marker(point),
            )
        figure.text(
            (16 if point is None else 34) / width,
            y,
            plain(text),
            color=SENTINELS["ink"],
            fontsize=12.5,
            va="center",
            parse_math=False,
        )
