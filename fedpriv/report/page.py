"""`report.html`: one run on one page that needs nothing but itself."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedpriv.measures import Measure
from fedpriv.privacy.statement.coverage import NO_NOISE
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.headline import head_html
from fedpriv.report.plots.lines import Line, Reference, both_widths, legend, line_plot
from fedpriv.report.plots.theme import document
from fedpriv.report.privacy_text import as_html
from fedpriv.report.promise import promised, rho_spent
from fedpriv.report.series import RunRecord, points, read_run
from fedpriv.report.tables import pairs_table, rounds_table
from fedpriv.report.unit_labels import by_unit, labels_of
from fedpriv.report.wording import direction, epsilon, figure, number
from fedpriv.untrusted_text import safe


def write_report(
    directory: str | Path, *, replicates: Sequence[str | Path] = (), name: str = "report.html"
) -> Path:
    """Write the report of a run into its folder and return its path.

    Args:
        directory: The run folder, finished or under way.
        replicates: Run folders of the same experiment with other seeds; the head of the report
            then shows means and intervals.
        name: File name of the page.

    Raises:
        ValueError: If a folder is not a run, or a replicate is another experiment.
    """
    run = read_run(directory)
    page = render(run, replicates=[read_run(other) for other in replicates])
    path = run.directory / name
    write_page(path, page)
    return path


def write_page(path: Path, page: str) -> None:
    """Write a page in one step, so that a browser never loads half of one."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(page, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # of a disk that was full


def render(run: RunRecord, replicates: Sequence[RunRecord] = ()) -> str:
    """Return the page of a run as HTML.

    Guarantees:
        No request leaves the page. Every string of the run folder is escaped. Equal folders give
        equal pages.

    Raises:
        ValueError: If a replicate is another experiment, or has the same seed.
    """
    check_replicates(run, replicates)
    statement, turn = run_statement(run.directory), labels_of(run.unit).turn
    body = [
        f"<header>{head_html(run, statement, replicates)}</header>",
        "<main>",
        *_plots(run),
        "<h2>What the privacy guarantee says</h2>",
        as_html(statement.sections),
        f"<h2>{turn.capitalize()}s and configuration</h2>",
        _details(
            f"{turn.capitalize()}s",
            f"{len(run.attempts)} released",
            rounds_table(run),
            note=_rounds_note(run),
        ),
        _details("Experiment", "every option", pairs_table(run.options)),
        _details(
            "Plan",
            f"what was promised before the first {turn}",
            pairs_table(by_unit(run.plan, run.unit)),
        ),
        _details(
            "Corpus" if run.unit == "user" else "Data",
            labels_of(run.unit).origin,
            pairs_table(by_unit(run.corpus, run.unit)),
        ),
        _details("Versions", "what it ran on", pairs_table(_environment(run))),
        "</main>",
        _footer(run),
    ]
    return document(f"{safe(run.name)} · fedpriv", "\n".join(body))


def check_replicates(run: RunRecord, replicates: Sequence[RunRecord]) -> None:
    """Raise `ValueError` unless the runs differ in their seed and in nothing else that counts."""
    seeds = {run.options.get("seed")}
    for other in replicates:
        if same_experiment_key(other) != same_experiment_key(run):
            raise ValueError(
                f"{other.directory} is another experiment than {run.directory}; "
                "use `fedpriv compare` for runs that differ in more than the seed"
            )
        if other.options.get("seed") in seeds:
            raise ValueError(
                f"{other.directory} has seed {other.options.get('seed')} like another of the "
                "runs; an interval needs different seeds"
            )
        seeds.add(other.options.get("seed"))


def same_experiment_key(run: RunRecord) -> tuple[str, ...]:
    """Return what two runs share if they differ in their seed only."""
    options = {name: value for name, value in run.options.items() if name != "seed"}
    corpus = [run.corpus.get(key) for key in ("name", "synthetic", "roster_sha256", "num_users")]
    return (repr(sorted(options.items())), repr(corpus), repr(run.simulated), run.unit, run.name)


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


def _plots(run: RunRecord) -> list[str]:
    last_round = run.last_round
    parts = _headline_plot(run, run.figures[0], last_round) if run.figures else []
    others = (_measure_figure(run, measure, last_round) for measure in run.figures[1:])
    parts.append('<div class="pair">')
    parts += [_epsilon_figure(run, last_round), *others]
    parts.append("</div>")
    return parts


