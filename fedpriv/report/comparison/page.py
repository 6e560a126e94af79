"""The comparison as one page: tables, plots, and what the runs differ in, section by section."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

from fedpriv.measures import Measure
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.comparison.groups import (
    Column,
    Group,
    Section,
    Style,
    columns_of,
    curves_of,
    differences,
    gaps,
    mismatches,
    sections_of,
    styles,
    terms_of,
)
from fedpriv.report.head import Estimate, badges, estimate
from fedpriv.report.page import write_page
from fedpriv.report.plots.charts import (
    Line,
    Point,
    both_widths,
    line_legend,
    line_plot,
    point_legend,
    tradeoff_plot,
)
from fedpriv.report.plots.theme import document
from fedpriv.report.run_record import points
from fedpriv.report.wording import (
    NOTHING,
    UnitLabels,
    difference,
    direction,
    epsilon,
    figure,
    half_width,
    labels_of_all,
    number,
    percent,
)
from fedpriv.untrusted_text import safe


def write_comparison(groups: Sequence[Group], path: str | Path) -> Path:
    """Write the comparison as one self-contained page and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(path, render(groups))
    return path


def render(groups: Sequence[Group]) -> str:
    """Return the comparison page as HTML; same guarantees as the report's."""
    sections = sections_of(groups)
    num_runs = sum(len(group.runs) for group in groups)
    experiments = f"{len(groups)} {'experiment' if len(groups) == 1 else 'experiments'} compared"
    counted = f"{num_runs} {'run' if num_runs == 1 else 'runs'}"
    corpora = ", ".join(dict.fromkeys(section.corpus for section in sections))
    body = [
        f"<header><h1>{experiments}</h1>",
        f'<p class="lead">{counted} on {safe(corpora)}</p>',
        _apart(sections),
        "</header><main>",
        *(part for section in sections for part in _section(section, sections)),
        "</main>",
    ]
    return document(f"{experiments} · fedpriv", "\n".join(body))


def _apart(sections: Sequence[Section]) -> str:
    if len(sections) == 1:
        return ""
    return (
        f'<p class="lead">In {len(sections)} parts: figures of different corpora, splits or '
        "measures are not read against each other.</p>"
    )


def _section(section: Section, sections: Sequence[Section]) -> list[str]:
    """Return one part of the page; its headings are a level lower where there are several."""
    several = len(sections) > 1

    def heading(text: str) -> str:
        return f'<h3 class="part">{safe(text)}</h3>' if several else f"<h2>{safe(text)}</h2>"

    parts = [f"<h2>{safe(section.title)}</h2>"] if several else []
    parts += [_warnings(section.groups), heading("Where they ended"), runs_table(section)]
    num_runs = sum(len(group.runs) for one in sections for group in one.groups)
    parts.append(_notes(section, num_runs))
    if against := epsilon_figure(section):
        title = section.headline.title if section.headline else ""
        parts += [heading(f"{title} against ε"), against]
    for title, content in _plots(section):
        parts += [heading(title), content]
    if found := difference_table(section):
        parts += [heading("What they differ in"), found]
    return parts


def _warnings(groups: Sequence[Group]) -> str:
    found = mismatches(groups)
    if not found:
        return ""
    return (
        f'<p class="lead"><strong>Not like with like:</strong> these runs differ in '
        f"{safe(', '.join(found))}.</p>"
    )


