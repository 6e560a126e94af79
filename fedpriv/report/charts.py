"""Charts against rounds and against ε, as inline SVG in the colours of the page.

A point is a CSS pixel, text stays text, and colours are CSS variables, so that one drawing serves
both themes and print. Legends are HTML above the chart, where they can overlap nothing; horizontal
lines are named in the right margin. Equal arguments give equal text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpriv.report import theme
from fedpriv.untrusted_text import plain, safe

_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 64, 10, 40
_LABEL_GAP = 15.0
_TICK = 40  # width of a value below the axis, in pixels
_LETTER = 6.6  # of a label, in pixels
_ENTRY = 20  # height of one line of a legend within the drawing, in pixels
_FEW = 24  # points of a line up to which each is marked
_SAME_EPSILON = 1.04  # a ratio up to which two ε are drawn as one
MARKERS = "osD^v"
"""Shapes of points: circle, square, diamond, triangles."""
_SHAPES: dict[str, Sequence[tuple[float, float]]] = {
    "s": ((-3.8, -3.8), (3.8, -3.8), (3.8, 3.8), (-3.8, 3.8)),
    "D": ((0, -5), (5, 0), (0, 5), (-5, 0)),
    "^": ((0, -4.6), (4.8, 4), (-4.8, 4)),
    "v": ((0, 4.6), (4.8, -4), (-4.8, -4)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A horizontal line that a chart is read against.

    Attributes:
        value: Its height.
        label: Its name.
        text: Its value as it is written.
        colour: A role of the theme.
        dotted: Whether it is drawn dotted.
    """

    value: float
    label: str
    text: str = ""
    colour: str = "muted"
    dotted: bool = False

    @property
    def title(self) -> str:
        """Label and value."""
        return f"{self.label} {self.text}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart against rounds.

    Attributes:
        label: Its entry in the legend.
        x: Rounds or steps.
        y: Values, finite, one for each.
        colour: A role of the theme.
        dashed: Whether it is drawn dashed, as everything not covered by ε is.
        low: Lower ends of an interval around `y`, or empty.
        high: Upper ends, or empty.
        marker: Shape of its points. Circles are left out where there are many.
    """

    label: str
    x: Sequence[int]
    y: Sequence[float]
    colour: str = "s1"
    dashed: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    marker: str = "o"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The value that one method reached at one ε.

    Attributes:
        label: Its entry in the legend.
        epsilon: Finite and positive.
        value: The value.
        half_width: Half its interval over seeds; None of a single run.
        colour: A role of the theme.
        hollow: Whether it is drawn empty, as unfinished runs are.
        series: Points of one series differ in nothing but ε, and are joined.
        marker: Its shape, where there are more series than colours.
    """

    label: str
    epsilon: float
    value: float
    half_width: float | None = None
    colour: str = "s1"
    hollow: bool = False
    series: int = 0
    marker: str = "o"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A drawing on a page, or the reason why there is none.

    Attributes:
        title: Its heading; "" under a heading of the page.
        notes: Remarks above it, in plain text.
        legend: HTML.
        svg: HTML.
        below: A remark below it, in plain text.
    """

    title: str = ""
    notes: Sequence[str] = ()
    legend: str = ""
    svg: str = ""
    below: str = ""


@dataclass(slots=True, kw_only=True)
class _Chart:
    """Elements of a drawing, and the map from values to its pixels."""

    width: float
    height: float
    right: float
    across: tuple[float, float]
    up: tuple[float, float]
    below: float = 0
    elements: list[str] = field(default_factory=list)

    @property
    def floor(self) -> float:
        """Height of the horizontal axis, in pixels from the top."""
        return self.height - _BOTTOM - self.below

    def x(self, value: float) -> float:
        low, high = self.across
        return _LEFT + (value - low) / (high - low) * (self.width - _LEFT - self.right)

    def y(self, value: float) -> float:
        low, high = self.up
        return self.floor - (value - low) / (high - low) * (self.floor - _TOP)

    def rule(self, value: float, colour: str, dashes: str = "") -> None:
        """Draw a horizontal line."""
        y = f"{self.y(value):.1f}"
        self.elements.append(
            f'<line x1="{_LEFT}" x2="{self.width - self.right:.1f}" y1="{y}" y2="{y}"'
            f'{dashes} style="stroke:var(--{colour})"/>'
        )

    def path(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """Join values by straight lines."""
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.elements.append(f'<polyline points="{places}" {style}/>')

    def text(self, x: float, y: float, text: str, colour: str, anchor: str = "start") -> None:
        """Write one line of text, its middle at a height."""
        size = 12.5 if anchor == "start" else 12
        self.elements.append(
            f'<text style="fill:var(--{colour})" x="{x:.1f}" y="{y + 4:.1f}" font-size="{size}" '
            f'text-anchor="{anchor}">{safe(text)}</text>'
        )

    def axes(self, ticks: Sequence[tuple[float, str]], name: str, *, share: bool) -> None:
        """Draw the grid and both axes; `name` is the quantity of the horizontal one."""
        for value in _ticks(*self.up, most=5):
            self.rule(value, "grid")
            text = f"{100 * value:.3g}\u202f%" if share else f"{value:.3g}"
            self.text(_LEFT - 7, self.y(value), text, "muted", "end")
        self.rule(self.up[0], "rule")
        for value, text in ticks:
            self.text(self.x(value), self.floor + 13, text, "muted", "middle")
        self.text(self.width - self.right, self.floor + 30, name, "muted", "end")

    def references(self, references: Sequence[Reference]) -> None:
        """Draw horizontal lines, without their labels."""
        for reference in references:
            dashes = ' stroke-dasharray="1.5 2.2"' if reference.dotted else ""
            self.rule(reference.value, reference.colour, dashes)

    def labels(self, ends: Iterable[tuple[float, float, str, str]]) -> None:
        """Write (x, y, text, colour) right of where lines end, apart where they would touch."""
        by_place: dict[float, list[tuple[float, str, str]]] = {}
        for x, y, text, colour in ends:
            by_place.setdefault(x, []).append((self.floor - self.y(y), text, colour))
        for x, ending in by_place.items():
            ending.sort(key=lambda label: label[0])
            places = spread([height for height, _, _ in ending], _LABEL_GAP)
            for place, (_, text, colour) in zip(places, ending, strict=True):
                self.text(self.x(x) + 9, self.floor - place, text, colour)

    def svg(self, alternative: str, references: Sequence[Reference], *, alone: bool = False) -> str:
        """Return the drawing as an `<svg>` element, or as a standalone file."""
        title = alternative + "".join(f" {reference.title}." for reference in references)
        attributes = f'role="img" aria-label="{safe(title)}"'
        attributes += f' viewBox="0 0 {self.width:g} {self.height:g}"'
        body = "".join(self.elements)
        if not alone:
            return f'<svg class="plot" {attributes}>{body}</svg>'
        text = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {attributes} width="{self.width:g}" '
            f'height="{self.height:g}" font-family="{theme.FONTS}">'
            f'<rect width="100%" height="100%" style="fill:var(--paper)"/>{body}</svg>\n'
        )
        return re.sub(r"var\(--(\w+)\)", lambda found: theme.LIGHT[found[1]], text)


def line_plot(
    lines: Sequence[Line],
    *,
    alternative: str,
    width: int,
    height: int,
    last_round: int,
    write: Callable[[float], str] | None,
    share: bool = False,
    turn: str = "round",
    references: Sequence[Reference] = (),
    reaching: float = 0.0,
) -> str:
    """Return values against rounds as an `<svg>` element.

    Args:
        lines: The lines; those without points are left out.
        alternative: Description for those who do not see the chart; the references are added.
        width: In CSS pixels.
        height: In CSS pixels.
        last_round: End of the horizontal axis: the planned rounds, so that a run that stopped
            early looks like one.
        write: Formatter of the last value of a line, written at its end; None writes none.
        share: Whether the axis is in percent.
        turn: Unit of the horizontal axis.
        references: Horizontal lines, labelled in the right margin.
        reaching: A value that the axis reaches at least, for charts that are read side by side.
    """
    drawn = [line for line in lines if len(line.x)]
    # The axis has 0 on it, whatever is drawn.
    values = [
        0.0,
        reaching,
        *(v for line in drawn for part in (line.y, line.low, line.high) for v in part),
    ]
    values += [reference.value for reference in references]
    bottom, top = min(values), max(values)
    chart = _Chart(
        width=width,
        height=height,
        right=_margin(references),
        across=(0, max(last_round, 1)),
        up=(1.08 * bottom, 1.08 * top if top > 0 else 1.0),
    )
    rounds = [(value, f"{value:g}") for value in _ticks(*chart.across, most=6, whole=True)]
    chart.axes(rounds, turn, share=share)
    chart.references(references)
    for line in reversed(drawn):  # the first on top
        _draw_line(chart, line)
    edge = chart.across[1]
    ends = [(edge, r.value, r.title, r.colour) for r in references]
    if write is not None:
        ends += [(line.x[-1], line.y[-1], write(line.y[-1]), line.colour) for line in drawn]
    chart.labels(ends)
    return chart.svg(alternative, references)


def _draw_line(chart: _Chart, line: Line) -> None:
    if len(line.low):
        there = zip(line.x, line.low, strict=True)
        outline = [*there, *zip(line.x[::-1], line.high[::-1], strict=True)]
        chart.path(outline, f'fill-opacity=".13" style="fill:var(--{line.colour})"')
    dashes = ' stroke-dasharray="6.4 3.8"' if line.dashed else ""
    chart.path(
        zip(line.x, line.y, strict=True),
        f'fill="none" stroke-width="{1.6 if line.dashed else 2}"{dashes} '
        f'style="stroke:var(--{line.colour})"',
    )
    # Few measurements are shown as such; many would hide the line.
    few = len(line.x) <= _FEW
    if few or line.marker != "o":
        size = 0.45 if line.marker == "o" else 0.55
        for i in range(0, len(line.x), 1 if few else max(1, len(line.x) // 12)):
            place = (chart.x(line.x[i]), chart.y(line.y[i]))
            chart.elements.append(_mark(line.marker, line.colour, place, size=size))


def tradeoff_plot(
    points: Sequence[Point],
    *,
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
        points: At least one.
        alternative: Description for those who do not see the chart; the references are added.
        width: In CSS pixels.
        height: In CSS pixels.
        references: Horizontal lines, labelled in the right margin.
        share: Whether the vertical axis is in percent; it then ends at 0 and at 1, however wide an
            interval is.
        title: Lines above the legend of a standalone file.
        alone: Whether it is a file of its own, with title, legend and light colours.
    """
    entries = _entries(points)
    titles = title.split("\n")
    below = _ENTRY * (len(titles) + len(entries)) if alone else 0
    spans = [(p.value - (p.half_width or 0), p.value + (p.half_width or 0)) for p in points]
    spans += [(reference.value, reference.value) for reference in references]
    bottom, top = min(low for low, _ in spans), max(high for _, high in spans)
    room = 0.1 * (top - bottom) or 0.1 * abs(top) or 1.0
    bottom, top = bottom - room, top + room
    first = math.floor(math.log2(min(point.epsilon for point in points) / 1.3))
    last = math.ceil(math.log2(max(point.epsilon for point in points) * 1.3))
    chart = _Chart(
        width=width,
        height=height + below,
        below=below,
        right=_margin(references),
        across=(first, last),
        up=(max(bottom, 0.0), min(top, 1.0)) if share else (bottom, top),
    )
    room = (chart.width - _LEFT - chart.right) / _TICK
    step = max(1, math.ceil((last - first) / min(8, room)))
    chart.axes([(k, f"{2.0**k:.4g}") for k in range(first, last + 1, step)], "ε", share=share)
    chart.references(references)
    moved = side_by_side(points)
    # So far apart, in doublings of ε, that the widest group stays clear of the next doubling.
    widest = max(abs(place) for place in moved.values())
    gap = min(6.5 * (last - first) / (chart.width - _LEFT - chart.right), 0.34 / (widest or 1))

    def across(point: Point) -> float:
        return math.log2(point.epsilon) + gap * moved[id(point)]

    by_series: dict[int, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.epsilon):
        by_series.setdefault(point.series, []).append(point)
    for members in by_series.values():
        if len(members) > 1:
            joined = [(across(point), point.value) for point in members]
            style = 'fill="none" stroke-width="1.4" stroke-opacity=".55"'
            chart.path(joined, f'{style} style="stroke:var(--{members[0].colour})"')
    for point in points:
        x = across(point)
        if point.half_width is not None:
            ends = (
                max(point.value - point.half_width, chart.up[0]),
                min(point.value + point.half_width, chart.up[1]),
            )
            style = 'fill="none" stroke-width="2.2" stroke-opacity=".5"'
            chart.path(((x, y) for y in ends), f'{style} style="stroke:var(--{point.colour})"')
        place = (chart.x(x), chart.y(point.value))
        chart.elements.append(_mark(point.marker, point.colour, place, hollow=point.hollow))
    chart.labels((last, r.value, r.title, r.colour) for r in references)
    if alone:
        for number, line in enumerate(titles):
            chart.text(16, height + _ENTRY * (number + 0.5), plain(line), "ink")
        for number, point in enumerate(entries, start=len(titles)):
            y = height + _ENTRY * (number + 0.5)
            chart.elements.append(_mark(point.marker, point.colour, (22, y), hollow=point.hollow))
            chart.text(34, y, plain(point.label), "ink")
    return chart.svg(alternative, references, alone=alone)


