"""`report.html`: one run on one page that needs nothing but itself."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.checkpoints.uncertainty import lag_autocorrelation, uncertainty
from fedpriv.measures import Measure
from fedpriv.privacy.plan import unit_name
from fedpriv.privacy.statement.coverage import NO_NOISE
from fedpriv.privacy.statement.statement import describe_candidate, run_statement
from fedpriv.report import theme
from fedpriv.report.charts import Line, Plot, Reference, both_widths, line_legend, line_plot
from fedpriv.report.head import head_of
from fedpriv.report.run_record import (
    RunRecord,
    epsilon_spent,
    points,
    read_run,
    rho_spent,
    total_epsilon,
)
from fedpriv.report.tables import (
    candidates_table,
    decided_label,
    evaluated_rounds,
    rounds_table,
    settings_rows,
)
from fedpriv.report.wording import by_unit, direction, epsilon, figure, number

_FEW = 40  # rows that are shown before anybody unfolds them


def write_report(
    directory: str | Path, *, replicates: Sequence[str | Path] = (), name: str = "report.html"
) -> Path:
    """Write the report of a run into its folder and return its path.

    Args:
        directory: The run folder, finished or under way.
        replicates: Run folders of the same experiment with other seeds; the head of the report
            then shows means. Intervals are over users where every run has their sums, else over
            `FEWEST_SEEDS` seeds or more.
        name: File name of the page.

    Raises:
        ValueError: If a folder is not a run, or a replicate is another experiment.
    """
    run = read_run(directory)
    page = render(run, replicates=[read_run(other) for other in replicates])
    path = run.folder / name
    write_page(path, page)
    return path


def write_page(path: Path, page: str | bytes) -> None:
    """Write a page, or a file next to it, in one step: a browser never loads half of one."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(page.encode() if isinstance(page, str) else page)
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
    statement, turn = run_statement(run), run.words.turn
    headline, evaluated = next(iter(run.figures), None), evaluated_rounds(run)
    versions = run.description.get("versions")
    environment = {
        "mode": run.description.get("mode"),
        "backend": run.backend,
        **(versions if isinstance(versions, dict) else {}),
    }
    return theme.render(
        "run.html.md",
        **head_of(run, statement, replicates),
        title=f"{run.label} · fedpriv",
        run=run,
        nouns=run.words,
        headline=headline,
        headline_plot=None if headline is None else headline_plot(run, headline),
        plots=other_plots(run),
        candidates=candidates_table(run),
        sections=statement.sections,
        num_evaluated=len(evaluated),
        evaluated_rounds=rounds_table(run, evaluated),
        all_rounds=rounds_table(run, run.attempts),
        few=_FEW,
        redone=len(run.attempts) - len(run.released),
        configuration=[
            ("Experiment", "every option", run.described_options),
            ("Plan", f"what was guaranteed before the first {turn}", by_unit(run.plan, run.unit)),
            (
                "Corpus" if run.unit == "user" else "Data",
                "where the users and the counts came from"
                if run.unit == "user"
                else "where the examples came from",
                by_unit(run.corpus, unit_name(run.unit)),
            ),
            (
                "Settings from the data's size",
                "follow from the roster's length, ε, δ and public examples; no rostered record",
                settings_rows(run),
            ),
            ("Versions", "what it ran on", environment),
        ],
        credits=[run.corpus[key] for key in ("credit", "licence") if run.corpus.get(key)],
    )


def check_replicates(run: RunRecord, replicates: Sequence[RunRecord]) -> None:
    """Raise `ValueError` unless the runs differ in their seed and in nothing else that counts."""
    seeds = {run.options.get("seed")}
    for other in replicates:
        if same_experiment_key(other) != same_experiment_key(run):
            raise ValueError(
                f"{other.folder} is another experiment than {run.folder}; "
                "use `fedpriv compare` for runs that differ in more than the seed"
            )
        if other.options.get("seed") in seeds:
            raise ValueError(
                f"{other.folder} has seed {other.options.get('seed')} like another of the "
                "runs; an interval needs different seeds"
            )
        seeds.add(other.options.get("seed"))


def same_experiment_key(run: RunRecord) -> tuple[str, ...]:
    """Return what two runs share if they differ in their seed only."""
    options = {name: value for name, value in run.described_options.items() if name != "seed"}
    corpus = [run.corpus.get(key) for key in ("name", "synthetic", "roster_sha256", "num_users")]
    return (repr(sorted(options.items())), repr(corpus), repr(run.simulated), run.unit, run.name)


LAST = 5
"""Evaluated rounds of which an interval is made."""
_CORRELATED_OVER = 20


def headline_plot(run: RunRecord, headline: Measure) -> Plot | None:
    """Return the plot of the first measure, as wide as the page; None before one is measured."""
    lines, note = _with_band(run, headline, measured_lines(run, headline))
    if not lines:
        return None
    references = references_of(run, headline)
    if run.selection:
        note = f"{_returned_value(run, headline)} {note}".strip()
    return _measure_plot(run, headline, lines, references=references, wide=True, below=note)


