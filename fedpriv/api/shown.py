"""How a run is shown: as text in a console, as HTML in a notebook."""

from __future__ import annotations

import textwrap

from fedpriv.privacy.statement.statement import (
    NO_EPSILON_COVERS,
    Statement,
    describe_returned_model,
)
from fedpriv.report.head import badges, key_figures
from fedpriv.report.run_record import RunRecord
from fedpriv.report.wording import as_html as sections_html
from fedpriv.report.wording import labels_of
from fedpriv.runs.progress import describe_failures
from fedpriv.untrusted_text import plain, safe

_WIDTH = 100


def as_text(run: RunRecord, statement: Statement) -> str:
    """Return the figures and the promise of a run as lines of text."""
    turns = _turns(run)
    labels = ", ".join(label for label, warns in badges(run, statement) if warns)
    lines = [f"Run of {plain(run.title)}: {turns}" + (f" [{labels}]" if labels else "")]
    said, _ = describe_returned_model(run.summary)
    if said:
        lines.append(_line("returned", said))
    lines += [_line("data", _data(run))]
    for name, value, remarks in key_figures(run):
        if name != "ε":
            lines.append(_line(name.lower(), f"{value} ({'; '.join(remarks)})"))
    if failed := describe_failures(run.summary):
        lines.append(_line("failures", failed))
    lines.append(_line("privacy", statement.headline))
    for number, paragraph in enumerate(_not_covered(statement)):
        lines.append(_line("" if number else "no ε covers", paragraph))
    return "\n".join(lines)


def as_html(run: RunRecord, statement: Statement) -> str:
    """Return the same as HTML without scripts, with the whole statement folded below."""
    labels = "".join(f" <b>[{safe(label)}]</b>" for label, _ in badges(run, statement))
    turns = _turns(run)
    said, _ = describe_returned_model(run.summary)
    returns = f"<p><b>Returned: {safe(said)}.</b></p>" if said else ""
    figures = "".join(
        f"<tr><th style='text-align:left'>{safe(name)}</th><td style='text-align:left'>"
        f"{safe(value)}</td><td style='text-align:left'>{safe('; '.join(remarks))}</td></tr>"
        for name, value, remarks in [("data", _data(run), []), *key_figures(run)]
    )
    return (
        f"<div><p>Run of <b>{safe(run.title)}</b>: {safe(turns)}{labels}</p>"
        f"{returns}<table><tbody>{figures}</tbody></table>"
        f"<p>{safe(statement.headline)}</p>"
        f"<details><summary>Privacy statement</summary>{sections_html(statement.sections)}"
        "</details></div>"
    )


def _turns(run: RunRecord) -> str:
    planned = "" if run.rounds_planned is None else f" of {run.rounds_planned:,}"
    return f"{run.rounds_done:,}{planned} {labels_of(run.unit).turn}s"


def _data(run: RunRecord) -> str:
    made = "SYNTHETIC " if run.synthetic else ""
    kind = "corpus" if run.unit == "user" else "data"
    users, noun = run.corpus.get("num_users"), labels_of(run.unit).total
    counted = f", {users:,} {noun}s" if isinstance(users, int) else ""
    return f"{made}{kind} {plain(run.corpus.get('name', ''))}{counted}"


def _not_covered(statement: Statement) -> tuple[str, ...]:
    found = [part.paragraphs for part in statement.sections if part.title == NO_EPSILON_COVERS]
    return found[0] if found else ()


def _line(label: str, text: str) -> str:
    return textwrap.fill(
        " ".join(plain(text).split()),
        width=_WIDTH,
        initial_indent=f"  {label + ' ':<12}",
        subsequent_indent=" " * 14,
        break_on_hyphens=False,
        break_long_words=False,
    )
