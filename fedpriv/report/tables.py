"""The tables of a report: rounds, configuration, versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedpriv.checkpoints.tensor_files import PUBLIC_MODEL
from fedpriv.measures import Measure
from fedpriv.privacy.statement.statement import describe_candidate
from fedpriv.report.run_record import DECIDED, Row, RunRecord
from fedpriv.report.wording import (
    NOTHING,
    difference,
    epsilon,
    figure,
    half_width,
    labels_of,
    number,
    percent,
)
from fedpriv.untrusted_text import safe


def _steady(value: float | None) -> str:
    """Return four significant digits, trailing zeros kept, so that a column lines up."""
    return NOTHING if value is None else f"{value:#.4g}"


Columns = Mapping[str, tuple[str, Callable[[Any], str]]]


def released_columns(run: RunRecord) -> Columns:
    """Return heading and writer of every released column, by its name in a record."""
    return {
        "epsilon": ("ε", epsilon),
        **{m.released_name: (m.label, _writer(m)) for m in run.figures},
        "update_norm": ("update norm", _steady),
        **{name: (decided_label(name), _steady) for name in run.decided},
    }


def decided_label(name: str) -> str:
    """Return what a column is called that a method decided on.

    >>> decided_label("decided_rho_gradient"), decided_label("decided_step_size")
    ('ρ gradient', 'step size')
    """
    return name.removeprefix(DECIDED).replace("_", " ").replace("rho", "ρ")


def diagnosed_columns(run: RunRecord) -> Columns:
    """Return the same of diagnostics."""
    return {
        "cohort_size": (labels_of(run.unit).drawn, number),
        "num_failed": ("failed", number),
        **{m.name: (m.label, _writer(m)) for m in run.measures},
        "seconds": ("seconds", lambda value: number(value, 3)),
    }


def _writer(measure: Measure) -> Callable[[Any], str]:
    return percent if measure.form == "share" else _steady


def evaluated_rounds(run: RunRecord) -> list[Row]:
    """Return the attempts after which the model was measured."""
    found = _diagnosed_rows(run)
    return [
        row
        for row in run.attempts
        if any(
            value.get(name) is not None
            for measure in run.figures
            for value, name in (
                (row, measure.released_name),
                (found.get(_key(row), {}), measure.name),
            )
        )
    ]


def rounds_tables(run: RunRecord) -> str:
    """Return the evaluated rounds as a table, and below it, folded, every round."""
    turn = labels_of(run.unit).turn
    if not run.attempts:
        return f'<p class="note">No {turn} has been released yet.</p>'
    evaluated = evaluated_rounds(run)
    if not evaluated or len(evaluated) == len(run.attempts):
        return _rounds_table(run, run.attempts)
    return (
        f"{_rounds_table(run, evaluated)}<details><summary>Every {turn} <span>"
        f"{len(run.attempts):,} released</span></summary><div>"
        f"{_rounds_table(run, run.attempts)}</div></details>"
    )


def _diagnosed_rows(run: RunRecord) -> dict[object, Row]:
    return {_key(row): row for row in run.diagnostics}


def _key(row: Row) -> tuple[object, object]:
    return row.get("round_num"), row.get("attempt")


def _rounds_table(run: RunRecord, attempts: Sequence[Row]) -> str:
    """Return attempts that released something, one row each."""
    nouns = labels_of(run.unit)
    found = _diagnosed_rows(run)
    # Columns that nothing was ever written to would only be in the way.
    left = _written(released_columns(run), attempts)
    right = _written(diagnosed_columns(run), [found.get(_key(row), {}) for row in attempts])
    groups = f'<th colspan="{2 + len(left)}">Released</th>'
    if right:
        groups += f'<th class="first" colspan="{len(right)}">Diagnostics, not covered by ε</th>'
    names = "".join(f"<th>{safe(name)}</th>" for name, _ in left.values())
    # The first column of the second group keeps a distance from the first group.
    style = {k: "diagnostic first" if i == 0 else "diagnostic" for i, k in enumerate(right)}
    names += "".join(f'<th class="{style[k]}">{safe(v[0])}</th>' for k, v in right.items())
    body = []
    for row in attempts:
        other = found.get(_key(row), {})
        cells = "".join(
            f"<td>{safe(number(value))}</td>"
            for value in (row.get("round_num"), row.get("attempt", 1))
        )
        cells += "".join(f"<td>{safe(show(row.get(k)))}</td>" for k, (_, show) in left.items())
        cells += "".join(
            f'<td class="{style[k]}">{safe(show(other.get(k)))}</td>'
            for k, (_, show) in right.items()
        )
        body.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="rounds"><thead><tr>{groups}</tr>'
        f"<tr><th>{nouns.turn}</th><th>attempt</th>{names}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _written(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> Columns:
    found = {name for row in rows for name in columns if row.get(name) is not None}
    return {name: column for name, column in columns.items() if name in found}


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


def candidates_table(run: RunRecord) -> str:
    """Return the models among which the returned one was selected, one row each."""
    found, measure = run.selection, run.figures[0]
    names = ("model", measure.label, "gain", "±", "lower end")
    rows = []
    for name, one in found["judged"].items():
        cells = [figure(measure, one["value"]), NOTHING, NOTHING, NOTHING]
        if name != PUBLIC_MODEL:
            cells[1:] = [
                difference(measure, one["gain"]),
                half_width(measure, one["stderr"]),
                difference(measure, one["lower"]),
            ]
        said = describe_candidate(name) + (" (returned)" if name == found["selected"] else "")
        strong = f"<strong>{safe(said)}</strong>" if name == found["selected"] else safe(said)
        rows.append(
            f'<tr><td style="text-align:left">{strong}</td>'
            f"{''.join(f'<td>{safe(c)}</td>' for c in cells)}</tr>"
        )
    heads = "".join(f"<th>{safe(name)}</th>" for name in names)
    return (
        f'<div class="scroll"><table class="rounds"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def pairs_table(values: Mapping[str, Any]) -> str:
    """Return names and values; nested objects are written with dotted names."""
    rows = "".join(
        f"<tr><th>{safe(name)}</th><td>{safe(value)}</td></tr>" for name, value in flatten(values)
    )
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield dotted names with values as text, in the given order.

    >>> list(flatten({"a": {"b": 1, "c": None}, "d": [1, 2]}))
    [('a.b', '1'), ('a.c', '–'), ('d', '1, 2')]
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            simple = all(not isinstance(item, Mapping | list) for item in value)
            text = ", ".join(map(exact, value)) if simple else json.dumps(value)
            yield f"{prefix}{name}", text or NOTHING
        else:
            yield f"{prefix}{name}", exact(value)


def exact(value: object) -> str:
    """Return a configuration value as it would be typed: all digits, no groups."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
