"""The table of a comparison, in HTML: one row a group, and what they are read against."""

from __future__ import annotations

from fedpriv.measures import Measure
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.comparison.curves import styles
from fedpriv.report.comparison.groups import Column, Group, columns_of, differences
from fedpriv.report.comparison.sections import Section
from fedpriv.report.headline import Estimate, badges
from fedpriv.report.unit_labels import UnitLabels, labels_of_all
from fedpriv.report.wording import (
    NOTHING,
    difference,
    direction,
    epsilon,
    figure,
    half_width,
    number,
    percent,
)
from fedpriv.untrusted_text import safe

GAIN, CLOSED, SEEDS = "gain over public-only", "gap closed", "seeds"

Cells = list[tuple[str, str]]
"""Of one row: what each cell is called on a narrow screen, and its HTML."""


def nouns_of(section: Section) -> UnitLabels:
    """Return the words for those whose figures they are."""
    return labels_of_all(group.head.unit for group in section.groups)


def shown_columns(section: Section) -> list[Column]:
    """Return the columns that something was measured for, in one of the groups."""
    groups = section.groups
    return [c for c in columns_of(groups) if any(group.measure(c) for group in groups)]


def runs_table(section: Section) -> str:
    """Return the groups' final figures, then majority class and public-only, as a table.

    On a narrow screen each row becomes a list of its cells, so that nothing is scrolled away.
    """
    columns, lead = shown_columns(section), section.lead
    reached = [group.measure(lead) if lead else None for group in section.groups]
    known = references_of(section)
    values = [e.mean + (e.half_width or 0) for e in reached if e]
    scale = max([*values, *(value for _, _, value in known)], default=0.0)
    rest = _rest(section)
    rows = []
    for group, value, style in zip(section.groups, reached, styles(section.groups), strict=True):
        cells = [(_whole_name(column, section), _measure_cell(group, column)) for column in columns]
        cells += [(name, _cell(name, group, section)) for name in rest]
        strip = _strip(value, scale, style.colour)
        rows.append(_row(f"{safe(group.label)}{_remark(group)}", strip, cells))
    for name, spent, value in known:
        cells = [
            (_whole_name(c, section), safe(figure(c.measure, value)) if c == lead else NOTHING)
            for c in columns
        ]
        cells += [(other, spent if other == "ε" else NOTHING) for other in rest]
        dot = _strip(Estimate(mean=value, half_width=None, count=1), scale, "muted")
        rows.append(_row(safe(name), dot, cells, "reference"))
    return (
        f'<div class="scroll"><table class="runs"><thead>{_head(section, columns, rest)}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
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


def _row(title: str, strip: str, cells: Cells, kind: str = "") -> str:
    body = "".join(
        f'<td class="n{" none" if text == NOTHING else ""}" data-label="{safe(name)}">'
        f"<span>{text}</span></td>"
        for name, text in cells
    )
    style = f' class="{kind}"' if kind else ""
    return f'<tr{style}><th>{title}</th><td class="strip">{strip}</td>{body}</tr>'


def _rest(section: Section) -> list[str]:
    """Return the names of the columns after the measures."""
    gains = [GAIN] if any(group.gain for group in section.groups) else []
    shares = [section.gap_closed(group) for group in section.groups]
    closed = [CLOSED] if any(share is not None for share in shares) else []
    return [*gains, *closed, "ε", f"{nouns_of(section).turn}s", SEEDS]


def _cell(name: str, group: Group, section: Section) -> str:
    if name == GAIN:
        return _gain_cell(group)
    if name == CLOSED:
        return percent(section.gap_closed(group), 0)
    if name == "ε":
        mark = group.coverage.mark
        gap = f"<small>{safe(mark)}</small>" if mark else ""
        return f"{safe(epsilon(group.epsilon))}{gap}"
    if name == SEEDS:
        return str(len(group.runs))
    return safe(number(min(run.rounds_done for run in group.runs)))


def _whole_name(column: Column, section: Section) -> str:
    """Return a column's name with whose figure it is, as a narrow screen has no second head."""
    nouns = nouns_of(section)
    return f"{column.measure.label}, {nouns.rostered if column.diagnosed else nouns.public}s"


def references_of(section: Section) -> list[tuple[str, str, float]]:
    """Return what needs no private run: (name, its ε, its value in the leading column)."""
    found = [("majority class", NOTHING, section.majority)]
    if section.public_only is not None:
        found.append(("public-only", "0", section.public_only.mean))
    return [(name, spent, value) for name, spent, value in found if value is not None]


def _remark(group: Group) -> str:
    found = badges(group.head, run_statement(group.head.directory))
    labels = [label for label, _ in found if label != "Simulated"]
    return f"<small>{safe(' · '.join(labels))}</small>" if labels else ""


def _head(section: Section, columns: list[Column], rest: list[str]) -> str:
    """Return two header rows: whose examples were measured, then what."""
    groups, nouns = "", nouns_of(section)
    for diagnosed, title in ((True, f"{nouns.rostered}s"), (False, f"{nouns.public}s")):
        count = sum(column.diagnosed == diagnosed for column in columns)
        if count:
            groups += f'<th class="g" colspan="{count}">{title}</th>'
    names = "".join(
        f'<th class="n">{safe(column.measure.label)}{_better(column.measure)}</th>'
        for column in columns
    )
    others = "".join(f'<th class="n">{safe(name)}</th>' for name in rest)
    return (
        f'<tr class="over"><th colspan="2"></th>{groups}<th colspan="{len(rest)}"></th></tr>'
        f"<tr><th>experiment</th><th></th>{names}{others}</tr>"
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


def _gain_cell(group: Group) -> str:
    gain = group.gain
    if gain is None:
        return "not measured" if group.public_only is None else NOTHING
    measure = group.head.figures[0]
    value, _, unit = difference(measure, gain.mean).partition(" ")
    spread = "" if gain.half_width is None else f"± {half_width(measure, gain.half_width)}"
    said = " ".join(filter(None, (spread, unit)))
    return safe(value) + (f"<small>{safe(said)}</small>" if said else "")


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
