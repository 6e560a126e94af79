"""The comparison as one page: tables, plots, and what the runs differ in, section by section."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from textwrap import wrap
from typing import Any

from fedpriv.measures import Measure
from fedpriv.privacy.plan import UnitWords
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report import theme
from fedpriv.report.charts import (
    Line,
    Plot,
    Point,
    both_widths,
    line_legend,
    line_plot,
    point_legend,
    tradeoff_plot,
)
from fedpriv.report.comparison.groups import (
    Column,
    Group,
    Section,
    columns_of,
    curves_of,
    differences,
    gaps,
    mismatches,
    sections_of,
    styles,
    terms_of,
)
from fedpriv.report.head import Estimate, badges, counted, estimate
from fedpriv.report.run_record import points
from fedpriv.report.wording import (
    NOTHING,
    difference,
    direction,
    epsilon,
    figure,
    half_width,
    number,
    percent,
    words_of_all,
)


def render(groups: Sequence[Group]) -> str:
    """Return the comparison page as HTML; same guarantees as the report's."""
    sections = sections_of(groups)
    num_runs = sum(len(group.runs) for group in groups)
    experiments = f"{counted(len(groups), 'experiment')} compared"
    return theme.render(
        "comparison.html.md",
        title=f"{experiments} · fedpriv",
        experiments=experiments,
        runs=counted(num_runs, "run"),
        corpora=list(dict.fromkeys(section.corpus for section in sections)),
        parts=[_part(section, num_runs) for section in sections],
        nothing=NOTHING,
    )


def _part(section: Section, num_runs: int) -> dict[str, Any]:
    """Return what the template needs of one part of the page."""
    groups, best = section.groups, section.nonprivate
    headlines = [group.head.figures[0] for group in groups if group.head.figures]
    plots = _plots(section)
    if against := epsilon_plot(section):
        title = section.headline.title if section.headline else ""
        plots.insert(0, (f"{title} against ε", against))
    return {
        "title": section.title,
        "nouns": nouns_of(section),
        "mismatches": mismatches(groups),
        "table": runs_table(section),
        "terms": terms_of(groups),
        "gaps": gaps(groups),
        "diagnosed": list(
            dict.fromkeys(
                column.measure.label
                for column in measured_columns(section)
                if column.diagnosed and column.measure in headlines
            )
        ),
        "public_only_measured": section.public_only is not None,
        "best": best[0].label if best else "",
        "several_seeds": any(len(group.runs) > 1 for group in groups),
        "many_runs": num_runs > 1 and any(group.head.private for group in groups),
        "plots": plots,
        "labels": [group.label for group in groups],
        "differences": differences(groups),
    }


def _line_label(group: Group) -> str:
    return ", ".join(filter(None, (group.label, group.unfinished_mark)))


def _mean_line(group: Group, column: Column, colour: str, marker: str) -> Line:
    """Return the mean over seeds against rounds, over the rounds that every seed measured."""
    tracks = [dict(zip(*points(column.rows(r), column.key), strict=True)) for r in group.runs]
    rounds = sorted(set.intersection(*(set(track) for track in tracks)))
    estimates = [estimate([track[x] for track in tracks]) for x in rounds]
    known = [e for e in estimates if e is not None]
    several = len(group.runs) > 1
    least, most = (0.0, 1.0) if column.measure.form == "share" else (-math.inf, math.inf)
    return Line(
        label=_line_label(group),
        x=rounds,
        y=[e.mean for e in known],
        colour=colour,
        marker=marker,
        dashed=not group.head.private,
        low=[max(least, e.mean - (e.half_width or 0)) for e in known] if several else (),
        high=[min(most, e.mean + (e.half_width or 0)) for e in known] if several else (),
    )


def _plots(section: Section) -> list[tuple[str, Plot]]:
    """Return (title, plot) of the headline against rounds, of whomever it was measured on."""
    measure, nouns, groups = section.headline, nouns_of(section), section.groups
    if measure is None:
        return []
    parts = []
    for column in (Column(measure=measure, diagnosed=diagnosed) for diagnosed in (True, False)):
        title = f"{measure.title} on {nouns.rostered if column.diagnosed else nouns.public}s"
        lines = [
            _mean_line(group, column, *style)
            for group, style in zip(groups, styles(groups), strict=True)
        ]
        lines = [line for line in lines if line.x]
        if not lines:
            continue
        ends = "; ".join(f"{line.label} {figure(measure, line.y[-1])}" for line in lines)
        svg = both_widths(
            partial(line_plot, lines),
            alternative=f"{title} against {nouns.turn}s, at the end: {ends}.",
            height=380,
            last_round=max(group.head.last_round for group in groups),
            turn=nouns.turn,
            write=partial(figure, measure),
            share=measure.form == "share",
            references=section.references(nonprivate=False) if column == section.lead else (),
        )
        note = _plot_note(column, lines)
        parts.append((title, Plot(notes=[note], legend=line_legend(lines), svg=svg)))
    return parts


