"""`report.html`: one run on one page that needs nothing but itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedpriv.checkpoints.uncertainty import lag_autocorrelation, uncertainty
from fedpriv.measures import Measure
from fedpriv.privacy.statement.coverage import NO_NOISE
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.head import head_html
from fedpriv.report.plots.charts import Line, Reference, both_widths, line_legend, line_plot
from fedpriv.report.plots.theme import document
from fedpriv.report.run_record import RunRecord, guaranteed, points, read_run, rho_spent
from fedpriv.report.tables import (
    SETTINGS,
    candidates_table,
    decided_label,
    evaluated_rounds,
    pairs_table,
    rounds_tables,
)
from fedpriv.report.wording import (
    as_html,
    by_unit,
    direction,
    epsilon,
    figure,
    labels_of,
    number,
    percent,
)
from fedpriv.untrusted_text import safe

_FEW = 40  # rows that are shown before anybody unfolds them


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
        *plots(run),
        *_candidates(run),
        "<h2>What the privacy guarantee says</h2>",
        as_html(statement.sections),
        f"<h2>{turn.capitalize()}s and configuration</h2>",
        _details(
            f"{turn.capitalize()}s",
            _rounds_remark(run),
            rounds_tables(run),
            note=_rounds_note(run),
            unfolded=0 < len(evaluated_rounds(run)) <= _FEW,
        ),
        _details("Experiment", "every option", pairs_table(run.options)) if run.options else "",
        _details(
            "Plan",
            f"what was guaranteed before the first {turn}",
            pairs_table(by_unit(run.plan, run.unit)),
        ),
        _details(
            "Corpus" if run.unit == "user" else "Data",
            labels_of(run.unit).provenance,
            pairs_table(by_unit(run.corpus, run.unit)),
        ),
        *_settings(run),
        _details("Versions", "what it ran on", pairs_table(_environment(run))),
        "</main>",
        _footer(run),
    ]
    return document(f"{safe(run.label)} · fedpriv", "\n".join(body))


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


def _details(
    title: str, remark: str, content: str, note: str = "", *, unfolded: bool = False
) -> str:
    extra = f'<p class="note">{note}</p>' if note else ""
    return (
        f"<details{' open' if unfolded else ''}><summary>{safe(title)} "
        f"<span>{safe(remark)}</span></summary>"
        f"<div>{extra}{content}</div></details>"
    )


def _candidates(run: RunRecord) -> list[str]:
    """Return the table of models among which the returned one was selected; or nothing."""
    if not run.selection.get("judged") or not run.figures:
        return []
    level = run.selection["level"]
    note = (
        "Accuracy of models on public examples, each without what the examples' own fold taught "
        'it, so that these figures are others than those above. "Drawn back to 0.5" keeps half of '
        "what private training changed. A model may be returned instead of public-only where the "
        f"lower end of its gain ({percent(level, 0)} over all candidates at once) is above zero: "
        "of these the first within two standard errors of the largest gain, in the order of the "
        "table."
    )
    return ["<h2>Candidates</h2>", f'<p class="note">{note}</p>', candidates_table(run)]


def _settings(run: RunRecord) -> list[str]:
    """Return the settings that were chosen from the data's size; or nothing."""
    if not run.settings:
        return []
    chosen = run.settings.get("chosen")
    rows = {
        "chosen": ", ".join(map(str, chosen)) if isinstance(chosen, list) else "",
        **{said: run.settings.get(name) for name, said in SETTINGS.items()},
    }
    how = "follow from the roster's length, ε, δ and public examples; no rostered record"
    return [_details("Settings from the data's size", how, pairs_table(rows))]


def _rounds_remark(run: RunRecord) -> str:
    evaluated, released = len(evaluated_rounds(run)), len(run.attempts)
    if not evaluated or evaluated == released:
        return f"{released:,} released"
    return f"{evaluated:,} evaluated of {released:,} released"


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
        "backend": run.description.get("backend"),
        **(versions if isinstance(versions, dict) else {}),
    }


def _footer(run: RunRecord) -> str:
    corpus = run.corpus
    parts = [safe(corpus[key]) for key in ("credit", "licence") if corpus.get(key)]
    source = f" Data: {'; '.join(parts)}." if parts else ""
    return f'<footer><p class="note">Written by fedpriv.{source}</p></footer>'


LAST = 5
"""Evaluated rounds of which an interval is made."""
_CORRELATED_OVER = 20


