"""The comparison as plain values (JSON, CSV, data frames) and its figures as plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedpriv.measures import ACCURACY, Measure
from fedpriv.privacy.statement.coverage import KEY
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.comparison.groups import Group, columns_of
from fedpriv.report.comparison.sections import sections_of
from fedpriv.report.headline import Estimate
from fedpriv.report.promise import guaranteed
from fedpriv.report.wording import NOTHING, difference, figure, half_width


def as_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the comparison as JSON values; an infinite ε is null with `private` false."""
    rows, columns = [], columns_of(groups)
    closed = {
        group.label: section.gap_closed(group)
        for section in sections_of(groups)
        for group in section.groups
    }
    for group in groups:
        run = group.head
        promise = guaranteed(run) if run.private else None
        row: dict[str, Any] = {
            "name": group.name,
            "label": group.label,
            "runs": [str(r.directory) for r in group.runs],
            "seeds": [r.options.get("seed") for r in group.runs],
            "private": run.private,
            "synthetic": run.synthetic,
            "simulated": run.simulated,
            "no_meaningful_protection": run_statement(run.directory).no_meaningful_protection,
            "epsilon": group.epsilon if math.isfinite(group.epsilon) else None,
            KEY: list(group.coverage.not_covered),
            "delta": promise.delta if promise else None,
            "relation": promise.relation.value if promise else None,
            "unit": run.unit,
            "accountant": promise.accountant if promise else None,
            "rounds": min(r.rounds_done for r in group.runs),
            "rounds_planned": run.rounds_planned,
            "finished": group.finished,
            "users": run.corpus.get("num_users"),
            "corpus": run.corpus.get("name"),
            "roster": run.corpus.get("roster"),
        }
        for column in columns:
            value = group.measure(column)
            row[column.key] = value.mean if value else None
            row[f"{column.key}_interval"] = (
                list(value.interval) if value and value.interval else None
            )
        row |= _against_public(group, closed.get(group.label))
        rows.append(row)
    return rows


def _against_public(group: Group, closed: float | None) -> dict[str, Any]:
    """Return what a figure is read against: majority class, public-only, and the gain over it."""
    run, gain, public_only = group.head, group.gain, group.public_only
    row: dict[str, Any] = {}
    if run.figures:
        measure = run.figures[0]
        row[f"{measure.name}_public_only"] = public_only.mean if public_only else None
        if measure == ACCURACY:
            row["majority_class_accuracy"] = run.majority_class_accuracy
    row["gain"] = gain.mean if gain else None
    row["gain_interval"] = list(gain.interval) if gain and gain.interval else None
    row["gap_closed"] = closed
    return row


def measure_text(measure: Measure, value: Estimate | None) -> str:
    """Return a figure with half its interval, as plain text."""
    if value is None:
        return NOTHING
    spread = "" if value.half_width is None else f" ± {half_width(measure, value.half_width)}"
    return figure(measure, value.mean) + spread


def gain_text(group: Group) -> str:
    """Return the gain over public-only with half its interval, as plain text."""
    gain = group.gain
    if gain is None or not group.head.figures:
        return NOTHING
    measure = group.head.figures[0]
    spread = "" if gain.half_width is None else f" ± {half_width(measure, gain.half_width)}"
    return difference(measure, gain.mean) + spread