def _notes(section: Section, num_runs: int) -> str:
    groups, nouns, sentences = section.groups, nouns_of(section), []
    if terms := terms_of(groups):
        sentences.append(f"ε with {safe(terms)}.")
    sentences += [safe(sentence) for sentence in gaps(groups)]
    diagnosed = dict.fromkeys(
        column.measure.label
        for column in columns_of(groups)
        if column.diagnosed and any(group.measure(column) for group in groups)
        if column.measure in [group.head.figures[0] for group in groups if group.head.figures]
    )
    for label in diagnosed:
        what = safe(label[:1].upper() + label[1:])
        sentences.append(f"{what} on {nouns.rostered}s is a diagnostic, not covered by ε.")
    if section.public_only is not None:
        sentences.append(
            "Public-only: the best model of public data alone, at ε = 0, on the same examples."
        )
    else:
        sentences.append("Public-only was not measured.")
    if (best := section.nonprivate) is not None and section.public_only is not None:
        sentences.append(
            "Gap closed: the gain as a share of that of the best of the non-private runs compared "
            f"here, {safe(best[0].label)}."
        )
    if any(len(group.runs) > 1 for group in groups):
        sentences.append(f"± is half a 95 % t-interval over seeds, on the same {nouns.one}s.")
    if num_runs > 1 and any(group.head.private for group in groups):
        sentences.append(
            f"Each ε speaks of one run alone: training many runs on the same {nouns.one}s, and "
            "choosing among them by their figures, is covered by none of them."
        )
    return f'<p class="note" style="margin-top:1rem">{" ".join(sentences)}</p>'


def _line_label(group: Group) -> str:
    return ", ".join(filter(None, (group.label, group.unfinished_mark)))


def _mean_line(group: Group, column: Column, style: Style) -> Line:
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
        colour=style.colour,
        marker=style.marker,
        dashed=not group.head.private,
        low=[max(least, e.mean - (e.half_width or 0)) for e in known] if several else (),
        high=[min(most, e.mean + (e.half_width or 0)) for e in known] if several else (),
    )


def _plots(section: Section) -> list[tuple[str, str]]:
    """Return (title, figure) of the headline against rounds, of whomever it was measured on."""
    measure, nouns, groups = section.headline, nouns_of(section), section.groups
    if measure is None:
        return []
    parts = []
    for column in (Column(measure=measure, diagnosed=diagnosed) for diagnosed in (True, False)):
        title = f"{measure.title} on {nouns.rostered if column.diagnosed else nouns.public}s"
        lines = [
            _mean_line(group, column, style)
            for group, style in zip(groups, styles(groups), strict=True)
        ]
        lines = [line for line in lines if line.x]
        if not lines:
            continue
        ends = "; ".join(f"{line.label} {figure(measure, line.y[-1])}" for line in lines)
        plot = both_widths(
            partial(line_plot, lines),
            alternative=f"{title} against {nouns.turn}s, at the end: {ends}.",
            height=380,
            last_round=max(group.head.last_round for group in groups),
            turn=nouns.turn,
            write=partial(figure, measure),
            share=measure.form == "share",
            references=section.references(nonprivate=False) if column == section.lead else (),
        )
        caption = f'<p class="note">{_plot_note(column, lines)}</p>{line_legend(lines)}'
        parts.append((title, f"<figure><figcaption>{caption}</figcaption>{plot}</figure>"))
    return parts


def _plot_note(column: Column, lines: Sequence[Line]) -> str:
    note = "Not covered by ε." if column.diagnosed else "Released."
    if direction(column.measure):
        note += f" {safe(direction(column.measure).capitalize())}."
    if any(len(line.low) for line in lines):
        note += " Shaded: 95 % interval over seeds."
    if any(line.dashed for line in lines):
        note += " Dashed: not private."
    return note


Cell = tuple[str, str]
"""Text of a cell, and the remark that stands small behind it."""


def nouns_of(section: Section) -> UnitLabels:
    """Return the nouns of those whose values a section has."""
    return labels_of_all(group.head.unit for group in section.groups)


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