def side_by_side(points: Sequence[Point]) -> dict[int, float]:
    """Return by `id` how many places right of its ε each point is drawn, 0 of one that is alone.

    Points of several series at nearly the same ε would hide each other.
    """
    places: dict[int, float] = {}
    near: list[Point] = []
    ordered = sorted(points, key=lambda point: point.epsilon)
    for number, point in enumerate(ordered):
        near.append(point)
        following = ordered[number + 1].epsilon if number + 1 < len(ordered) else math.inf
        if following > point.epsilon * _SAME_EPSILON:
            series = sorted({one.series for one in near})
            middle = (len(series) - 1) / 2
            places |= {id(one): series.index(one.series) - middle for one in near}
            near = []
    return places


def line_legend(lines: Sequence[Line], kind: str = "legend") -> str:
    """Return the legend of lines as an HTML list, with the classes of `kind`."""
    items = []
    for line in lines:
        dashes = ' stroke-dasharray="4 3"' if line.dashed else ""
        items.append(
            '<li><svg width="24" height="8" aria-hidden="true"><line x1="0" y1="4" x2="24" y2="4" '
            f'stroke-width="2" style="stroke:var(--{line.colour})"{dashes}/></svg>'
            f"{'' if line.marker == 'o' else _mark_html(line.marker, line.colour)}"
            f"{safe(line.label)}</li>"
        )
    return f'<ul class="{kind}">{"".join(items)}</ul>'


