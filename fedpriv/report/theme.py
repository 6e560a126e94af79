"""Colours of pages and plots, light and dark, and the pages' templates.

Plots name colours by role. The role is written as a CSS variable, so that one drawing serves both
themes and print.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fedpriv.report.wording import flatten, number
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
    """Return a self-contained page from a file of `templates/`, every value escaped.

    Args:
        template: Its name without ".html.md".
        values: What it is filled with; a name that it misses is an error.
    """
    light, dark = (
        "".join(f"--{role}:{value};" for role, value in colours.items())
        for colours in (LIGHT, DARK)
    )
    page = _environment().get_template(f"{template}.html.md")
    return page.render(values, fonts=FONTS, light=light, dark=dark)


@cache
def _environment() -> Any:
    import jinja2  # not for commands that write no page

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # No control or direction-changing signs either.
        finalize=lambda value: value if hasattr(value, "__html__") else plain(value),
    )
    environment.filters |= {"number": number, "flatten": flatten}
    return environment
