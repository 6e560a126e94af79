"""The head of the report: ε first, then what it bought, what went wrong, and where it came from."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.privacy.statement.statement import Statement, describe_returned_model
from fedpriv.report.headline import badges, counted, key_figures
from fedpriv.report.promise import state_of
from fedpriv.report.provenance import Provenance, provenance_of
from fedpriv.report.series import RunRecord
from fedpriv.report.unit_labels import labels_of
from fedpriv.report.wording import NOTHING, SPENT_ALL_THE_SAME, number
from fedpriv.untrusted_text import plain, safe

Figure = tuple[str, str, list[str]]


def head_html(run: RunRecord, statement: Statement, replicates: Sequence[RunRecord] = ()) -> str:
    """Return title, badges, key figures and provenance as HTML."""
    labels = "".join(
        f'<li class="warn">{safe(label)}</li>' if warn else f"<li>{safe(label)}</li>"
        for label, warn in badges(run, statement)
    )
    found = key_figures(run, replicates)
    # What the run is judged by, then whether it went as planned, then its other figures.
    judged = [found.pop(0)]
    if found and found[0][0].startswith("Gain"):
        judged.append(found.pop(0))
    figures = [*judged, failures_figure(run), rounds_figure(run), *found]
    about = ": ".join(filter(None, ("" if run.label == run.name else run.name, run.about)))
    lead = f'<p class="lead">{safe(about)}</p>' if about else ""
    return (
        (f'<ul class="badges">{labels}</ul>' if labels else "")
        + f"<h1>{safe(run.label)}</h1>{_returned_html(run)}{lead}"
        + f'<p class="lead">{safe(" · ".join(_where(run)))}</p>'
        + f'<dl class="figures">{"".join(map(_figure_html, figures))}</dl>'
        + _provenance_html(provenance_of(run))
    )


def _returned_html(run: RunRecord) -> str:
    said, useless = describe_returned_model(run.summary)
    if not said:
        return ""
    spent = f" {SPENT_ALL_THE_SAME}" if useless and run.private else ""
    return f"<p><strong>Returned: {safe(said)}.{spent}</strong></p>"


def failures_figure(run: RunRecord) -> Figure:
    """Return how many of those who were drawn failed; a secure run records none of it."""
    rows = run.diagnostics
    nouns, title = labels_of(run.unit), "Failures"
    if not rows:
        why = "a secure run records none" if not run.simulated else "none recorded yet"
        return title, NOTHING, [why]
    failed = sum(int(row.get("num_failed") or 0) for row in rows)
    drawn = sum(int(row.get("cohort_size") or 0) for row in rows)
    whom = f"of {counted(drawn, nouns.one)} drawn"
    if run.unit != "user":
        whom += f" in the recorded {nouns.turn}s"
    remarks = [whom, "a diagnostic, not covered by ε"]
    if failed:
        remarks.insert(1, "they contributed zero")
        cause = run.summary.get("first_failure")
        remarks.insert(2, f"a cause: {plain(cause)}" if cause else "the log has their causes")
    if mostly := run.summary.get("rounds_mostly_failed"):
        remarks.insert(1, f"more than half in {counted(mostly, nouns.turn)}")
    return title, number(failed), remarks


def rounds_figure(run: RunRecord) -> Figure:
    """Return how many rounds were released of those planned, and why others are missing."""
    turn, planned, done = labels_of(run.unit).turn, run.rounds_planned, run.rounds_done
    title = f"{turn.capitalize()}s"
    remarks = []
    if planned is None:
        text = number(done)
        remarks.append("none were planned" if run.finished else "unfinished")
    else:
        text = f"{done:,} of {planned:,}"
        missing = max(0, planned - done)
        remarks.append(f"{missing:,} missing: {_why(run)}" if missing else "none missing")
    redone = sum(charge.attempt > 1 for charge in state_of(run).charges)
    if redone:
        remarks.append(f"{counted(redone, 'attempt')} redone, each charged")
    return title, text, remarks


def _why(run: RunRecord) -> str:
    if not run.finished:
        return "unfinished"
    return {
        "target-epsilon": "one more would exceed the target ε",
        "lost-attempts": "interrupted attempts used up their charges",
        "nothing-left": "the algorithm had nothing left to ask",
    }.get(str(run.summary.get("stopped_early")), "ended early")


def _figure_html(found: Figure) -> str:
    name, value, remarks = found
    said = "<br>".join(safe(remark) for remark in remarks)
    return f"<div><dt>{safe(name)}</dt><dd>{safe(value)}<small>{said}</small></dd></div>"


def _provenance_html(provenance: Provenance) -> str:
    rows = [
        ("date", safe(provenance.date)),
        ("seed", safe(provenance.seed)),
        ("command", _command_html(provenance)),
        ("version", safe(provenance.version)),
        ("ledger head", f"<code>{safe(provenance.ledger_head)}</code>"),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return f'<dl class="provenance">{cells}</dl>'


def _command_html(provenance: Provenance) -> str:
    if provenance.command is None:
        return safe(provenance.short_command)
    if provenance.command == provenance.short_command:
        return f"<code>{safe(provenance.command)}</code>"
    return (
        f"<details><summary><code>{safe(provenance.short_command)}</code> <span>with every option"
        f"</span></summary><div><code>{safe(provenance.command)}</code></div></details>"
    )


def _where(run: RunRecord) -> list[str]:
    corpus = run.corpus
    parts = []
    if corpus.get("name"):
        parts.append(f"{plain(corpus['name'])}{' (synthetic)' if run.synthetic else ''}")
    if corpus.get("roster") and run.unit == "user":
        parts.append(f"roster {plain(corpus['roster'])}")
    if run.held_out:
        parts.append(plain(run.held_out))
    if corpus.get("num_users"):
        parts.append(counted(corpus["num_users"], labels_of(run.unit).total))
    return parts
