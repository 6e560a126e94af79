"""Several runs side by side: a table, a plot, and what they differ in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedpriv.measures import Measure
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.groups import (
    Column,
    Group,
    columns_of,
    differences,
    gaps,
    mismatches,
)
from fedpriv.report.headline import Estimate, badges, estimate, privacy_terms
from fedpriv.report.page import write_page
from fedpriv.report.plots.lines import Line, both_widths, legend
from fedpriv.report.plots.theme import document, series
from fedpriv.report.series import points
from fedpriv.report.unit_labels import UnitLabels, labels_of_all
from fedpriv.report.wording import NOTHING, direction, epsilon, figure, half_width, number
from fedpriv.untrusted_text import safe


def write_comparison(groups: Sequence[Group], path: str | Path) -> Path:
    """Write the comparison as one self-contained page and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(path, render(groups))
    return path


def render(groups: Sequence[Group]) -> str:
    """Return the comparison page as HTML; same guarantees as the report's."""
    num_runs = sum(len(group.runs) for group in groups)
    corpora = dict.fromkeys(
        f"{g.head.corpus.get('name') or 'own data'}{' (synthetic)' if g.head.synthetic else ''}"
        for g in groups
    )
    experiments = "experiment" if len(groups) == 1 else "experiments"
    body = [
        f"<header><h1>{len(groups)} {experiments} compared</h1>",
        f'<p class="lead">{num_runs} runs on {safe(", ".join(corpora))}</p></header><main>',
        _warnings(groups),
        f"<h2>Where they ended</h2>{_table(groups)}",
        _notes(groups, num_runs),
        *_plots(groups),
        _difference_table(groups),
        "</main>",
    ]
    return document(f"{len(groups)} {experiments} compared · fedpriv", "\n".join(body))


def _warnings(groups: Sequence[Group]) -> str:
    found = mismatches(groups)
    if not found:
        return ""
    return (
        f'<p class="lead"><strong>Not like with like:</strong> these runs differ in '
        f"{safe(', '.join(found))}.</p>"
    )


