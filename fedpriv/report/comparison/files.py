"""A comparison as files: a page, CSV, LaTeX, JSON, or a drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedpriv.report.comparison.groups import Group
from fedpriv.report.comparison.page import render
from fedpriv.report.comparison.plots import as_png, as_svg
from fedpriv.report.comparison.tables import as_csv, as_json, as_latex
from fedpriv.report.page import write_page

_WRITERS: Mapping[str, Callable[[Sequence[Group]], str | bytes]] = {
    ".html": render,
    ".csv": as_csv,
    ".tex": as_latex,
    ".json": as_json,
    ".svg": as_svg,
    ".png": as_png,
}


def check_outputs(paths: Sequence[Path]) -> None:
    """Refuse a file that could not be written, before any run is read.

    Raises:
        ValueError: If the suffix is none of those that can be written, or it is a folder.
    """
    for path in paths:
        if path.suffix.lower() not in _WRITERS:
            known = ", ".join(_WRITERS)
            raise ValueError(f"{path} ends in none of {known}, which say what is written; add one")
        if path.is_dir():
            raise ValueError(f"{path} is a folder; give the name of a file to write")


def write_file(groups: Sequence[Group], path: Path) -> None:
    """Write a comparison in the form that the file's suffix names.

    Raises:
        ValueError: If the suffix is not known, or there is nothing to draw.
    """
    check_outputs([path])
    content = _WRITERS[path.suffix.lower()](groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(path, content)
