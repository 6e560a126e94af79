"""The plots of a report: what the task measures, its diagnostics, and ε, against rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from fedpriv.measures import Measure
from fedpriv.privacy.statement.coverage import NO_NOISE
from fedpriv.report.plots.bands import banded
from fedpriv.report.plots.drawing import Reference
from fedpriv.report.plots.lines import Line, both_widths, legend, line_plot
from fedpriv.report.promise import guaranteed, rho_spent
from fedpriv.report.series import RunRecord, points
from fedpriv.report.tables import decided_label
from fedpriv.report.unit_labels import labels_of
from fedpriv.report.wording import direction, epsilon, figure, number
from fedpriv.untrusted_text import safe


def plots(run: RunRecord) -> list[str]:
    """Return the headline's plot, then ε and every other measure, diagnostics too."""
    parts = _headline_plot(run, run.figures[0]) if run.figures else []
    others = (_measure_figure(run, measure) for measure in run.measures)
    shown = [text for m, text in zip(run.measures, others, strict=True) if m != _headline(run)]
    decided = [_decided_figure(run, name) for name in run.decided]
    return [*parts, '<div class="pair">', _epsilon_figure(run), *shown, *decided, "</div>"]


def references_of(run: RunRecord, measure: Measure) -> list[Reference]:
    """Return the lines that a measure is read against, those that are known."""
    known = (
        ("majority class", run.baseline(measure), False),
        ("public-only", run.public_only(measure), True),
    )
    return [
        Reference(value=float(value), label=label, text=figure(measure, value), dotted=dotted)
        for label, value, dotted in known
        if value is not None
    ]


def measured_lines(run: RunRecord, measure: Measure) -> list[Line]:
    """Return the released and the diagnosed line of a measure, those that have points."""
    lines, nouns = [], labels_of(run.unit)
    for label, rows, key, colour, dashed in (
        (nouns.released, run.released, measure.released_name, "s1", False),
        (nouns.diagnosed, run.diagnosed, measure.name, "s2", True),
    ):
        x, y = points(rows, key)
        if x:
            lines.append(Line(label=label, x=x, y=y, colour=colour, dashed=dashed))
    return lines


def _headline(run: RunRecord) -> Measure | None:
    return run.figures[0] if run.figures else None


def _headline_plot(run: RunRecord, measure: Measure) -> list[str]:
    parts = [f"<h2>{safe(measure.title)}</h2>"]
    lines = measured_lines(run, measure)
    if not lines:
        return [*parts, f'<p class="note">No {safe(measure.label)} has been measured yet.</p>']
    lines, note = _with_band(run, measure, lines)
    plot = both_widths(
        partial(line_plot, lines),
        name=measure.name.replace("_", "-"),
        alternative=_alternative(measure.title, lines, run),
        height=340,
        last_round=run.last_round,
        turn=labels_of(run.unit).turn,
        write=partial(figure, measure),
        share=measure.form == "share",
        references=references_of(run, measure),
    )
    caption = f"{_better(measure)}{legend(lines)}"
    return [*parts, f"<figure><figcaption>{caption}</figcaption>{plot}{note}</figure>"]


def _with_band(run: RunRecord, measure: Measure, lines: list[Line]) -> tuple[list[Line], str]:
    """Return the lines, the released one with intervals where they mean something, and a note."""
    name = labels_of(run.unit)
    first, *rest = lines
    if run.options.get("aggregate") != "none" or first.label != name.released:
        return lines, ""
    found = banded(first, turn=name.turn, share=measure.form == "share")
    if found is None:
        return lines, ""
    return [found.line, *rest], f'<p class="note">{safe(found.note)}</p>'


def _better(measure: Measure) -> str:
    remark = direction(measure)
    return f'<p class="note">{safe(remark.capitalize())}.</p>' if remark else ""


def _epsilon_figure(run: RunRecord) -> str:
    title, turn, covers = "<h3>ε spent</h3>", labels_of(run.unit).turn, run.coverage
    x, y = points(run.released, "epsilon")
    if not run.private:
        why = "Without noise"
        if covers.reason != NO_NOISE:
            why = f"{safe(covers.reason[:1].upper() + covers.reason[1:])}:"
        note = f"{why} ε is infinite from the first {turn}: this run protects no one."
        return f'<figure><figcaption>{title}</figcaption><p class="note">{note}</p></figure>'
    planned = guaranteed(run).value
    unit, limit, write = "ε", planned, epsilon
    if "rho" in run.plan:  # adaptive: its ε is that of the whole budget from the first charge on
        unit, limit, write = "ρ", float(run.plan["rho"]), number
        x, y = rho_spent(run)
        title = "<h3>ρ spent</h3>"
        title += f'<p class="note">ε is that of the whole of it: {epsilon(planned)}.</p>'
    if covers.mark:
        title += f'<p class="note">ε {safe(covers.mark)}.</p>'
    if not x:
        return (
            f'<figure><figcaption>{title}</figcaption><p class="note">Nothing has been released '
            "yet.</p></figure>"
        )
    line = Line(label=f"spent after each released {turn}, at most", x=[0, *x], y=[0.0, *y])
    total = [Reference(value=limit, label="planned total", text=write(limit))]
    plot = line_plot(
        [line],
        name="epsilon",
        alternative=_alternative(covers.qualified(f"Privacy loss {unit}"), [line], run),
        width=444,
        height=280,
        last_round=run.last_round,
        turn=turn,
        write=write,
        references=total if math.isfinite(limit) else [],
    )
    return f"<figure><figcaption>{title}{legend([line])}</figcaption>{plot}</figure>"


def _measure_figure(run: RunRecord, measure: Measure) -> str:
    lines = measured_lines(run, measure)
    if not lines:
        return ""
    plot = line_plot(
        lines,
        name=measure.name.replace("_", "-"),
        alternative=_alternative(measure.title, lines, run),
        width=444,
        height=280,
        last_round=run.last_round,
        turn=labels_of(run.unit).turn,
        write=partial(figure, measure),
        share=measure.form == "share",
    )
    caption = f"<h3>{safe(measure.title)}</h3>{_better(measure)}{legend(lines)}"
    return f"<figure><figcaption>{caption}</figcaption>{plot}</figure>"


def _decided_figure(run: RunRecord, name: str) -> str:
    """Return the plot of what a method decided in each round, of what it had released."""
    x, y = points(run.released, name)
    if not x:
        return ""
    label = decided_label(name)
    line = Line(label=f"{label} of each released {labels_of(run.unit).turn}", x=x, y=y)
    plot = line_plot(
        [line],
        name=name.replace("_", "-"),
        alternative=_alternative(label, [line], run),
        width=444,
        height=280,
        last_round=run.last_round,
        turn=labels_of(run.unit).turn,
        write=number,
    )
    return f"<figure><figcaption><h3>{safe(label)}</h3>{legend([line])}</figcaption>{plot}</figure>"


def _alternative(what: str, lines: Sequence[Line], run: RunRecord) -> str:
    turn = labels_of(run.unit).turn
    ends = "; ".join(f"{line.label}: {line.y[-1]:.4g} at {turn} {line.x[-1]}" for line in lines)
    return f"{what} against {turn}s. {ends}."
