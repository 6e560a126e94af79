"""The comparison as files (a page, CSV, LaTeX, or a drawing) and as plain values."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv.measures import ACCURACY
from fedpriv.privacy.statement.coverage import KEY
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.comparison.groups import (
    Group,
    Section,
    columns_of,
    gaps,
    mismatches,
    sections_of,
    terms_of,
)
from fedpriv.report.comparison.page import (
    epsilon_svg,
    measured_columns,
    nouns_of,
    render,
    table_of,
)
from fedpriv.report.page import write_page
from fedpriv.report.run_record import guaranteed
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
    drawn = [text for section in sections_of(groups) if (text := epsilon_svg(section))]
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


_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "ρ": r"$\rho$", "σ": r"$\sigma$", "∞": r"$\infty$",
    "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "–": "--", "·": r"$\cdot$", "\u202f": r"\,",
    "⁻": r"$^{-}$",
}  # fmt: skip
_SIGNS |= {sign: f"$^{{{digit}}}$" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}


def as_latex(groups: Sequence[Group]) -> str:
    """Return the comparison as tables for a paper; they need the package booktabs."""
    parts = [_table(section) for section in sections_of(groups)]
    return "% Needs \\usepackage{booktabs}.\n" + "\n".join(parts)


def escaped(value: object) -> str:
    r"""Return any value as one line of LaTeX text that means only itself.

    >>> print(escaped("50 % of a_b\\n"))
    50 \% of a\_b\textbackslash{}n
    """
    text = " ".join(plain(value).split())
    return "".join(_SIGNS.get(sign, sign) for sign in text)


def _table(section: Section) -> str:
    names, rows_of = table_of(section)
    unfinished = {group.label: group.unfinished_mark for group in section.groups}
    rows = []
    for title, cells in rows_of:
        # What an ε does not cover stands in the caption.
        texts = [
            text if name == "ε" else " ".join(filter(None, (text, small)))
            for name, (text, small) in zip(names, cells, strict=True)
        ]
        rows.append([", ".join(filter(None, (title, unfinished.get(title)))), *texts])
    body = "\n".join(f"{' & '.join(map(escaped, row))} \\\\" for row in rows)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{escaped(_caption(section))}}}\n"
        f"\\begin{{tabular}}{{l{'r' * len(names)}}}\n\\toprule\n"
        f"{' & '.join(map(escaped, ['experiment', *names]))} \\\\\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _caption(section: Section) -> str:
    """Return what the figures are meaningless without."""
    groups, nouns = section.groups, nouns_of(section)
    terms = terms_of(groups)
    said = [f"{section.title}."]
    said += [f"ε with {terms}."] if terms else ["No run is private."]
    said += gaps(groups)
    if any(column.diagnosed for column in measured_columns(section)):
        said.append(f"Figures of {nouns.diagnosed}.")
    if any(group.head.simulated for group in groups):
        said.append("Simulated: the noise came from a seed.")
    if section.public_only is None:
        said.append("Public-only was not measured.")
    if any(len(group.runs) > 1 for group in groups):
        said.append("± is half a 95 % t-interval over seeds.")
    if found := mismatches(groups):
        said.append(f"Not like with like: the runs differ in {', '.join(found)}.")
    return " ".join(said)


def as_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the comparison as JSON values; an infinite ε is null with `private` false."""
    rows, columns = [], columns_of(groups)
    closed = {
        group.label: section.gap_closed(group)
        for section in sections_of(groups)
        for group in section.groups
    }
    for group in groups:
        run = group.head
        guarantee = guaranteed(run) if run.private else None
        row: dict[str, Any] = {
            "name": group.name,
            "label": group.label,
            "runs": [str(r.directory) for r in group.runs],
            "seeds": [r.options.get("seed") for r in group.runs],
            "private": run.private,
            "synthetic": run.synthetic,
            "simulated": run.simulated,
            "no_meaningful_protection": run_statement(run.directory).no_meaningful_protection,
            "epsilon": group.epsilon if math.isfinite(group.epsilon) else None,
            KEY: list(group.coverage.not_covered),
            "delta": guarantee.delta if guarantee else None,
            "relation": guarantee.relation.value if guarantee else None,
            "unit": run.unit,
            "accountant": guarantee.accountant if guarantee else None,
            "rounds": min(r.rounds_done for r in group.runs),
            "rounds_planned": run.rounds_planned,
            "finished": group.finished,
            "users": run.corpus.get("num_users"),
            "corpus": run.corpus.get("name"),
            "roster": run.corpus.get("roster"),
        }
        for column in columns:
            value = group.measure(column)
            row[column.key] = value.mean if value else None
            row[f"{column.key}_interval"] = (
                list(value.interval) if value and value.interval else None
            )
        row |= _against_public(group, closed.get(group.label))
        rows.append(row)
    return rows


def _against_public(group: Group, closed: float | None) -> dict[str, Any]:
    """Return what a figure is read against: majority class, public-only, and the gain over it."""
    run, gain, public_only = group.head, group.gain, group.public_only
    row: dict[str, Any] = {}
    if run.figures:
        measure = run.figures[0]
        row[f"{measure.name}_public_only"] = public_only.mean if public_only else None
        if measure == ACCURACY:
            row["majority_class_accuracy"] = run.majority_class_accuracy
    row["gain"] = gain.mean if gain else None
    row["gain_interval"] = list(gain.interval) if gain and gain.interval else None
    row["gap_closed"] = closed
    return row


_WRITERS = {".html": render, ".csv": as_csv, ".tex": as_latex, ".svg": as_svg}
