"""Pages of tables and figures: ours and the paper's, every ε, and what tuning chose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import mean, stdev
from typing import Any

from scipy import stats

from fedpriv.experiments.options import Option
from fedpriv.privacy.epsilon import format_delta, rounded_up
from fedpriv.privacy.statement.coverage import Coverage
from simulations.reproduction import study
from simulations.reproduction.items import TUNING_SEED, Block, Row, Settings, Table
from simulations.reproduction.runs import Done, best, curve_of, reported_runs, runs_of_grid, worth
from simulations.reproduction.study import synthetic_words, t_half

#: What is behind ±, as pages call it.
_SPREADS = {"deviation": "standard deviation", "interval": "half the 95 % t-interval"}
#: Methods with one ε that are named; more of them are "all others".
_MOST_NAMED = 6

#: Reported rows by label and column.
Found = Mapping[tuple[str, str], list[dict[str, Any]]]


def markdown(
    table: Table,
    done: Done,
    *,
    seeds: Sequence[int],
    reduced: bool = False,
    picture: str | None = None,
) -> str:
    """Return the page of a table or figure: means and spreads, and ε as counted and as true.

    Args:
        table: What is shown.
        done: Runs by identity.
        seeds: Which are reported.
        reduced: Whether they are of the reduced size.
        picture: Address of a figure's plot, from where the page will lie; None leaves it out.

    Raises:
        ValueError: If a run is missing.
    """
    found = reported_runs(table, done, seeds=seeds, reduced=reduced)
    return study.render(
        "reproduction/page.md.jinja",
        item=table, picture=picture, reduced=reduced, seeds=len(seeds),
        heading=heading(table, found), synthetic=_synthetic(found), measured=measured(table),
        data=", ".join(sorted({row["data"] for cell in found.values() for row in cell})),
        spread=_SPREADS[table.layout.spread],
        devices=study.trained_on(row for cell in found.values() for row in cell),
        is_figure=table.kind == "figure", tuning_seed=TUNING_SEED,
        blocks=table.layout.sections or (Block(title="", columns=table.columns),),
        values_table=partial(_values_table, table, found),
        jumps_table=partial(_jumps_table, table, found),
        epsilon_lines=partial(_epsilon_lines, found),
        choices=_choices(table, done, reduced=reduced) if table.layout.choices else None,
        verdicts=lambda first, second: [
            f"{name}: {_verdict(table, found, first, second, column)}"
            for column, name in table.columns.items()
        ],
    )  # fmt: skip


def heading(table: Table, found: Found) -> str:
    """Return the title, and whether the data are synthetic."""
    return table.title + synthetic_words(_synthetic(found))


def _synthetic(found: Found) -> bool:
    return any(row["synthetic"] for cell in found.values() for row in cell)


def measured(table: Table) -> str:
    """Return the measure, with what it is multiplied by."""
    if table.measure.form == "share" and table.scale == 100.0:
        return f"{table.measure.title}, %"
    return table.measure.title + (f" x {table.scale:g}" if table.scale != 1.0 else "")


def values(rows: Sequence[Mapping[str, Any]], table: Table) -> list[float]:
    """Return the values of runs, scaled; NaN where one diverged."""
    found = [row[table.measure.name] for row in rows]
    return [math.nan if value is None else value * table.scale for value in found]


def spread(numbers: Sequence[float], table: Table) -> float:
    """Return what is behind ±, of two values or more."""
    return stdev(numbers) if table.layout.spread == "deviation" else t_half(numbers)


def _values_table(table: Table, found: Found, columns: Mapping[str, str]) -> str:
    # A paper that printed nothing has no column, nor has a figure.
    printed = not table.points and any(row.paper is not None for row in table.rows)
    head = ["", "paper"] if printed else ["" if table.points else measured(table).lower()]
    rows = []
    # As many digits as the paper printed: 0.80, not 0.8.
    texts = [f"{row.paper:g}" for row in table.rows if row.paper is not None]
    digits = max((len(text.partition(".")[2]) for text in texts), default=0)
    for row in table.rows:
        paper = ["–" if row.paper is None else f"{row.paper:.{digits}f}"] * printed
        rows.append([row.label, *paper, *(_cell(table, found, row.label, c) for c in columns)])
    return study.table([*head, *columns.values()], rows)


def _number(value: float, table: Table) -> str:
    return f"{value:.{table.layout.digits}f}"


def _cell(table: Table, found: Found, label: str, column: str) -> str:
    if (label, column) not in found:
        return "–"
    numbers = values(found[label, column], table)
    text = "diverged"
    if all(map(math.isfinite, numbers)):
        behind = f" ± {_number(spread(numbers, table), table)}" if len(numbers) > 1 else ""
        text = f"{_number(mean(numbers), table)}{behind}"
    bold = table.layout.bold_best and label in _best_private(table, found, column)
    return f"**{text}**" if bold else text


def _best_private(table: Table, found: Found, column: str) -> list[str]:
    """Return the labels with the best mean of a column among what is private."""
    means = {
        label: mean(values(rows, table)) * (1.0 if table.measure.higher_is_better else -1.0)
        for (label, own), rows in found.items()
        if own == column and rows[0]["epsilon"] is not None
    }
    finite = [value for value in means.values() if math.isfinite(value)]
    return [label for label, value in means.items() if finite and value == max(finite)]


def jumps(row: Mapping[str, Any], table: Table) -> float:
    """Return the `fluctuation` of the second half of a run's curve, scaled as the measure."""
    track = curve_of(row, table.measure)
    return fluctuation([value for _, value in track[len(track) // 2 :]]) * table.scale


def fluctuation(points: Sequence[float | None]) -> float:
    """Return the mean absolute distance of points from the mean of their two neighbours.

    A steady descent does not count into it. NaN where a point diverged (None), or there are fewer
    than three.
    """
    values = [math.nan if value is None else value for value in points]
    triples = zip(values, values[1:], values[2:], strict=False)
    gaps = [abs(own - (before + after) / 2) for before, own, after in triples]
    return mean(gaps) if gaps else math.nan


def _jumps_table(table: Table, found: Found) -> str:
    def cell(rows: Sequence[Mapping[str, Any]]) -> str:
        numbers = [jumps(row, table) for row in rows]
        fine = numbers and all(map(math.isfinite, numbers))
        return f"{mean(numbers):.4f}" if fine else "–"

    rows = [
        [row.label, *(cell(found.get((row.label, column), ())) for column in table.columns)]
        for row in table.rows
    ]
    return study.table(["", *table.columns.values()], rows)


def epsilons(found: Found, column: str) -> dict[str, list[str]]:
    """Return the labels of a column's methods by what their ε is, in words."""
    labels_of: dict[str, list[str]] = {}
    for (label, own), rows in found.items():
        if own == column:
            labels_of.setdefault(_epsilon(rows[0]), []).append(label)
    return labels_of


def _epsilon(row: Mapping[str, Any]) -> str:
    if row["epsilon"] is None:
        return "∞, not private"
    rdp = row["epsilon_rdp"]
    added = f", RDP {rounded_up(rdp, 2):.2f}" if rdp is not None else ""
    if row.get("options", {}).get("target_epsilon") is not None and "noise_multiplier" in row:
        added += f", noise multiplier {row['noise_multiplier']:.4f}"
    text = (
        f"{rounded_up(row['epsilon'], 2):.2f} at δ = {format_delta(row['delta'])} ("
        f"{row['relation']}, per {row['unit']}, {row['accountant']}{added}, simulated)"
    )
    return Coverage(not_covered=tuple(row["not_covered"])).qualified(text)


def _epsilon_lines(found: Found, columns: Mapping[str, str]) -> list[str]:
    lines = []
    for column, name in columns.items():
        labels_of = epsilons(found, column)
        if len(labels_of) == 1:
            lines.append(f"{name}: {next(iter(labels_of))}")
            continue
        # Methods come before their ε: behind it they would read as what it does not cover.
        most = sorted(labels_of, key=lambda text: len(labels_of[text]))[-1:]
        if most and len(labels_of[most[0]]) > _MOST_NAMED:
            del labels_of[most[0]]
            labels_of[most[0]] = ["all others"]  # behind those that are named
        lines += [f"{name} ({'; '.join(of)}): {text}" for text, of in labels_of.items()]
    return lines


def _choices(table: Table, done: Done, *, reduced: bool) -> dict[str, Any]:
    """Return tables of the settings behind every cell and of the grid, and how many runs it has."""
    chosen, grids, identities, unlisted = [], [], set(), set()
    for column, row in _places(table):
        cell, heads = row.cells[column], [table.columns[column], row.label]
        settings = best(table, cell, done, reduced=reduced)
        words = ", ".join(f"{name} {_setting(value)}" for name, value in settings.items())
        chosen.append([*heads, words])
        if cell.tuned_as is None and len(cell.grid) > 1:
            runs = [run.identity for run in runs_of_grid(cell, reduced=reduced)]
            identities.update(runs)
            top = max((done[run] for run in runs), key=lambda one: worth(table, one))
            text = "diverged"
            if math.isfinite(worth(table, top)):
                text = _number(top[table.measure.name] * table.scale, table)
            edges = ", ".join(edges_of(settings, cell.grid)) or "nothing"
            grids.append([*heads, len(runs), text, edges])
        else:
            unlisted.add(
                "were given" if cell.tuned_as is None else "follow from those of a row that is"
            )
    head = ["column", "method", "configurations", "best on the tuning seed",
            "on an edge of the grid"]  # fmt: skip
    return {
        "settings": study.table(["column", "method", "settings"], chosen, words=3),
        "grid": study.table(head, grids, words=2).replace("---:|---:|---:|", "---:|---:|---|", 1),
        "runs": len(identities),
        "unlisted": " or ".join(sorted(unlisted, reverse=True)),
    }


def _setting(value: Option) -> Option:
    """Return a setting as it is read: a product such as 0.1 x 0.1 has digits that no one chose."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def edges_of(chosen: Settings, grid: Sequence[Settings]) -> list[str]:
    """Return which numbers of chosen settings are the least or the most that a grid has of them.

    What has one value in the grid was not tuned, and is not on an edge.
    """
    found = []
    for name, value in chosen.items():
        tried_values = {settings[name] for settings in grid if name in settings}
        numbers = [n for n in tried_values if isinstance(n, int | float)]
        if len(numbers) > 1 and value in (min(numbers), max(numbers)):
            found.append(f"{name} ({'least' if value == min(numbers) else 'most'})")
    return found


def _places(table: Table) -> Iterator[tuple[str, Row]]:
    for column in table.columns:
        for row in table.rows:
            if column in row.cells:
                yield column, row


def _verdict(table: Table, found: Found, first: str, second: str, column: str) -> str:
    if (first, column) not in found or (second, column) not in found:
        return "not run"
    one, other = (values(found[label, column], table) for label in (first, second))
    fine = [all(map(math.isfinite, numbers)) for numbers in (one, other)]
    if not all(fine):
        if any(fine):
            return "held (the other diverged)" if fine[0] else "NOT held (diverged)"
        return "both diverged"
    ahead = mean(one) - mean(other)
    if not table.measure.higher_is_better:
        ahead = -ahead
    if min(len(one), len(other)) < 2:
        return "not judged: one seed has no interval"
    if abs(ahead) <= welch_half(one, other):
        return "within the interval"
    return "held" if ahead > 0 else "NOT held"


def welch_half(one: Sequence[float], other: Sequence[float]) -> float:
    """Return half the 95 % interval of the difference of two means, by Welch's t.

    0 of single values, or where none differs.
    """
    if min(len(one), len(other)) < 2 or not stdev(one) + stdev(other):
        return 0.0
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    return float(interval.high - interval.low) / 2.0
