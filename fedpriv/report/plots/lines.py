"""Line plots as inline SVG.

Drawn by matplotlib on a figure of its own: no pyplot, no current figure, no backend to choose.
One point is one CSS pixel. Text stays text, colours become CSS variables, and the legend is HTML
above the plot, where it can overlap nothing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.report.plots import theme
from fedpriv.untrusted_text import safe

# matplotlib takes most of a second to import: what draws loads it, `fedpriv --help` does not.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Matplotlib wants real colours: each role is drawn in one that occurs nowhere else.
_SENTINELS = {role: f"#0a0b{index:02x}" for index, role in enumerate(theme.LIGHT, start=16)}
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 64, 10, 40
_LABEL_GAP = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plot.

    Attributes:
        label: What the legend says.
        x: Rounds or steps.
        y: Values, finite, one for each.
        colour: A role of the theme.
        dashed: Whether it is drawn dashed, as everything not covered by ε is.
        low: Lower ends of an interval around `y`, or empty.
        high: Upper ends, or empty.
    """

    label: str
    x: Sequence[int]
    y: Sequence[float]
    colour: str = "s1"
    dashed: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A horizontal line that the plot is read against."""

    value: float
    label: str


def line_plot(
    lines: Sequence[Line],
    *,
    name: str,
    alternative: str,
    width: int,
    height: int,
    last_round: int,
    write: Callable[[float], str],
    share: bool = False,
    turn: str = "round",
    reference: Reference | None = None,
    label_ends: bool = True,
) -> str:
    """Return values against rounds as an `<svg>` element.

    Args:
        lines: What is drawn; lines without points are left out.
        name: Unique on the page; element ids begin with it.
        alternative: What the plot shows, for those who do not see it.
        width: In CSS pixels.
        height: In CSS pixels.
        last_round: End of the horizontal axis: the planned rounds, so that a run that stopped
            early looks like one.
        write: Writes the last value of a line.
        share: Whether the axis is in percent.
        turn: What the horizontal axis counts.
        reference: A horizontal line; its label is the legend's.
        label_ends: Whether the last value of each line is written at its end.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    FigureCanvasSVG(figure)
    axes = figure.add_axes(
        (
            _LEFT / width,
            _BOTTOM / height,
            (width - _LEFT - _RIGHT) / width,
            (height - _TOP - _BOTTOM) / height,
        )
    )
    drawn = [line for line in lines if len(line.x)]
    bottom, top = _draw_lines(axes, drawn)
    if reference is not None:
        bottom, top = min(bottom, reference.value), max(top, reference.value)
    bottom, top = 1.08 * bottom, top * 1.08 if top > 0 else 1.0
    axes.set_ylim(bottom, top)
    axes.set_xlim(0, max(last_round, 1))
    if reference is not None:
        axes.axhline(reference.value, color=_SENTINELS["muted"], linewidth=1, zorder=2)
    _style(axes, share, turn)
    if label_ends:
        _label_ends(axes, drawn, top - bottom, height, write, bottom)
    return _svg(figure, name, alternative)


def legend(lines: Sequence[Line], reference: Reference | None = None) -> str:
    """Return the legend of the lines, then of the reference, as an HTML list."""
    entries = [(line.label, line.colour, 2.0, line.dashed) for line in lines]
    if reference is not None:
        entries.append((reference.label, "muted", 1.0, False))
    items = []
    for label, colour, width, dashed in entries:
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        items.append(
            '<li><svg width="24" height="8" aria-hidden="true"><line x1="0" y1="4" x2="24" y2="4" '
            f'stroke-width="{width:g}" style="stroke:var(--{colour})"{dashes}/></svg>'
            f"{safe(label)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def both_widths(lines: Sequence[Line], *, name: str, height: int, **options: Any) -> str:
    """Return a full-width plot and a narrow one; the style sheet shows what fits the screen.

    Scaling one drawing down would make its text too small to read on a telephone.
    """
    wide = line_plot(lines, name=name, width=928, height=height, **options)
    narrow = line_plot(lines, name=f"{name}-narrow", width=444, height=280, **options)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _draw_lines(axes: Any, lines: Sequence[Line]) -> tuple[float, float]:
    """Draw lines and bands, the first line on top; return the least and the largest value, and 0.

    The axis has 0 on it, whatever is drawn.
    """
    bottom = top = 0.0
    for order, line in enumerate(reversed(lines)):
        colour = _SENTINELS[line.colour]
        if len(line.low):
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.13, linewidth=0)
            bottom, top = min(bottom, *line.low), max(top, *line.high)
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linewidth=1.6 if line.dashed else 2.0,
            linestyle=(0, (4, 2.4)) if line.dashed else "-",
            # Few measurements are shown as such; many would hide the line.
            marker="o" if len(line.x) <= 24 else "",
            markersize=3.6,
            clip_on=False,
            zorder=3 + order,
        )
        bottom, top = min(bottom, *line.y), max(top, *line.y)
    return bottom, top


def _style(axes: Any, share: bool, turn: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_SENTINELS["rule"])
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_SENTINELS["grid"], linewidth=1)
    axes.tick_params(
        colors=_SENTINELS["muted"], labelsize=12, length=0, pad=7, labelcolor=_SENTINELS["muted"]
    )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, share)))
    axes.set_xlabel(turn, color=_SENTINELS["muted"], fontsize=12, labelpad=5, loc="right")


def _tick(value: float, share: bool) -> str:
    if share:
        return f"{100 * value:.3g}\u202f%"
    return f"{value:.3g}"


def _label_ends(
    axes: Any,
    lines: Sequence[Line],
    span: float,
    height: int,
    write: Callable[[float], str],
    bottom: float,
) -> None:
    """Write last values right of the lines' ends, pushed apart where they would touch."""
    gap = _LABEL_GAP * span / (height - _TOP - _BOTTOM)
    ends = sorted(lines, key=lambda line: line.y[-1])
    places = [bottom + y for y in spread([line.y[-1] - bottom for line in ends], gap)]
    for line, place in zip(ends, places, strict=True):
        axes.annotate(
            write(line.y[-1]),
            (line.x[-1], place),
            xytext=(9, -4),
            textcoords="offset points",
            color=_SENTINELS[line.colour],
            fontsize=12.5,
            annotation_clip=False,
            parse_math=False,
            zorder=9,
        )


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


def _svg(figure: Figure, name: str, alternative: str) -> str:
    import matplotlib

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # Settings for this drawing only; the fixed salt makes equal runs give equal pages.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # The embedded style would apply to the whole page.
    text = re.sub(r"<style\b.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    for role, colour in _SENTINELS.items():
        text = text.replace(colour, f"var(--{role})")
    attributes = f'<svg class="plot" role="img" aria-label="{safe(alternative)}"'
    text = re.sub(r"<svg\b", attributes, text, count=1)
    return re.sub(r' (width|height)="[\d.]+pt"', "", text)