def plots(run: RunRecord) -> list[str]:
    """Return the headline's plot, then ε and every other measure, diagnostics too."""
    turn, parts = labels_of(run.unit).turn, []
    for headline in run.figures[:1]:
        lines, note = _with_band(run, headline, measured_lines(run, headline))
        parts = [f"<h2>{safe(headline.title)}</h2>"]
        if lines:
            references = references_of(run, headline)
            parts.append(_measure_plot(run, headline, lines, references, note=note))
        else:
            parts.append(f'<p class="note">No {safe(headline.label)} has been measured yet.</p>')
    pair = [_epsilon_plot(run)]
    for measure in run.measures:
        lines = measured_lines(run, measure)
        if lines and measure not in run.figures[:1]:
            pair.append(_measure_plot(run, measure, lines, title=measure.title))
    for name in run.decided:  # by a method, from what it had released
        x, y = points(run.released, name)
        if x:
            label = decided_label(name)
            line = Line(label=f"{label} of each released {turn}", x=x, y=y)
            pair.append(_figure(run, [line], label, f"<h3>{safe(label)}</h3>", number))
    return [*parts, '<div class="pair">', *pair, "</div>"]


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


def _measure_plot(
    run: RunRecord,
    measure: Measure,
    lines: list[Line],
    references: Sequence[Reference] = (),
    *,
    title: str = "",
    note: str = "",
) -> str:
    """Return the figure of a measure; one without a title is as wide as the page."""
    remark = direction(measure)
    caption = f"<h3>{safe(title)}</h3>" if title else ""
    caption += f'<p class="note">{safe(remark.capitalize())}.</p>' if remark else ""
    options = {"share": measure.form == "share", "references": references, "wide": not title}
    write = partial(figure, measure)
    return _figure(run, lines, measure.title, caption, write, note=note, **options)


def _epsilon_plot(run: RunRecord) -> str:
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
        note = '<p class="note">Nothing has been released yet.</p>'
        return f"<figure><figcaption>{title}</figcaption>{note}</figure>"
    line = Line(label=f"spent after each released {turn}, at most", x=[0, *x], y=[0.0, *y])
    total = [Reference(value=limit, label="planned total", text=write(limit))]
    references = total if math.isfinite(limit) else []
    what = covers.qualified(f"Privacy loss {unit}")
    return _figure(run, [line], what, title, write, references=references)


def _figure(
    run: RunRecord,
    lines: Sequence[Line],
    what: str,
    caption: str,
    write: Callable[[float], str],
    *,
    references: Sequence[Reference] = (),
    share: bool = False,
    wide: bool = False,
    note: str = "",
) -> str:
    turn = labels_of(run.unit).turn
    ends = "; ".join(f"{line.label}: {line.y[-1]:.4g} at {turn} {line.x[-1]}" for line in lines)
    draw = partial(
        line_plot,
        lines,
        alternative=f"{what} against {turn}s. {ends}.",
        last_round=run.last_round,
        turn=turn,
        write=write,
        share=share,
        references=references,
    )
    plot = both_widths(draw, height=340) if wide else draw(width=444, height=280)
    return f"<figure><figcaption>{caption}{line_legend(lines)}</figcaption>{plot}{note}</figure>"


def _with_band(run: RunRecord, measure: Measure, lines: list[Line]) -> tuple[list[Line], str]:
    """Return the lines, the released one with intervals where they mean something, and a note.

    Figures of aggregates get none: they share most of their models, and the interval would be much
    too narrow.
    """
    nouns = labels_of(run.unit)
    if not lines or run.options.get("aggregate") != "none" or lines[0].label != nouns.released:
        return lines, ""
    found = with_interval(lines[0], turn=nouns.turn, share=measure.form == "share")
    if found is None:
        return lines, ""
    line, note = found
    return [line, *lines[1:]], f'<p class="note">{safe(note)}</p>'


def with_interval(line: Line, *, turn: str, share: bool) -> tuple[Line, str] | None:
    """Return a line of released values with f̄ ± t √S of its last five at each point, and a note.

    Made of released values alone, which are those of released checkpoints: post-processing, at
    no ε.

    Args:
        line: The value of each evaluated round, of the last iterate.
        turn: What a round is called.
        share: Whether values lie within 0 and 1; intervals are then cut off there.

    Returns:
        None if there are fewer than five points. The ends meet the line where there are too few
        rounds before.
    """
    if len(line.y) < LAST:
        return None
    least, most = (0.0, 1.0) if share else (-math.inf, math.inf)
    low, high = list(line.y[: LAST - 1]), list(line.y[: LAST - 1])
    for end in range(LAST, len(line.y) + 1):
        found = uncertainty(line.y[end - LAST : end])
        low.append(max(float(found.mean - found.draw_half_width), least))
        high.append(min(float(found.mean + found.draw_half_width), most))
    newest = line.y[-_CORRELATED_OVER:]
    neighbours, correlated = lag_autocorrelation(newest), ""
    if not math.isnan(neighbours):
        correlated = (
            f" Neighbouring values are correlated (lag 1, over the last {len(newest)}: "
            f"{neighbours:.2g}); the more they are, the narrower it is than it should be."
        )
    note = (
        f"Shaded: mean ± t · standard deviation (95 %, one draw) of the {LAST} {turn}s that were "
        f"evaluated last, from released values alone. It shows how the noise, the draws and the "
        "progress of training move the value. It does not cover sampling error: who took part, "
        f"and which examples it is measured on.{correlated}"
    )
    return replace(line, low=low, high=high), note