def _table(groups: Sequence[Group]) -> str:
    columns = [c for c in columns_of(groups) if any(group.measure(c) for group in groups)]
    headlines = [group.head.figures[0] for group in groups if group.head.figures]
    lead_column = next((c for c in columns if c.measure in headlines), None)
    leads = [group.measure(lead_column) if lead_column else None for group in groups]
    scale = max((e.mean + (e.half_width or 0) for e in leads if e), default=0.0)
    rows = []
    for index, (group, lead) in enumerate(zip(groups, leads, strict=True)):
        run = group.head
        labels = [
            label for label, _ in badges(run, run_statement(run.directory)) if label != "Simulated"
        ]
        remark = f"<small>{safe(' · '.join(labels))}</small>" if labels else ""
        cells = "".join(f'<td class="n">{_measure_cell(group, column)}</td>' for column in columns)
        rows.append(
            f"<tr><th>{safe(group.name)}{remark}</th><td>{_strip(lead, scale, series(index))}</td>"
            f'{cells}<td class="n">{safe(epsilon(group.epsilon))}{_gap(group)}</td>'
            f'<td class="n">{safe(number(min(r.rounds_done for r in group.runs)))}</td>'
            f'<td class="n">{len(group.runs)}</td></tr>'
        )
    return (
        f'<div class="scroll"><table class="runs"><thead>{_head(columns, _labels(groups))}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _gap(group: Group) -> str:
    mark = group.coverage.mark
    return f"<small>{safe(mark)}</small>" if mark else ""


def _labels(groups: Sequence[Group]) -> UnitLabels:
    return labels_of_all(group.head.unit for group in groups)


def _head(columns: Sequence[Column], nouns: UnitLabels) -> str:
    """Return two header rows: whose examples were measured, then what."""
    groups = ""
    for diagnosed, title in ((True, f"{nouns.rostered}s"), (False, f"{nouns.public}s")):
        count = sum(column.diagnosed == diagnosed for column in columns)
        if count:
            groups += f'<th class="g" colspan="{count}">{title}</th>'
    names = "".join(
        f'<th class="n">{safe(column.measure.label)}{_better(column.measure)}</th>'
        for column in columns
    )
    return (
        f'<tr class="over"><th colspan="2"></th>{groups}<th colspan="3"></th></tr>'
        f'<tr><th>experiment</th><th></th>{names}<th class="n">ε</th>'
        f'<th class="n">{nouns.turn}s</th>'
        '<th class="n">seeds</th></tr>'
    )


def _better(measure: Measure) -> str:
    return f"<small>{safe(direction(measure))}</small>" if direction(measure) else ""


def _measure_cell(group: Group, column: Column) -> str:
    value = group.measure(column)
    if value is None:
        return NOTHING
    spread = ""
    if value.half_width is not None:
        spread = f"<small>± {safe(half_width(column.measure, value.half_width))}</small>"
    return safe(figure(column.measure, value.mean)) + spread


def _strip(value: Estimate | None, scale: float, colour: str) -> str:
    """Return a dot with its interval on a common scale from zero."""
    if value is None or scale <= 0:
        return ""
    width, middle = 150, 11

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


def _notes(groups: Sequence[Group], num_runs: int) -> str:
    sentences, nouns = [], _labels(groups)
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
    if any(len(group.runs) > 1 for group in groups):
        sentences.append(f"± is half a 95 % t-interval over seeds, on the same {nouns.one}s.")
    if num_runs > 1 and any(group.head.private for group in groups):
        sentences.append(
            f"Each ε speaks of one run alone: training many runs on the same {nouns.one}s, and "
            "choosing among them by their figures, is covered by none of them."
        )
    return f'<p class="note" style="margin-top:1rem">{" ".join(sentences)}</p>'


def _mean_line(group: Group, column: Column, index: int) -> Line:
    """Return the mean over seeds against rounds, over the rounds that every seed measured."""
    tracks = [dict(zip(*points(column.rows(r), column.key), strict=True)) for r in group.runs]
    rounds = sorted(set.intersection(*(set(track) for track in tracks)))
    estimates = [estimate([track[x] for track in tracks]) for x in rounds]
    known = [e for e in estimates if e is not None]
    several = len(group.runs) > 1
    least, most = (0.0, 1.0) if column.measure.form == "share" else (-math.inf, math.inf)
    return Line(
        label=group.name,
        x=rounds,
        y=[e.mean for e in known],
        colour=series(index),
        dashed=not group.head.private,
        low=[max(least, e.mean - (e.half_width or 0)) for e in known] if several else (),
        high=[min(most, e.mean + (e.half_width or 0)) for e in known] if several else (),
    )


def _plots(groups: Sequence[Group]) -> list[str]:
    """Return plots of what heads the figures of some group."""
    last_round = max(group.head.last_round for group in groups)
    parts, nouns = [], _labels(groups)
    headlines = dict.fromkeys(group.head.figures[0] for group in groups if group.head.figures)
    for column in (
        Column(measure=measure, diagnosed=diagnosed)
        for measure in headlines
        for diagnosed in (True, False)
    ):
        measure = column.measure
        whom = nouns.rostered if column.diagnosed else nouns.public
        title = f"{measure.title} on {whom}s"
        note = "Not covered by ε. " if column.diagnosed else "Released. "
        if direction(measure):
            note += f"{safe(direction(measure).capitalize())}. "
        lines = [_mean_line(group, column, index) for index, group in enumerate(groups)]
        lines = [line for line in lines if line.x]
        if not lines:
            continue
        bands = " Shaded: 95 % interval over seeds." if any(len(x.low) for x in lines) else ""
        dashes = " Dashed: not private." if any(x.dashed for x in lines) else ""
        ends = "; ".join(f"{line.label} {figure(measure, line.y[-1])}" for line in lines)
        plot = both_widths(
            lines,
            name=column.key.replace("_", "-"),
            alternative=f"{title} against {nouns.turn}s, at the end: {ends}.",
            height=380,
            last_round=last_round,
            turn=nouns.turn,
            write=partial(figure, measure),
            share=measure.form == "share",
        )
        parts.append(
            f'<h2>{safe(title)}</h2><figure><figcaption><p class="note">{note}{bands}{dashes}</p>'
            f"{legend(lines)}</figcaption>{plot}</figure>"
        )
    return parts


def _difference_table(groups: Sequence[Group]) -> str:
    found = differences(groups)
    if not found:
        return ""
    head = "".join(f"<th>{safe(group.name)}</th>" for group in groups)
    rows = "".join(
        f"<tr><th>{safe(name)}</th>{''.join(f'<td>{safe(value)}</td>' for value in values)}</tr>"
        for name, values in found.items()
    )
    return (
        '<h2>What they differ in</h2><div class="scroll"><table class="options"><thead><tr>'
        f"<th>option</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
