"""The comparison as one page: tables, plots, and what the runs differ in, section by section."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedpriv.report.comparison.against_epsilon import epsilon_figure
from fedpriv.report.comparison.curves import Style, styles
from fedpriv.report.comparison.groups import Column, Group, columns_of, gaps, mismatches
from fedpriv.report.comparison.sections import Section, sections_of
from fedpriv.report.comparison.table import difference_table, nouns_of, runs_table
from fedpriv.report.headline import estimate, privacy_terms
from fedpriv.report.page import write_page
from fedpriv.report.plots.lines import Line, both_widths, legend, line_plot
from fedpriv.report.plots.theme import document
from fedpriv.report.series import points
from fedpriv.report.wording import direction, figure
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
        *(part for i, section in enumerate(sections) for part in _section(section, i, sections)),
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


def _section(section: Section, index: int, sections: Sequence[Section]) -> list[str]:
    """Return one part of the page; its headings are a level lower where there are several."""
    several = len(sections) > 1
    prefix = f"part{index + 1}-" if several else ""

    def heading(text: str) -> str:
        return f'<h3 class="part">{safe(text)}</h3>' if several else f"<h2>{safe(text)}</h2>"

    parts = [f"<h2>{safe(section.title)}</h2>"] if several else []
    parts += [_warnings(section.groups), heading("Where they ended"), runs_table(section)]
    num_runs = sum(len(group.runs) for one in sections for group in one.groups)
    parts.append(_notes(section, num_runs))
    against = epsilon_figure(section, name=f"{prefix}tradeoff")
    if against:
        title = section.headline.title if section.headline else ""
        parts += [heading(f"{title} against ε"), against]
    for title, content in _plots(section, prefix):
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
    terms = list(dict.fromkeys(", ".join(privacy_terms(g.head)) for g in groups if g.head.private))
    if terms:
        sentences.append(f"ε with {safe('; or '.join(terms))}.")
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


def _plots(section: Section, prefix: str) -> list[tuple[str, str]]:
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
            name=prefix + column.key.replace("_", "-"),
            alternative=f"{title} against {nouns.turn}s, at the end: {ends}.",
            height=380,
            last_round=max(group.head.last_round for group in groups),
            turn=nouns.turn,
            write=partial(figure, measure),
            share=measure.form == "share",
            references=section.references(nonprivate=False) if column == section.lead else (),
        )
        note = _plot_note(column, lines)
        parts.append(
            (
                title,
                f'<figure><figcaption><p class="note">{note}</p>{legend(lines)}</figcaption>'
                f"{plot}</figure>",
            )
        )
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
