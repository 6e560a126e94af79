"""Plots of a comparison: the headline against ε and against rounds, on a page or as a file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from textwrap import wrap
from typing import Any

from fedpriv.report.charts import (
    Line,
    Plot,
    Point,
    both_widths,
    line_legend,
    line_plot,
    point_legend,
    side_by_side,
    tradeoff_plot,
)
from fedpriv.report.comparison.groups import (
    Column,
    Group,
    Section,
    curves_of,
    gaps,
    interval_words,
    levels_in_words,
    listed,
    nouns_of,
    sections_of,
    styles,
    terms_of,
)
from fedpriv.report.estimate import FEWEST_SEEDS, estimate
from fedpriv.report.run_record import points
from fedpriv.report.wording import direction, epsilon, figure

NOTHING_TO_DRAW = (
    "no run with noise has been measured, so there is nothing to draw against ε; write .html, "
    ".csv, .tex or .json"
)
_LINE = 105  # letters that a line of the file's title has room for
_FEW = 2  # points of a curve up to which a legend lists each
_MOST_BANDS = 4  # intervals of more lines would hide each other
_MOST_LINES = 10  # against rounds in one plot; more are drawn ε by ε


def _line_label(group: Group) -> str:
    return ", ".join(filter(None, (group.label, group.unfinished_mark)))


def _mean_line(group: Group, label: str, column: Column, colour: str, marker: str) -> Line:
    """Return the mean over seeds against rounds, over the rounds that every seed measured."""
    tracks = [dict(zip(*points(column.rows(r), column.key), strict=True)) for r in group.runs]
    rounds = sorted(set.intersection(*(set(track) for track in tracks)))
    estimates = [estimate([track[x] for track in tracks]) for x in rounds]
    known = [e for e in estimates if e is not None]
    several = len(group.runs) >= FEWEST_SEEDS
    least, most = (0.0, 1.0) if column.measure.form == "share" else (-math.inf, math.inf)
    return Line(
        label=label,
        x=rounds,
        y=[e.mean for e in known],
        colour=colour,
        marker=marker,
        dashed=not group.head.private,
        low=[max(least, e.mean - (e.half_width or 0)) for e in known] if several else (),
        high=[min(most, e.mean + (e.half_width or 0)) for e in known] if several else (),
    )


def round_plots(section: Section) -> list[tuple[str, str, list[Plot]]]:
    """Return (title, legend, plots) of the headline against rounds, of whomever it is measured on.

    One plot with a legend of its own where it has room for all groups; else one for each ε, all of
    one legend.
    """
    measure, nouns = section.headline, nouns_of(section)
    if measure is None:
        return []
    levels = sorted({group.level for group in section.groups})
    by_level = len(section.groups) > _MOST_LINES and len(levels) > 1
    parts = []
    for column in (Column(measure=measure, diagnosed=diagnosed) for diagnosed in (True, False)):
        title = f"{measure.title} on {nouns.tested if column.diagnosed else nouns.public}s"
        if by_level:
            reached = [group.measure(column) for group in section.groups]
            most = max((value.mean for value in reached if value), default=0.0)
            plots = [_panel(section, column, title, level, most) for level in levels]
        else:
            plots = [_one_plot(section, column, title)]
        if plots := [plot for plot in plots if plot is not None]:
            legend = _legend_of_curves(section) if by_level else ""
            parts.append((title, legend, plots))
    return parts


def _one_plot(section: Section, column: Column, title: str) -> Plot | None:
    groups = section.groups
    lines = [
        _mean_line(group, _line_label(group), column, *style)
        for group, style in zip(groups, styles(groups), strict=True)
    ]
    return _drawn(section, column, [line for line in lines if line.x], title, height=380)


def _legend_of_curves(section: Section) -> str:
    """Return the legend that the plots of all ε share."""
    lines = [
        Line(label=curve.label, x=[], y=[], colour=curve.colour, marker=curve.marker)
        for curve in curves_of(section.groups)
    ]
    return line_legend(lines, "legend shared")


def _panel(section: Section, column: Column, title: str, level: float, most: float) -> Plot | None:
    lines = [
        _mean_line(
            group,
            ", ".join(filter(None, (curve.label, group.unfinished_mark))),
            column,
            curve.colour,
            curve.marker,
        )
        for curve in curves_of(section.groups)
        for group in curve.groups
        if group.level == level
    ]
    lines = [line for line in lines if line.x]
    name = level_name(level)
    return _drawn(section, column, lines, f"{title}, {name}", panel=name, reaching=most)


def level_name(level: float) -> str:
    """Return the ε that groups are compared at, in words.

    >>> level_name(8.0), level_name(math.inf)
    ('ε = 8', 'not private')
    """
    return f"ε = {level:g}" if math.isfinite(level) else "not private"


def _drawn(
    section: Section,
    column: Column,
    lines: Sequence[Line],
    title: str,
    *,
    panel: str = "",
    reaching: float = 0.0,
    height: int = 300,
) -> Plot | None:
    if not lines:
        return None
    if len(lines) > _MOST_BANDS:
        lines = [replace(line, low=(), high=()) for line in lines]
    measure, nouns = column.measure, nouns_of(section)
    ends = "; ".join(f"{line.label} {figure(measure, line.y[-1])}" for line in lines)
    draw = partial(
        line_plot,
        lines,
        alternative=f"{title} against {nouns.turn}s, at the end: {ends}.",
        last_round=max(group.head.last_round for group in section.groups),
        turn=nouns.turn,
        write=None if panel else partial(figure, measure),
        share=measure.form == "share",
        references=section.references(nonprivate=False) if column == section.lead else (),
        reaching=reaching,
    )
    svg = draw(width=444, height=height) if panel else both_widths(draw, height=height)
    legend = "" if panel else line_legend(lines)
    return Plot(title=panel, notes=[_plot_note(column, lines)], legend=legend, svg=svg)


def _plot_note(column: Column, lines: Sequence[Line]) -> str:
    note = "Not covered by ε." if column.diagnosed else "Released."
    if direction(column.measure):
        note += f" {direction(column.measure).capitalize()}."
    if any(len(line.low) for line in lines):
        note += " Shaded: 95 % t-interval over seeds."
    if any(line.dashed for line in lines):
        note += " Dashed: not private."
    return note


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
        if public := [g.level for g, _ in known if g.public_model]:
            said.append(f"the public model at {levels_in_words(public)}")
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


def _left_out(section: Section) -> list[str]:
    """Return which groups a logarithmic axis has no place for, in a sentence; or nothing."""
    lead = section.lead
    found = [
        f"{group.label} with {figure(lead.measure, value.mean)}"
        for group in section.groups
        if lead is not None and group.epsilon == 0 and (value := group.measure(lead)) is not None
    ]
    return [f"Not drawn, at ε 0: {listed(found)}."] if found else []


def epsilon_plot(section: Section) -> Plot | None:
    """Return the plot with its legend; None where nothing with noise was measured."""
    points, lead = points_of(section), section.lead
    if not points or lead is None:
        return None
    notes = [*_plot_terms(section), *gaps(section.groups), *_left_out(section)]
    if remark := direction(lead.measure):
        notes.append(f"{remark.capitalize()}.")
    notes += _bars(section, points)
    if any(side_by_side(points).values()):
        notes.append("Points at one ε are drawn side by side.")
    if any(point.hollow for point in points):
        notes.append("Hollow: unfinished.")
    svg = both_widths(partial(_draw, section, points), height=380)
    return Plot(notes=[" ".join(notes)], legend=point_legend(points), svg=svg)


def _bars(section: Section, points: Sequence[Point]) -> list[str]:
    """Return what the bars of points are, in a sentence; nothing where there are none."""
    barred = any(point.half_width is not None for point in points)
    return [f"Bars: {interval_words(section)}."] if barred else []


def epsilon_svg(section: Section) -> str:
    """Return the plot as a file of its own; "" where nothing with noise was measured."""
    points = points_of(section)
    if not points:
        return ""
    title = "\n".join(_file_title(section))
    return _draw(section, points, width=720, height=340, title=title, alone=True)


def _file_title(section: Section) -> list[str]:
    sentences = (
        *(f"{section.title}.", *_plot_terms(section), *gaps(section.groups)),
        *_left_out(section),
        *_bars(section, points_of(section)),
    )
    return [line for sentence in sentences for line in wrap(sentence, _LINE)]


def as_svg(groups: Sequence[Group]) -> str:
    """Return the headline against ε, one plot a section below the other, as one drawing.

    Raises:
        ValueError: If there is nothing to draw.
    """
    drawn = [text for section in sections_of(groups) if (text := epsilon_svg(section))]
    if not drawn:
        raise ValueError(NOTHING_TO_DRAW)
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
    terms, lead = [f"ε with {terms_of(section.groups)}."], section.lead
    if lead is not None and lead.diagnosed:
        terms.append(f"{lead.measure.title} is measured on {nouns_of(section).diagnosed}.")
    return terms
