"""The tables of a report: rounds, candidates, settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.checkpoints.tensor_files import PUBLIC_MODEL
from fedpriv.measures import Measure
from fedpriv.privacy.statement.statement import describe_candidate
from fedpriv.report.run_record import DECIDED, Row, RunRecord
from fedpriv.report.wording import NOTHING, difference, epsilon, figure, half_width, number, percent

Columns = Mapping[str, tuple[str, Callable[[Any], str]]]
"""Heading and writer of columns, by their names in a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsTable:
    """Rounds as text.

    Attributes:
        released: Headings of released columns, behind round and attempt.
        diagnosed: Headings of diagnostics.
        rows: Cells of both, for each attempt.
    """

    released: Sequence[str]
    diagnosed: Sequence[str]
    rows: Sequence[tuple[Sequence[str], Sequence[str]]]


def rounds_table(run: RunRecord, attempts: Sequence[Row]) -> RoundsTable:
    """Return attempts that released something; a column that holds nothing is left out."""
    steady = _writer(None)
    released: Columns = {
        "epsilon": ("ε", epsilon),
        **{m.released_name: (m.label, _writer(m)) for m in run.figures},
        "update_norm": ("update norm", steady),
        **{name: (decided_label(name), steady) for name in run.decided},
    }
    diagnosed: Columns = {
        "cohort_size": (run.words.drawn, number),
        "num_failed": ("failed", number),
        **{m.name: (m.label, _writer(m)) for m in run.measures},
        "seconds": ("seconds", lambda value: number(value, 3)),
    }
    found = _diagnosed_rows(run)
    others = [found.get(_key(row), {}) for row in attempts]
    left = {k: v for k, v in released.items() if any(row.get(k) is not None for row in attempts)}
    right = {k: v for k, v in diagnosed.items() if any(row.get(k) is not None for row in others)}
    return RoundsTable(
        released=[name for name, _ in left.values()],
        diagnosed=[name for name, _ in right.values()],
        rows=[
            (
                [number(row.get("round_num")), number(row.get("attempt", 1))]
                + [write(row.get(k)) for k, (_, write) in left.items()],
                [write(other.get(k)) for k, (_, write) in right.items()],
            )
            for row, other in zip(attempts, others, strict=True)
        ],
    )


def decided_label(name: str) -> str:
    """Return what a column is called that a method decided on.

    >>> decided_label("decided_rho_gradient"), decided_label("decided_step_size")
    ('ρ gradient', 'step size')
    """
    return name.removeprefix(DECIDED).replace("_", " ").replace("rho", "ρ")


def _writer(measure: Measure | None) -> Callable[[Any], str]:
    """Return a formatter: of shares, or of four significant digits, so that a column lines up."""
    if measure is not None and measure.form == "share":
        return percent
    return lambda value: NOTHING if value is None else f"{value:#.4g}"


def evaluated_rounds(run: RunRecord) -> list[Row]:
    """Return the attempts after which the model was measured."""
    found = _diagnosed_rows(run)
    return [
        row
        for row in run.attempts
        if any(
            row.get(measure.released_name) is not None
            or found.get(_key(row), {}).get(measure.name) is not None
            for measure in run.figures
        )
    ]


def _diagnosed_rows(run: RunRecord) -> dict[object, Row]:
    return {_key(row): row for row in run.diagnosed_attempts}


def _key(row: Row) -> tuple[object, object]:
    return row.get("round_num"), row.get("attempt")


SETTINGS = {
    "cohort": "cohort",
    "rounds": "rounds",
    "l2_clip_norm": "l2-clip-norm",
    "start_factor": "share that is kept of a public start",
    "update_norm": "median norm of public users' updates",
    "noise_on_mean": "noise on the mean of one release of everybody, over the clip norm",
    "noise_on_logit": "noise on a logit after all rounds",
    "noise_length": "norm of the noise on the mean of one release of everybody, over the clip norm",
    "num_public_examples": "public examples",
}
"""Descriptions of the settings that `experiment.json` has as chosen from the data's size."""


def settings_rows(run: RunRecord) -> dict[str, Any]:
    """Return the settings that were chosen from the data's size, by description; or nothing."""
    if not run.settings:
        return {}
    chosen = run.settings.get("chosen")
    return {
        "chosen": ", ".join(map(str, chosen)) if isinstance(chosen, list) else "",
        **{description: run.settings.get(name) for name, description in SETTINGS.items()},
    }


def candidates_table(run: RunRecord) -> dict[str, Any] | None:
    """Return the models among which the returned one was selected; None where there are none.

    Returns:
        "names" of columns; "rows" of name, cells and whether it was selected; "level" of the lower
        ends; "expected", the model that is returned unless it is behind, or "".
    """
    found = run.selection
    if not found.get("judged") or not run.figures:
        return None
    measure = run.figures[0]
    rows = []
    for name, one in found["judged"].items():
        cells = [NOTHING, NOTHING, NOTHING]
        if name != PUBLIC_MODEL:
            cells = [
                difference(measure, one["gain"]),
                half_width(measure, one["stderr"]),
                difference(measure, one["lower"]),
            ]
        cells = [figure(measure, one["value"]), *cells]
        rows.append((describe_candidate(name), cells, name == found["selected"]))
    return {
        "names": ("model", measure.label, "gain", "standard error", "lower end"),
        "rows": rows,
        "level": percent(found["level"], 0),
        "expected": describe_candidate(found["expected"]) if found.get("expected") else "",
    }