def _returned_value(run: RunRecord, measure: Measure) -> str:
    """Return that the curves are of rounds, and what the returned model has, in a sentence."""
    known = [
        f"{figure(measure, value)} on {whom}s"
        for name, rows, whom in (
            (measure.released_name, run.released, run.words.public),
            (measure.name, run.diagnosed, run.words.tested),
        )
        if (value := run.reached(name, rows)) is not None
    ]
    name = describe_candidate(run.selection["selected"])
    reached = f" has {' and '.join(known)}" if known else " was not measured"
    return f"Curves are of {run.round_model}; the returned model, {name},{reached}."


def other_plots(run: RunRecord) -> list[Plot]:
    """Return the plots of ε, of every other measure, diagnostics too, and of what was decided."""
    plots = [_epsilon_plot(run)]
    for measure in run.measures:
        lines = measured_lines(run, measure)
        if lines and measure not in run.figures[:1]:
            plots.append(_measure_plot(run, measure, lines, title=measure.title))
    for name in run.decided:  # by a method, from what it had released
        x, y = points(run.released, name)
        if x:
            label = decided_label(name)
            line = Line(label=f"{label} of each released {run.words.turn}", x=x, y=y)
            plots.append(_plot(run, [line], label, number, title=label))
    return plots


def references_of(run: RunRecord, measure: Measure) -> list[Reference]:
    """Return the lines that a measure is read against, those that are known."""
    majority = run.baseline(measure)
    if majority is None:
        majority = run.baseline(measure, public=True)
    known = (("majority class", majority, False), ("public-only", run.public_only(measure), True))
    return [
        Reference(value=float(value), label=label, text=figure(measure, value), dotted=dotted)
        for label, value, dotted in known
        if value is not None
    ]


def measured_lines(run: RunRecord, measure: Measure) -> list[Line]:
    """Return the released and the diagnosed line of a measure, those that have points."""
    lines, nouns = [], run.words
    model = f", {run.round_model}" if run.selection or run.aggregates else ""
    for label, rows, key, colour, dashed in (
        (f"{nouns.released}{model}", run.released, measure.released_name, "s1", False),
        (f"{nouns.diagnosed}{model}", run.diagnosed, measure.name, "s2", True),
    ):
        x, y = points(rows, key)
        if x:
            lines.append(Line(label=label, x=x, y=y, colour=colour, dashed=dashed))
    return lines


def _measure_plot(run: RunRecord, measure: Measure, lines: list[Line], **options: Any) -> Plot:
    remark = f"{direction(measure).capitalize()}." if direction(measure) else ""
    write = partial(figure, measure)
    share = measure.form == "share"
    return _plot(run, lines, measure.title, write, notes=(remark,), share=share, **options)


def _epsilon_plot(run: RunRecord) -> Plot:
    turn, covers, title = run.words.turn, run.coverage, "ε spent"
    x, y = points(run.released, "epsilon")
    if not run.private:
        why = "Without noise"
        if covers.reason != NO_NOISE:
            why = f"{covers.reason[:1].upper()}{covers.reason[1:]}:"
        note = f"{why} ε is infinite from the first {turn}: this run protects no one."
        return Plot(title=title, below=note)
    planned, notes = total_epsilon(run).value, []
    unit, limit, write = "ε", planned, epsilon
    if "rho" in run.plan:  # adaptive: its ε is that of the whole budget from the first charge on
        unit, limit, write = "ρ", float(run.plan["rho"]), number
        x, y = rho_spent(run)
        title = "ρ spent"
        notes.append(f"ε is that of the whole of it: {epsilon(planned)}.")
    elif not x:  # a user-defined loop need not record its rounds
        x, y = epsilon_spent(run)
    if covers.mark:
        notes.append(f"ε {covers.mark}.")
    if not x:
        return Plot(title=title, notes=notes, below="Nothing has been released yet.")
    line = Line(label=f"spent after each released {turn}, at most", x=[0, *x], y=[0.0, *y])
    total = [Reference(value=limit, label="planned total", text=write(limit))]
    references = total if math.isfinite(limit) else []
    what = covers.qualified(f"Privacy loss {unit}")
    return _plot(run, [line], what, write, references=references, title=title, notes=notes)


def _plot(
    run: RunRecord,
    lines: Sequence[Line],
    what: str,
    write: Callable[[float], str],
    *,
    references: Sequence[Reference] = (),
    share: bool = False,
    wide: bool = False,
    **texts: Any,
) -> Plot:
    turn = run.words.turn
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
    svg = both_widths(draw, height=340) if wide else draw(width=444, height=280)
    return Plot(legend=line_legend(lines), svg=svg, **texts)


def _with_band(run: RunRecord, measure: Measure, lines: list[Line]) -> tuple[list[Line], str]:
    """Return the lines, the released one with intervals where they mean something, and a note.

    Figures of aggregates get none: they share most of their models, and the interval would be much
    too narrow.
    """
    nouns = run.words
    aggregated = run.options.get("aggregate") != "none"
    if not lines or aggregated or not lines[0].label.startswith(nouns.released):
        return lines, ""
    found = with_interval(lines[0], turn=nouns.turn, share=measure.form == "share")
    if found is None:
        return lines, ""
    return [found[0], *lines[1:]], found[1]


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
        f"evaluated last, from these values alone. It shows how the noise, the draws and the "
        "progress of training move the value. It does not cover sampling error: who took part, "
        f"and which examples it is measured on.{correlated}"
    )
    return replace(line, low=low, high=high), note
