"""`report.html`: one run on one page that needs nothing but itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.figures import plots
from fedpriv.report.head import head_html
from fedpriv.report.plots.theme import document
from fedpriv.report.privacy_text import as_html
from fedpriv.report.series import RunRecord, read_run
from fedpriv.report.tables import (
    SETTINGS,
    candidates_table,
    evaluated_rounds,
    pairs_table,
    rounds_tables,
)
from fedpriv.report.unit_labels import by_unit, labels_of
from fedpriv.report.wording import percent
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