def _headline_plot(run: RunRecord, measure: Measure, last_round: int) -> list[str]:
    baseline, reference = run.baseline(measure), None
    if baseline is not None:
        label = f"majority class {figure(measure, baseline)}"
        reference = Reference(value=float(baseline), label=label)
    parts = [f"<h2>{safe(measure.title)}</h2>"]
    lines = measured_lines(run, measure)
    if not lines:
        return [*parts, f'<p class="note">No {safe(measure.label)} has been measured yet.</p>']
    plot = both_widths(
        lines,
        name=measure.name.replace("_", "-"),
        alternative=_alternative(measure.title, lines, run),
        height=340,
        last_round=last_round,
        turn=labels_of(run.unit).turn,
        write=partial(figure, measure),
        share=measure.form == "share",
        reference=reference,
    )
    caption = f"{_better(measure)}{legend(lines, reference)}"
    return [*parts, f"<figure><figcaption>{caption}</figcaption>{plot}</figure>"]


def _better(measure: Measure) -> str:
    remark = direction(measure)
    return f'<p class="note">{safe(remark.capitalize())}.</p>' if remark else ""


def _epsilon_figure(run: RunRecord, last_round: int) -> str:
    title, turn, covers = "<h3>ε spent</h3>", labels_of(run.unit).turn, run.coverage
    x, y = points(run.released, "epsilon")
    if not run.private:
        why = "Without noise"
        if covers.reason != NO_NOISE:
            why = f"{safe(covers.reason[:1].upper() + covers.reason[1:])}:"
        note = f"{why} ε is infinite from the first {turn}: this run protects no one."
        return f'<figure><figcaption>{title}</figcaption><p class="note">{note}</p></figure>'
    planned = promised(run).value
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
    line = Line(label=f"spent after each released {turn}", x=[0, *x], y=[0.0, *y])
    reference = None
    if math.isfinite(limit):
        reference = Reference(value=limit, label=f"planned total {write(limit)}")
    plot = line_plot(
        [line],
        name="epsilon",
        alternative=_alternative(covers.beside(f"Privacy loss {unit}"), [line], run),
        width=444,
        height=280,
        last_round=last_round,
        turn=turn,
        write=write,
        reference=reference,
    )
    return f"<figure><figcaption>{title}{legend([line], reference)}</figcaption>{plot}</figure>"


def _measure_figure(run: RunRecord, measure: Measure, last_round: int) -> str:
    lines = measured_lines(run, measure)
    if not lines:
        return ""
    plot = line_plot(
        lines,
        name=measure.name.replace("_", "-"),
        alternative=_alternative(measure.title, lines, run),
        width=444,
        height=280,
        last_round=last_round,
        turn=labels_of(run.unit).turn,
        write=partial(figure, measure),
        share=measure.form == "share",
    )
    caption = f"<h3>{safe(measure.title)}</h3>{_better(measure)}{legend(lines)}"
    return f"<figure><figcaption>{caption}</figcaption>{plot}</figure>"


def _alternative(what: str, lines: Sequence[Line], run: RunRecord) -> str:
    turn = labels_of(run.unit).turn
    ends = "; ".join(f"{line.label}: {line.y[-1]:.4g} at {turn} {line.x[-1]}" for line in lines)
    return f"{what} against {turn}s. {ends}."


def _details(title: str, remark: str, content: str, note: str = "") -> str:
    extra = f'<p class="note">{note}</p>' if note else ""
    return (
        f"<details><summary>{safe(title)} <span>{safe(remark)}</span></summary>"
        f"<div>{extra}{content}</div></details>"
    )


def _rounds_note(run: RunRecord) -> str:
    mark, nouns = run.coverage.mark, labels_of(run.unit)
    notes = [f"ε {safe(mark)}."] if mark else []
    redone = len(run.attempts) - len(run.released)
    if redone:
        notes.append(
            f"{redone} more than there are {nouns.turn}s: after an interruption a {nouns.turn} was "
            f"redone with a new {nouns.drawn} and new noise. Every attempt is charged; the plots "
            "show the last of each."
        )
    return " ".join(notes)


def _environment(run: RunRecord) -> dict[str, object]:
    versions = run.description.get("versions")
    return {
        "mode": run.description.get("mode"),
        "engine": run.description.get("engine"),
        **(versions if isinstance(versions, dict) else {}),
    }


def _footer(run: RunRecord) -> str:
    corpus = run.corpus
    parts = [safe(corpus[key]) for key in ("credit", "licence") if corpus.get(key)]
    source = f" Data: {'; '.join(parts)}." if parts else ""
    return f'<footer><p class="note">Written by fedpriv.{source}</p></footer>'