def _plot_note(column: Column, lines: Sequence[Line]) -> str:
    note = "Not covered by ε." if column.diagnosed else "Released."
    if direction(column.measure):
        note += f" {direction(column.measure).capitalize()}."
    if any(len(line.low) for line in lines):
        note += " Shaded: 95 % interval over seeds."
    if any(line.dashed for line in lines):
        note += " Dashed: not private."
    return note


Cell = tuple[str, str]
"""Text of a cell, and the remark that stands small behind it."""


def nouns_of(section: Section) -> UnitWords:
    """Return the nouns of those whose values a section has."""
    return words_of_all(group.head.unit for group in section.groups)


def measured_columns(section: Section) -> list[Column]:
    """Return the columns that something was measured for, in one of the groups."""
    groups = section.groups
    return [c for c in columns_of(groups) if any(group.measure(c) for group in groups)]


def table_of(section: Section) -> tuple[list[str], list[tuple[str, list[Cell]]]]:
    """Return the names of the columns, and the rows: the groups, then what they are read against.

    The measured columns come first, each named with those whose values it has.
    """
    nouns, groups = nouns_of(section), section.groups
    columns = measured_columns(section)
    names = [
        f"{c.measure.label}, {nouns.rostered if c.diagnosed else nouns.public}s" for c in columns
    ]
    more = []
    if any(group.gain for group in groups):
        more.append(("gain over public-only", gain_cell))
    if any(section.gap_closed(group) is not None for group in groups):
        more.append(("gap closed", lambda group: (percent(section.gap_closed(group), 0), "")))
    more += [
        ("ε", lambda group: (epsilon(group.epsilon), group.coverage.mark)),
        (f"{nouns.turn}s", lambda group: (number(min(r.rounds_done for r in group.runs)), "")),
        ("seeds", lambda group: (str(len(group.runs)), "")),
    ]
    rows = []
    for group in groups:
        cells = [measure_cell(column.measure, group.measure(column)) for column in columns]
        rows.append((group.label, cells + [cell(group) for _, cell in more]))
    for name, spent, value in references_of(section):
        cells = [(figure(c.measure, value) if c == section.lead else NOTHING, "") for c in columns]
        cells += [(spent if other == "ε" else NOTHING, "") for other, _ in more]
        rows.append((name, cells))
    return [*names, *(name for name, _ in more)], rows


def measure_cell(measure: Measure, value: Estimate | None) -> Cell:
    """Return a value and half its interval."""
    if value is None:
        return NOTHING, ""
    spread = "" if value.half_width is None else f"± {half_width(measure, value.half_width)}"
    return figure(measure, value.mean), spread


def gain_cell(group: Group) -> Cell:
    """Return the gain over public-only, and half its interval with the unit."""
    gain = group.gain
    if gain is None:
        return "not measured" if group.public_only is None else NOTHING, ""
    measure = group.head.figures[0]
    value, _, unit = difference(measure, gain.mean).partition(" ")
    spread = "" if gain.half_width is None else f"± {half_width(measure, gain.half_width)}"
    return value, " ".join(filter(None, (spread, unit)))


def references_of(section: Section) -> list[tuple[str, str, float]]:
    """Return what needs no private run: (name, its ε, its value in the leading column)."""
    found = [("majority class", NOTHING, section.majority)]
    if section.public_only is not None:
        found.append(("public-only", "0", section.public_only.mean))
    return [(name, spent, value) for name, spent, value in found if value is not None]


