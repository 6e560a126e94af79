"""What every plot shares: the canvas, its axes, labels in its right margin, and the SVG.

Drawn by matplotlib on a figure of its own: no pyplot, no current figure, no backend to choose.
One point is one CSS pixel. Text stays text, and colours become CSS variables.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.report.plots import theme
from fedpriv.untrusted_text import safe

# matplotlib takes most of a second to import: what draws loads it, `fedpriv --help` does not.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Matplotlib wants real colours: each role is drawn in one that occurs nowhere else.
SENTINELS = {role: f"#0a0b{index:02x}" for index, role in enumerate(theme.LIGHT, start=16)}
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 64, 10, 40
_LABEL_GAP = 15.0
_LETTER = 6.6  # of a label, in pixels
MARKERS = "osD^v"
"""Shapes of points, as matplotlib names them."""
_SHAPES = {
    "o": '<circle cx="6" cy="6" r="4.2"',
    "s": '<rect x="2.2" y="2.2" width="7.6" height="7.6"',
    "D": '<polygon points="6,1 11,6 6,11 1,6"',
    "^": '<polygon points="6,1.4 10.8,10 1.2,10"',
    "v": '<polygon points="6,10.6 10.8,2 1.2,2"',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A horizontal line that the plot is read against.

    Attributes:
        value: Where it is.
        label: What it is, without its value.
        text: The value as it is written.
        colour: A role of the theme.
        dotted: Whether it is drawn dotted.
    """

    value: float
    label: str
    text: str = ""
    colour: str = "muted"
    dotted: bool = False

    @property
    def said(self) -> str:
        """Label and value."""
        return f"{self.label} {self.text}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLabel:
    """A text right of the plot, at the height of what it speaks of."""

    value: float
    text: str
    colour: str
    x: float | None = None


def new_axes(width: int, height: int, labels: Sequence[str] = (), below: int = 0) -> Any:
    """Return the axes of a new figure whose right margin holds the labels.

    Args:
        width: In CSS pixels.
        height: In CSS pixels.
        labels: Of the lines that end at the right edge.
        below: Pixels to leave free at the bottom.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    FigureCanvasSVG(figure)
    right = max(_RIGHT, 16 + _LETTER * max(map(len, labels), default=0))
    bottom = _BOTTOM + below
    across, up = width - _LEFT - right, height - _TOP - bottom
    return figure.add_axes((_LEFT / width, bottom / height, across / width, up / height))


def style_axes(axes: Any, *, share: bool, name: str) -> None:
    """Draw the axes as quietly as they can be read; `name` is what the horizontal one counts."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SENTINELS["rule"])
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=SENTINELS["grid"], linewidth=1)
    axes.tick_params(
        colors=SENTINELS["muted"], labelsize=12, length=0, pad=7, labelcolor=SENTINELS["muted"]
    )
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, share)))
    axes.set_xlabel(name, color=SENTINELS["muted"], fontsize=12, labelpad=5, loc="right")


def marker_html(marker: str, colour: str, *, hollow: bool = False) -> str:
    """Return a marker as it stands in a legend: inline SVG, twelve pixels wide."""
    fill = "var(--paper)" if hollow else f"var(--{colour})"
    return (
        f'<svg width="12" height="12" aria-hidden="true">{_SHAPES[marker]} '
        f'stroke-width="1.8" style="fill:{fill};stroke:var(--{colour})"/></svg>'
    )


def draw_references(axes: Any, references: Sequence[Reference]) -> None:
    """Draw the horizontal lines, without their labels."""
    for reference in references:
        axes.axhline(
            reference.value,
            color=SENTINELS[reference.colour],
            linewidth=1,
            linestyle=(0, (1.5, 2.2)) if reference.dotted else "-",
            zorder=2,
        )


def label_ends(axes: Any, labels: Sequence[EndLabel], height: int, below: int = 0) -> None:
    """Write labels right of where their lines end, pushed apart where they would touch.

    Those that name no place stand at the right edge.
    """
    bottom, top = axes.get_ylim()
    gap = _LABEL_GAP * (top - bottom) / (height - _TOP - _BOTTOM - below)
    edge = axes.get_xlim()[1]
    by_place: dict[float, list[EndLabel]] = {}
    for label in labels:
        by_place.setdefault(edge if label.x is None else label.x, []).append(label)
    for x, ending in by_place.items():
        ends = sorted(ending, key=lambda label: label.value)
        places = spread([label.value - bottom for label in ends], gap)
        for label, place in zip(ends, places, strict=True):
            _write_label(axes, label, x, bottom + place)


def _write_label(axes: Any, label: EndLabel, x: float, y: float) -> None:
    axes.annotate(
        label.text,
        (x, y),
        xytext=(9, -4),
        textcoords="offset points",
        color=SENTINELS[label.colour],
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


def _tick(value: float, share: bool) -> str:
    if share:
        return f"{100 * value:.3g}\u202f%"
    return f"{value:.3g}"


def to_svg(figure: Figure, name: str, alternative: str, *, alone: bool = False) -> str:
    """Return a figure as an `<svg>` element.

    Args:
        figure: What was drawn.
        name: Unique on the page; element ids begin with it.
        alternative: What it shows, for those who do not see it.
        alone: As a file of its own: it names its name spaces, size and light colours.
    """
    import matplotlib

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # Settings for this drawing only; the fixed salt makes equal runs give equal pages.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    for role, colour in SENTINELS.items():
        text = text.replace(colour, theme.LIGHT[role] if alone else f"var(--{role})")
    said = f'role="img" aria-label="{safe(alternative)}"'
    if alone:
        ground = f'<rect width="100%" height="100%" fill="{theme.LIGHT["paper"]}"/>'
        text = re.sub(r"<svg\b([^>]*)>", rf"<svg {said}\1>{ground}", text, count=1)
        return re.sub(r' (width|height)="([\d.]+)pt"', r' \1="\2"', text)
    # The embedded style would apply to the whole page.
    text = re.sub(r"<style\b.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r"<svg\b", f'<svg class="plot" {said}', text, count=1)
    return re.sub(r' (width|height)="[\d.]+pt"', "", text)
