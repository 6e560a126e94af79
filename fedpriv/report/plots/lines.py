"""Line plots against rounds as inline SVG.

The legend of the lines is HTML above the plot, where it can overlap nothing; horizontal lines are
named in the right margin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from fedpriv.untrusted_text import safe


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
    references: Sequence[Reference] = (),
) -> str:
    """Return values against rounds as an `<svg>` element.

    Args:
        lines: What is drawn; lines without points are left out.
        name: Unique on the page; element ids begin with it.
        alternative: What the plot shows, for those who do not see it; the references are added.
        width: In CSS pixels.
        height: In CSS pixels.
        last_round: End of the horizontal axis: the planned rounds, so that a run that stopped
            early looks like one.
        write: Writes the last value of a line.
        share: Whether the axis is in percent.
        turn: What the horizontal axis counts.
        references: Horizontal lines, labelled in the right margin.
    """
    from matplotlib.ticker import MaxNLocator

    drawn = [line for line in lines if len(line.x)]
    axes = new_axes(width, height, [reference.said for reference in references])
    bottom, top = _draw_lines(axes, drawn)
    bottom = min([bottom, *(r.value for r in references)])
    top = max([top, *(r.value for r in references)])
    axes.set_ylim(1.08 * bottom, top * 1.08 if top > 0 else 1.0)
    axes.set_xlim(0, max(last_round, 1))
    draw_references(axes, references)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    style_axes(axes, share=share, name=turn)
    ends = [EndLabel(value=r.value, text=r.said, colour=r.colour) for r in references]
    ends += [
        EndLabel(value=line.y[-1], text=write(line.y[-1]), colour=line.colour, x=line.x[-1])
        for line in drawn
    ]
    label_ends(axes, ends, height)
    known = "".join(f" {reference.said}." for reference in references)
    return to_svg(axes.figure, name, alternative + known)


def legend(lines: Sequence[Line]) -> str:
    """Return the legend of the lines as an HTML list."""
    items = []
    for line in lines:
        dashes = ' stroke-dasharray="4 3"' if line.dashed else ""
        items.append(
            '<li><svg width="24" height="8" aria-hidden="true"><line x1="0" y1="4" x2="24" y2="4" '
            f'stroke-width="2" style="stroke:var(--{line.colour})"{dashes}/></svg>'
            f"{'' if line.marker == 'o' else marker_html(line.marker, line.colour)}"
            f"{safe(line.label)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def both_widths(draw: Callable[..., str], *, name: str, height: int = 280, **options: Any) -> str:
    """Return a full-width plot and a narrow one; the style sheet shows what fits the screen.

    Scaling one drawing down would make its text too small to read on a telephone.
    """
    wide = draw(name=name, width=928, height=height, **options)
    narrow = draw(name=f"{name}-narrow", width=372, height=270, **options)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _draw_lines(axes: Any, lines: Sequence[Line]) -> tuple[float, float]:
    """Draw lines and bands, the first line on top; return the least and the largest value, and 0.

    The axis has 0 on it, whatever is drawn.
    """
    bottom = top = 0.0
    for order, line in enumerate(reversed(lines)):
        colour, few = SENTINELS[line.colour], len(line.x) <= 24
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
            marker=line.marker if few or line.marker != "o" else "",
            markevery=1 if few else max(1, len(line.x) // 12),
            markersize=3.6 if line.marker == "o" else 5.0,
            clip_on=False,
            zorder=3 + order,
        )
        bottom, top = min(bottom, *line.y), max(top, *line.y)
    return bottom, top
