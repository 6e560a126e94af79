"""Colours of pages and plots, light and dark, and the pages' templates.

Plots name colours by role. The role is written as a CSS variable, so that one drawing serves both
themes and print.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedpriv.libraries import need
from fedpriv.report.wording import flatten, markdown_safe, number
from fedpriv.untrusted_text import plain

LIGHT = {
    "paper": "#fdfdfb",
    "panel": "#f4f4f0",
    "ink": "#1c1d1f",
    "muted": "#5c6066",
    "grid": "#e1e1db",
    "rule": "#cfcfc8",
    "warn": "#8a2b0e",
    "s1": "#1f5fa8",
    "s2": "#ad4a10",
    "s3": "#2a7548",
    "s4": "#7a47a3",
    "s5": "#7d6200",
    "s6": "#0d737a",
    "s7": "#a82c5c",
    "s8": "#55585e",
}
DARK = {
    "paper": "#15171a",
    "panel": "#1e2125",
    "ink": "#e9e7e3",
    "muted": "#a5a9b0",
    "grid": "#2c3035",
    "rule": "#42474e",
    "warn": "#f2a27e",
    "s1": "#7fb4f3",
    "s2": "#f0a069",
    "s3": "#7ecb9a",
    "s4": "#c7a6ec",
    "s5": "#d6bb5c",
    "s6": "#6dcbd2",
    "s7": "#f092b3",
    "s8": "#b4b7bd",
}
NUM_SERIES = 8
FONTS = (
    "ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','Liberation Sans',"
    "sans-serif"
)


def series(index: int) -> str:
    """Return the colour role of the n-th line of a plot, counted from 0."""
    return f"s{index % NUM_SERIES + 1}"


def render(template: str, **values: Any) -> str:
    """Return a self-contained page, or Markdown, from a file of `templates/`; values are escaped.

    Args:
        template: Its name: one that ends in ".html.md" gives HTML.
        values: What it is filled with; a name that it misses is an error.
    """
    light, dark = (
        "".join(f"--{role}:{value};" for role, value in colours.items())
        for colours in (LIGHT, DARK)
    )
    page = _environment(html=template.endswith(".html.md")).get_template(template)
    return page.render(values, fonts=FONTS, light=light, dark=dark)


class Script(NamedTuple):
    """A script of a page.

    Attributes:
        text: As written in the page, unescaped: it is ours, and holds no value.
        hash: What the page's policy names it by; the browser runs no other.
    """

    text: str
    hash: str


@cache
def script(template: str) -> Script:
    """Return a script from a file of `templates/`."""
    text = (Path(__file__).parent / "templates" / template).read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(text=text, hash=f"sha256-{digest}")


@cache
def _environment(*, html: bool) -> Any:
    import jinja2  # not for commands that write no page

    # Of HTML, what is escaped after this has no control or direction-changing signs either.
    harmless = plain if html else markdown_safe
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if hasattr(value, "__html__") else harmless(value),
    )
    environment.filters |= {"number": number, "flatten": flatten}
    return environment


def check_plot_file(path: Path, kinds: Sequence[str] = (".svg",)) -> None:
    """Refuse a file that a plot would not be written to; asked before the work.

    Raises:
        ValueError: If its name ends in none of the kinds, it is there already, or its folder is
            not.
    """
    if path.suffix.lower() not in kinds:
        raise ValueError(f"{path} is no plot's name; let it end in {', '.join(kinds)}")
    if path.exists():
        raise ValueError(f"{path} is there already; remove it, or give another name")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is no folder; make it, or give another place")


def new_figure(width: float, height: float, colours: Mapping[str, str] = LIGHT) -> Any:
    """Return an empty matplotlib figure, of inches.

    Raises:
        ValueError: If matplotlib is not installed.
    """
    need("matplotlib", "plots", "this plot")
    # Not pyplot, whose open figures and backend are global.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    return figure


def plain_axes(
    figure: Any, place: tuple[float, float, float, float], colours: Mapping[str, str] = LIGHT
) -> Any:
    """Return axes in the project's style, at a place given in shares of the figure."""
    axes = figure.add_axes(place, facecolor=colours["paper"])
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colours["rule"])
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, length=0, pad=6, labelcolor=colours["muted"])
    return axes


def as_svg(figure: Any, salt: str) -> bytes:
    """Return a figure as SVG, the same bytes for the same figure."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