def point_legend(points: Sequence[Point]) -> str:
    """Return the legend of points as an HTML list, an item for each label."""
    items = (
        f"<li>{_mark_html(point.marker, point.colour, hollow=point.hollow)}{safe(point.label)}</li>"
        for point in _entries(points)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def both_widths(draw: Callable[..., str], *, height: int = 280, **options: Any) -> str:
    """Return a full-width chart and a narrow one; the style sheet shows what fits the screen.

    Scaling one drawing down would make its text too small to read on a telephone.
    """
    wide = draw(width=928, height=height, **options)
    narrow = draw(width=372, height=270, **options)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Return increasing places at least `gap` apart, near the increasing values and from 0 up.

    >>> spread([1.0, 1.0, 5.0], 2.0)
    [0.0, 2.0, 5.0]
    """
    # Clusters of touching labels, each kept centred on the mean of its values.
    clusters: list[list[float]] = []
    for value in values:
        clusters.append([value])
        while len(clusters) > 1:
            left, right = clusters[-2], clusters[-1]
            if _start(right, gap) - (_start(left, gap) + (len(left) - 1) * gap) >= gap:
                break
            clusters[-2:] = [left + right]
    return [_start(c, gap) + i * gap for c in clusters for i in range(len(c))]


def _start(cluster: list[float], gap: float) -> float:
    return max(0.0, sum(cluster) / len(cluster) - (len(cluster) - 1) * gap / 2)


def _ticks(low: float, high: float, *, most: int, whole: bool = False) -> list[float]:
    """Return round numbers between two, in at most so many steps.

    >>> _ticks(0.0, 0.27, most=5), _ticks(0, 3, most=6, whole=True)
    ([0.0, 0.1, 0.2], [0, 1, 2, 3])
    """
    least = (high - low) / most
    size = 10.0 ** math.floor(math.log10(least))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= least)
    if whole:
        step = math.ceil(step)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _margin(references: Sequence[Reference]) -> float:
    return max(_RIGHT, 16 + _LETTER * max((len(r.title) for r in references), default=0))


def _entries(points: Sequence[Point]) -> list[Point]:
    """Return the points of a legend: one a label."""
    return list({point.label: point for point in reversed(points)}.values())[::-1]


def _mark(
    marker: str,
    colour: str,
    place: tuple[float, float],
    *,
    size: float = 0.85,
    hollow: bool = False,
) -> str:
    x, y = place
    fill = "var(--paper)" if hollow else f"var(--{colour})"
    style = f'stroke-width="{1.8 if size > 0.5 else 0}" style="fill:{fill};stroke:var(--{colour})"'
    if marker == "o":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4.2 * size:.1f}" {style}/>'
    corners = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in _SHAPES[marker])
    return f'<polygon points="{corners}" {style}/>'


def _mark_html(marker: str, colour: str, *, hollow: bool = False) -> str:
    """Return a marker as drawn in a legend: inline SVG, twelve pixels wide."""
    mark = _mark(marker, colour, (6, 6), size=1, hollow=hollow)
    return f'<svg width="12" height="12" aria-hidden="true">{mark}</svg>'