def runs_table(section: Section) -> str:
    """Return `table_of` as HTML, each row with a dot on a common scale.

    On a narrow screen each row becomes a list of its cells, so that nothing is scrolled away.
    """
    lead, groups = section.lead, section.groups
    marks = [
        (group.measure(lead) if lead else None, style.colour, _remark(group))
        for group, style in zip(groups, styles(groups), strict=True)
    ]
    for _, _, value in references_of(section):
        marks.append((Estimate(mean=value, half_width=None, count=1), "muted", ""))
    scale = max([e.mean + (e.half_width or 0) for e, _, _ in marks if e], default=0.0)
    names, rows = table_of(section)
    body = []
    for place, (title, cells) in enumerate(rows):
        value, colour, remark = marks[place]
        kind = "" if place < len(groups) else ' class="reference"'
        tds = "".join(
            f'<td class="n{" none" if text == NOTHING else ""}" data-label="{safe(name)}">'
            f"<span>{safe(text)}{_small(small)}</span></td>"
            for name, (text, small) in zip(names, cells, strict=True)
        )
        strip = _strip(value, scale, colour)
        head = f"<th>{safe(title)}{_small(remark)}</th>"
        body.append(f'<tr{kind}>{head}<td class="strip">{strip}</td>{tds}</tr>')
    return (
        f'<div class="scroll"><table class="runs"><thead>{_head(section, names)}</thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def difference_table(section: Section) -> str:
    """Return the options in which the groups differ as a table; "" where there is none."""
    found = differences(section.groups)
    if not found:
        return ""
    head = "".join(f"<th>{safe(group.label)}</th>" for group in section.groups)
    rows = []
    for name, values in found.items():
        cells = "".join(
            f'<td data-label="{safe(group.label)}">{safe(value)}</td>'
            for group, value in zip(section.groups, values, strict=True)
        )
        rows.append(f"<tr><th>{safe(name)}</th>{cells}</tr>")
    return (
        '<div class="scroll"><table class="options"><thead><tr><th>option</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _small(text: str) -> str:
    return f"<small>{safe(text)}</small>" if text else ""


def _remark(group: Group) -> str:
    found = badges(group.head, run_statement(group.head.directory))
    return " · ".join(label for label, _ in found if label != "Simulated")


def _head(section: Section, names: list[str]) -> str:
    """Return two header rows: whose examples were measured, then what."""
    groups, nouns, columns = "", nouns_of(section), measured_columns(section)
    for diagnosed, title in ((True, f"{nouns.rostered}s"), (False, f"{nouns.public}s")):
        if count := sum(column.diagnosed == diagnosed for column in columns):
            groups += f'<th class="g" colspan="{count}">{title}</th>'
    heads = [safe(c.measure.label) + _small(direction(c.measure)) for c in columns]
    heads += [safe(name) for name in names[len(columns) :]]
    return (
        f'<tr class="over"><th colspan="2"></th>{groups}'
        f'<th colspan="{len(names) - len(columns)}"></th></tr><tr><th>experiment</th><th></th>'
        + "".join(f'<th class="n">{head}</th>' for head in heads)
        + "</tr>"
    )


def _strip(value: Estimate | None, scale: float, colour: str) -> str:
    """Return a dot with its interval on a common scale from zero."""
    if value is None or scale <= 0:
        return ""
    width, middle = 120, 11

    def at(share: float) -> str:
        return f"{5 + (width - 10) * min(max(share / scale, 0.0), 1.0):.1f}"

    parts = [
        f'<line x1="5" x2="{width - 5}" y1="{middle}" y2="{middle}" style="stroke:var(--grid)"/>'
    ]
    if value.interval:
        low, high = value.interval
        parts.append(
            f'<line x1="{at(low)}" x2="{at(high)}" y1="{middle}" y2="{middle}" '
            f'stroke-width="2.5" stroke-opacity=".55" style="stroke:var(--{colour})"/>'
        )
    parts.append(
        f'<circle cx="{at(value.mean)}" cy="{middle}" r="4.5" style="fill:var(--{colour})"/>'
    )
    return f'<svg width="{width}" height="22" aria-hidden="true">{"".join(parts)}</svg>'


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


def epsilon_figure(section: Section) -> str:
    """Return the plot with its legend as HTML; "" where nothing with noise was measured."""
    points, lead = points_of(section), section.lead
    if not points or lead is None:
        return ""
    notes = _plot_terms(section)
    notes.append(f"{direction(lead.measure).capitalize()}." if direction(lead.measure) else "")
    if any(point.half_width is not None for point in points):
        notes.append("Bars: 95 % interval over seeds.")
    if any(point.hollow for point in points):
        notes.append("Hollow: unfinished.")
    plot = both_widths(partial(_draw, section, points), height=360)
    return (
        f'<figure><figcaption><p class="note">{safe(" ".join(filter(None, notes)))}</p>'
        f"{point_legend(points)}</figcaption>{plot}</figure>"
    )


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
