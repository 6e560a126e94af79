"""What each group reached against the ε that it spent, as a figure of a page and as a file."""

from __future__ import annotations

import math
from functools import partial
from textwrap import wrap

from fedpriv.report.comparison.curves import curves_of
from fedpriv.report.comparison.groups import gaps
from fedpriv.report.comparison.sections import Section
from fedpriv.report.headline import privacy_terms
from fedpriv.report.plots.lines import both_widths
from fedpriv.report.plots.tradeoff import Point, dots, tradeoff_plot
from fedpriv.report.wording import direction, epsilon, figure
from fedpriv.untrusted_text import safe

_LINE = 105  # letters that a line of the file's title has room for
_FEW = 2  # points of which a legend says each


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


def epsilon_figure(section: Section, *, name: str) -> str:
    """Return the plot with its legend as HTML; "" where nothing with noise was measured."""
    points, lead = points_of(section), section.lead
    if not points or lead is None:
        return ""
    notes = _notes(section)
    notes.append(f"{direction(lead.measure).capitalize()}." if direction(lead.measure) else "")
    if any(point.half_width is not None for point in points):
        notes.append("Bars: 95 % interval over seeds.")
    if any(point.hollow for point in points):
        notes.append("Hollow: unfinished.")
    plot = both_widths(
        partial(tradeoff_plot, points),
        name=name,
        alternative=_alternative(section, points),
        height=360,
        references=section.references(nonprivate=True),
        share=lead.measure.form == "share",
    )
    return (
        f'<figure><figcaption><p class="note">{safe(" ".join(filter(None, notes)))}</p>'
        f"{dots(points)}</figcaption>{plot}</figure>"
    )


def epsilon_svg(section: Section, *, name: str) -> str:
    """Return the plot as a file of its own; "" where nothing with noise was measured."""
    points, lead = points_of(section), section.lead
    if not points or lead is None:
        return ""
    return tradeoff_plot(
        points,
        name=name,
        alternative=_alternative(section, points),
        width=720,
        height=340,
        references=section.references(nonprivate=True),
        share=lead.measure.form == "share",
        title="\n".join(
            line
            for said in (f"{section.title}.", *_notes(section), *gaps(section.groups))
            for line in wrap(said, _LINE)
        ),
        alone=True,
    )


def _notes(section: Section) -> list[str]:
    """Return what an ε of the plot is of, and that its figures are not covered where they are not.

    The section has a lead.
    """
    diagnosed = section.lead is not None and section.lead.diagnosed
    return [_terms(section), *(["Not covered by ε."] if diagnosed else [])]


def _terms(section: Section) -> str:
    """Return what the ε of the plot are meaningless without."""
    groups = [group for group in section.groups if group.head.private]
    terms = dict.fromkeys(", ".join(privacy_terms(group.head)) for group in groups)
    return f"ε with {'; or '.join(terms)}."


def _alternative(section: Section, points: list[Point]) -> str:
    ends = "; ".join(dict.fromkeys(point.label for point in points))
    return f"{section.title}, against ε. {ends}."
