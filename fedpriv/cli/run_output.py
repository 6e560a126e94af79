"""What `fedpriv run` prints at its end: the figures, one a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.cli.output import console
from fedpriv.measures import PUBLIC_ONLY, figures_of, read_measures
from fedpriv.privacy.epsilon import privacy_line
from fedpriv.privacy.statement.coverage import PUBLIC_EXAMPLES, Coverage
from fedpriv.privacy.unit_words import words_of
from fedpriv.running.announcement import early_end, failures


def print_summary(summary: dict[str, Any], covers: Coverage, report: Path) -> None:
    """Print the figures of a finished run, one a line."""
    epsilon = summary["epsilon"]
    said = covers.qualified(
        f"no privacy (ε = ∞): {covers.reason}"
        if epsilon is None
        else privacy_line(
            value=epsilon,
            delta=summary["delta"],
            unit=summary["unit"],
            relation=summary["relation"],
            accountant=summary["accountant"],
            mode=summary["mode"],
        )
    )
    central = summary["unit"] == "example"
    kind, whom = ("data", "training examples") if central else ("corpus", "users")
    made = f"SYNTHETIC {kind} " if summary["synthetic"] else f"{kind} "
    rows: dict[str, str] = {}
    rows["data"] = f"{made}{summary['corpus']}, {summary['users']:,} {whom}"
    if summary.get("split"):
        rows["split"] = str(summary["split"])
    where = "not covered by ε", "on the test set" if central else "on users outside the roster"
    measured = _measured(summary)
    if measured is not None:
        label, text, diagnosed = measured
        rows[label] = f"{text} ({where[0]})" if diagnosed else f"{text} {where[1]}"
    if gained := _gained(summary):
        rows["public-only"] = gained
    rows["privacy"] = said
    turn = words_of(summary["unit"]).turn
    seconds = summary["seconds_per_round"]
    digits = ".2f" if seconds and seconds >= 0.1 else ".1g"
    took = f" at {seconds:{digits}} s" if seconds else ""
    why = early_end(summary)
    rows[f"{turn}s"] = f"{summary['rounds']:,}{took}" + (f"; {why}" if why else "")
    if failed := failures(summary):
        rows["FAILURES" if summary["rounds_mostly_failed"] else "failures"] = failed
    rows["run folder"] = str(summary["run_dir"])
    rows["report"] = str(report)
    width = max(12, *(len(label) + 2 for label in rows))
    for label, value in rows.items():  # no table: it would cut long paths short
        console.print(f"{label:<{width}}{value}", soft_wrap=True, markup=False, highlight=False)


def _gained(summary: dict[str, Any]) -> str | None:
    """Return what public examples alone reach on the same examples, and the gain over that."""
    shown = figures_of(read_measures(summary))
    public = summary.get(f"{shown[0].name}{PUBLIC_ONLY}") if shown else None
    if public is None:
        return None
    headline, gain = shown[0], summary["gain"]
    whom = summary.get("public_only_of", PUBLIC_EXAMPLES)
    whom = f"{whom} alone, ε = 0" if whom == PUBLIC_EXAMPLES else whom
    text = f"{headline.label} {headline.text(public, 2)} of {whom}"
    if gain is None:
        return text
    points = f"{100 * gain:+.2f} points" if headline.form == "share" else f"{gain:+.4g}"
    return f"{text}; gain over it {points}"


def _measured(summary: dict[str, Any]) -> tuple[str, str, bool] | None:
    """Return the headline's label, all figures, and whether they are diagnostics."""
    shown = figures_of(read_measures(summary))
    for diagnosed in (True, False):
        values = {m: summary.get(m.name if diagnosed else m.released_name) for m in shown}
        found = [(measure, value) for measure, value in values.items() if value is not None]
        if found and found[0][0] == shown[0]:
            (headline, value), *others = found
            texts = [headline.text(value, 2)]
            texts += [f"{other.label} {other.text(figure, 2)}" for other, figure in others]
            return headline.label, ", ".join(texts), diagnosed
    return None