def runs_table(section: Section) -> dict[str, Any]:
    """Return `table_of` for the template, each row with a dot on a common scale."""
    lead, groups, nouns = section.lead, section.groups, nouns_of(section)
    columns = measured_columns(section)
    marks = [
        (group.measure(lead) if lead else None, colour, _remark(group))
        for group, (colour, _) in zip(groups, styles(groups), strict=True)
    ]
    for _, _, value in references_of(section):
        marks.append((Estimate(mean=value, half_width=None, count=1), "muted", ""))
    scale = max([e.mean + (e.half_width or 0) for e, _, _ in marks if e], default=0.0)
    names, rows = table_of(section)
    heads = [(c.measure.label, direction(c.measure)) for c in columns]
    return {
        "over": [
            (f"{noun}s", sum(column.diagnosed == diagnosed for column in columns))
            for diagnosed, noun in ((True, nouns.rostered), (False, nouns.public))
        ],
        "others": len(names) - len(columns),
        "heads": heads + [(name, "") for name in names[len(columns) :]],
        "rows": [
            {
                "title": title,
                "remark": remark,
                "reference": place >= len(groups),
                "cells": list(zip(names, cells, strict=True)),
                "mark": _strip(value, scale, colour),
            }
            for place, ((title, cells), (value, colour, remark)) in enumerate(
                zip(rows, marks, strict=True)
            )
        ],
    }


def _remark(group: Group) -> str:
    found = badges(group.head, run_statement(group.head.directory))
    return " · ".join(label for label, _ in found if label != "Simulated")


def _strip(value: Estimate | None, scale: float, colour: str) -> dict[str, Any]:
    """Return where the dot of a row is and where its interval ends, of 120 pixels from zero."""

    def at(share: float) -> str:
        return f"{5 + 110 * min(max(share / scale, 0.0), 1.0):.1f}"

    if value is None or scale <= 0:
        return {"dot": None}
    ends = [at(end) for end in value.interval] if value.interval else []
    return {"dot": at(value.mean), "ends": ends, "colour": colour}


_LINE = 105  # letters that a line of the file's title has room for
_FEW = 2  # points of a curve up to which a legend lists each


def points_of(section: Section) -> list[Point]:
    """Return the groups with noise whose headline was measured, as points of the plot."""
    lead, found = section.lead, []
    if lead is None:
        return found
    for place, curve in enumerate(curves_of(section.groups)):
        reached = [(group, group.measure(lead)) for group in curve.groups]
        known = [(g, v) for g, v in reached if v is not None and 0 < g.epsilon < math.inf]
        known.sort(key=lambda one: one[0].epsilon)
        said = [f"{figure(lead.measure, v.mean)} at ε {epsilon(g.epsilon)}" for g, v in known]
        if len(said) > _FEW:
            said = [f"{said[0]} to {said[-1]}"]
        mark = curve.groups[0].unfinished_mark
        found += [
            Point(
                label=f"{curve.label}: {', '.join(filter(None, (*said, mark)))}",
                epsilon=group.epsilon,
                value=value.mean,
                half_width=value.half_width,
                colour=curve.colour,
                marker=curve.marker,
                hollow=not group.finished,
                series=place,
            )
            for group, value in known
        ]
    return found


def epsilon_plot(section: Section) -> Plot | None:
    """Return the plot with its legend; None where nothing with noise was measured."""
    points, lead = points_of(section), section.lead
    if not points or lead is None:
        return None
    notes = _plot_terms(section)
    if remark := direction(lead.measure):
        notes.append(f"{remark.capitalize()}.")
    if any(point.half_width is not None for point in points):
        notes.append("Bars: 95 % interval over seeds.")
    if any(point.hollow for point in points):
        notes.append("Hollow: unfinished.")
    svg = both_widths(partial(_draw, section, points), height=360)
    return Plot(notes=[" ".join(notes)], legend=point_legend(points), svg=svg)


def epsilon_svg(section: Section) -> str:
    """Return the plot as a file of its own; "" where nothing with noise was measured."""
    points = points_of(section)
    if not points:
        return ""
    sentences = (f"{section.title}.", *_plot_terms(section), *gaps(section.groups))
    title = "\n".join(line for sentence in sentences for line in wrap(sentence, _LINE))
    return _draw(section, points, width=720, height=340, title=title, alone=True)


def _draw(section: Section, points: list[Point], **options: Any) -> str:
    ends = "; ".join(dict.fromkeys(point.label for point in points))
    return tradeoff_plot(
        points,
        alternative=f"{section.title}, against ε. {ends}.",
        references=section.references(nonprivate=True),
        share=section.headline is not None and section.headline.form == "share",
        **options,
    )


def _plot_terms(section: Section) -> list[str]:
    """Return the terms of the plot's ε, and that its values are not covered where they are not."""
    diagnosed = section.lead is not None and section.lead.diagnosed
    return [f"ε with {terms_of(section.groups)}.", *(["Not covered by ε."] if diagnosed else [])]
