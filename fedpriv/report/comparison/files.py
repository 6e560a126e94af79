"""The comparison as files: a page, CSV, LaTeX, or a drawing, by the file's suffix."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv.report.comparison.against_epsilon import epsilon_svg
from fedpriv.report.comparison.groups import Group
from fedpriv.report.comparison.latex import as_latex
from fedpriv.report.comparison.page import render
from fedpriv.report.comparison.rows import as_rows
from fedpriv.report.comparison.sections import sections_of
from fedpriv.report.page import write_page
from fedpriv.untrusted_text import plain

_NOTHING_TO_DRAW = (
    "no run with noise has been measured, so there is nothing to draw against ε; write .html, "
    ".csv or .tex"
)


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
    text = _WRITERS[path.suffix.lower()](groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(path, text)


def as_csv(groups: Sequence[Group]) -> str:
    """Return the rows of `fedpriv compare --json` as CSV; lists are joined by semicolons."""
    rows = as_rows(groups)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    # Runs that measure different things have different names in their rows.
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer.writerow(names)
    writer.writerows([_csv_cell(row.get(name)) for name in names] for row in rows)
    return file.getvalue()


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    if isinstance(value, str):
        text = plain(value)
        # A spreadsheet would run what begins so as a formula.
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
    return value


def as_svg(groups: Sequence[Group]) -> str:
    """Return accuracy against ε, one plot a section below the other, as one drawing.

    Raises:
        ValueError: If there is nothing to draw.
    """
    drawn = [
        epsilon_svg(section, name=f"part{i}") for i, section in enumerate(sections_of(groups), 1)
    ]
    drawn = [text for text in drawn if text]
    if not drawn:
        raise ValueError(_NOTHING_TO_DRAW)
    if len(drawn) == 1:
        return drawn[0]
    top, parts = 0.0, []
    for text in drawn:
        parts.append(text.replace("<svg ", f'<svg y="{top:g}" ', 1))
        top += float(re.search(r' height="([\d.]+)"', text)[1])  # type: ignore[index]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{top:g}" '
        f'viewBox="0 0 720 {top:g}">{"".join(parts)}</svg>\n'
    )


_WRITERS = {".html": render, ".csv": as_csv, ".tex": as_latex, ".svg": as_svg}
