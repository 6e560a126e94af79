"""What tuning chose for a table, and from how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student

from fedpriv.privacy.epsilon import format_delta, rounded_up
from fedpriv.privacy.statement.coverage import Coverage
from simulations.reproduction.items import (
    TUNING_SEED,
    Block,
    Cell,
    Figure,
    Item,
    Reproduction,
    Row,
    Settings,
)
from simulations.reproduction.runs import Done, Run, all_figures, best, curve_of, tried, worth


def choice_lines(table: Reproduction, done: Done, *, reduced: bool) -> list[str]:
    """Return Markdown lines of the settings behind every cell, and of the grid.

    Raises:
        ValueError: If a tuning run is missing.
    """
    lines = ["", "## Chosen settings", "", "| column | method | settings |", "|---|---|---|"]
    for column, row, cell in _tuned_cells(table):
        settings = best(table, cell, done, reduced=reduced)
        chosen = ", ".join(f"{name} {value}" for name, value in settings.items())
        lines.append(f"| {table.columns[column]} | {row.label} | {chosen} |")
    grids = [
        (column, row, list(tried(cell, reduced=reduced)))
        for column, row, cell in _tuned_cells(table)
        if cell.tuned_as is None and len(cell.grid) > 1
    ]
    runs: set[str] = {run.identity for _, _, found in grids for run in found}
    lines += [
        "",
        "## The grid",
        "",
        f"{len(runs)} tuning runs, on seed {TUNING_SEED}. What is not listed takes its settings "
        "over from what is.",
        "",
        "| column | method | configurations | best on the tuning seed | on an edge of the grid |",
        "|---|---|---:|---:|---|",
    ]
    for column, row, found in grids:
        shown = _best_shown(table, done, found)
        chosen = best(table, row.cells[column], done, reduced=reduced)
        edges = ", ".join(edges_of(chosen, row.cells[column].grid)) or "nothing"
        lines.append(
            f"| {table.columns[column]} | {row.label} | {len(found)} | {shown} | {edges} |"
        )
    return lines


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


def _tuned_cells(table: Reproduction) -> Iterator[tuple[str, Row, Cell]]:
    for column in table.columns:
        for row in table.rows:
            if column in row.cells:
                yield column, row, row.cells[column]


def _best_shown(table: Reproduction, done: Done, runs: Sequence[Run]) -> str:
    top = max((done[run.identity] for run in runs), key=lambda row: worth(table, row))
    if not math.isfinite(worth(table, top)):
        return "diverged"
    return f"{top[table.measure.name] * table.scale:.{table.layout.digits}f}"


#: Methods with one ε that are named; more of them are "all others".
_MOST_NAMED = 6

Found = Mapping[tuple[str, str], list[dict[str, Any]]]


def table_markdown(
    table: Reproduction, done: Done, *, seeds: Sequence[int], reduced: bool = False
) -> str:
    """Return the table: paper and ours side by side, mean and spread, ε as counted and as true.

    Raises:
        ValueError: If a run is missing.
    """
    found = all_figures(table, done, seeds=seeds, reduced=reduced)
    lines = [f"# {heading(table, found)}", ""]
    lines += [
        f"{measured(table)} on {table.measured_on}, {_over(table, seeds)}.{_size(reduced)} "
        f"ε as the paper counted it: {table.paper_epsilon}.",
    ]
    for block in table.layout.sections or (Block(title="", columns=table.columns),):
        lines += ["", f"## {block.title}"] if block.title else []
        lines += ["", *_table_lines(table, found, block.columns)]
        lines += _epsilon_list(found, block.columns)
    if table.layout.choices:
        lines += choice_lines(table, done, reduced=reduced)
    if table.orderings:
        lines += ["", "Orderings of the paper:", ""]
        for first, second in table.orderings:
            verdicts = [
                f"{name}: {_verdict(table, found, first, second, column)}"
                for column, name in table.columns.items()
            ]
            lines.append(f"- {first} ahead of {second}: " + "; ".join(verdicts))
    lines += ["", *(f"{note}\n" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _table_lines(table: Reproduction, found: Found, columns: Mapping[str, str]) -> list[str]:
    # A paper that printed nothing has no column.
    printed = any(row.paper is not None for row in table.rows)
    corner = "| | paper | " if printed else f"| {measured(table).lower()} | "
    lines = [
        corner + " | ".join(columns.values()) + " |",
        "|---|" + "---:|" * (printed + len(columns)),
    ]
    for given in table.given:
        cells = [
            "–" if (value := given.figures.get(column)) is None else _figure(value, table)
            for column in columns
        ]
        paper = "– | " if printed else ""
        lines.append(f"| {given.label} | {paper}{' | '.join(cells)} |")
    for row in table.rows:
        paper = f"{'–' if row.paper is None else f'{row.paper:g}'} | " if printed else ""
        lines.append(f"| {row.label} | {paper}{_cells(table, found, row.label, columns)} |")
    return lines


def _figure(value: float, table: Reproduction) -> str:
    return f"{value * table.scale:.{table.layout.digits}f}"


def figure_markdown(
    figure: Figure,
    done: Done,
    *,
    seeds: Sequence[int],
    reduced: bool = False,
    picture: str | None = None,
) -> str:
    """Return the page of a figure: where its curves end, and every ε.

    Args:
        figure: What is shown.
        done: Runs by identity.
        seeds: Which are reported.
        reduced: Whether they are of the reduced size.
        picture: Address of the plot, from where the page will lie; None leaves it out.

    Raises:
        ValueError: If a run is missing.
    """
    found = all_figures(figure, done, seeds=seeds, reduced=reduced)
    lines = [f"# {heading(figure, found)}", ""]
    if picture is not None:
        lines += [f"![{measured(figure)} over the steps]({picture})", ""]
    lines += [
        f"{measured(figure)} on test after the last step, {_over(figure, seeds)}.{_size(reduced)}",
        "",
        "| | " + " | ".join(figure.columns.values()) + " |",
        "|---|" + "---:|" * len(figure.columns),
    ]
    lines += [
        f"| {row.label} | {_cells(figure, found, row.label, figure.columns)} |"
        for row in figure.series
    ]
    lines += _jump_table(figure, found)
    lines += _epsilon_list(found, figure.columns)
    lines += ["", *(f"{note}\n" for note in figure.notes)]
    return "\n".join(lines).rstrip() + "\n"


def jumps(row: Mapping[str, Any], figure: Figure) -> float:
    """Return how much a curve still fluctuates: how far a point lies from the middle of its two.

    The mean absolute distance of a point from the mean of its neighbours, which a steady descent
    does not count into, over the second half of the curve; scaled as the measure. NaN where it
    diverged or has fewer than three points there.
    """
    track = curve_of(row, figure.measure)
    points = [math.nan if value is None else value for _, value in track[len(track) // 2 :]]
    triples = zip(points, points[1:], points[2:], strict=False)
    gaps = [abs(own - (before + after) / 2) for before, own, after in triples]
    return mean(gaps) * figure.scale if gaps else math.nan


def _jump_table(figure: Figure, found: Found) -> list[str]:
    lines = [
        "",
        "How much the curves still jump: the mean distance of a point from the middle of its two "
        "neighbours, over the second half.",
        "",
        "| | " + " | ".join(figure.columns.values()) + " |",
        "|---|" + "---:|" * len(figure.columns),
    ]
    for row in figure.series:
        cells = [found.get((row.label, column)) for column in figure.columns]
        shown = ["–" if rows is None else _shown_jumps(rows, figure) for rows in cells]
        lines.append(f"| {row.label} | " + " | ".join(shown) + " |")
    return lines


def _shown_jumps(rows: Sequence[Mapping[str, Any]], figure: Figure) -> str:
    found = [jumps(row, figure) for row in rows]
    return f"{mean(found):.4f}" if all(map(math.isfinite, found)) else "–"


def heading(item: Item, found: Found) -> str:
    """Return the title; synthetic data are said in it."""
    rows = [row for cell in found.values() for row in cell]
    return item.title + (" (SYNTHETIC data)" if any(row["synthetic"] for row in rows) else "")


def measured(item: Item) -> str:
    """Return the measure, with what it is multiplied by."""
    if item.measure.form == "share" and item.scale == 100.0:
        return f"{item.measure.title}, %"
    return item.measure.title + (f" x {item.scale:g}" if item.scale != 1.0 else "")


def values(rows: Sequence[Mapping[str, Any]], item: Item) -> list[float]:
    """Return the figures of runs, scaled; NaN where one diverged."""
    return [
        float("nan") if row[item.measure.name] is None else row[item.measure.name] * item.scale
        for row in rows
    ]


def spread(figures: Sequence[float], item: Item) -> float:
    """Return what stands behind ±, of two figures or more."""
    deviation = stdev(figures)
    if item.layout.spread == "deviation":
        return deviation
    count = len(figures)
    return float(student.ppf(0.975, count - 1)) * deviation / math.sqrt(count)


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
    if row.get("options", {}).get("target-epsilon") is not None and "noise_multiplier" in row:
        added += f", noise multiplier {row['noise_multiplier']:.4f}"
    text = (
        f"{rounded_up(row['epsilon'], 2):.2f} at δ = {format_delta(row['delta'])} ("
        f"{row['relation']}, per {row['unit']}, {row['accountant']}{added}, simulated)"
    )
    return Coverage(not_covered=tuple(row["not_covered"])).qualified(text)


def _epsilon_list(found: Found, columns: Mapping[str, str]) -> list[str]:
    lines = ["", "ε that the runs truly have:", ""]
    for column, name in columns.items():
        labels_of = epsilons(found, column)
        if len(labels_of) == 1:
            lines.append(f"- {name}: {next(iter(labels_of))}")
        else:
            most = sorted(labels_of, key=lambda text: len(labels_of[text]))[-1:]
            if most and len(labels_of[most[0]]) > _MOST_NAMED:
                labels_of[most[0]] = ["all others"]
            parts = (f"{text}: {', '.join(labels)}" for text, labels in labels_of.items())
            lines.append(f"- {name}: {'; '.join(parts)}")
    return lines


def _over(item: Item, seeds: Sequence[int]) -> str:
    kind = "standard deviation"
    if item.layout.spread == "interval":
        kind = "half the 95 % t-interval"
    return f"mean and {kind} of {len(seeds)} seeds"


def _size(reduced: bool) -> str:
    return " Reduced size." if reduced else ""


def _cells(item: Item, found: Found, label: str, columns: Mapping[str, str]) -> str:
    shown = []
    for column in columns:
        rows = found.get((label, column))
        text = "–" if rows is None else _shown(values(rows, item), item)
        bold = item.layout.bold_best and label in _best_private(item, found, column)
        shown.append(f"**{text}**" if bold else text)
    return " | ".join(shown)


def _best_private(item: Item, found: Found, column: str) -> list[str]:
    """Return the labels with the best mean of a column among what is private."""
    means = {
        label: mean(values(rows, item)) * (1.0 if item.measure.higher_is_better else -1.0)
        for (label, own), rows in found.items()
        if own == column and rows[0]["epsilon"] is not None
    }
    finite = [value for value in means.values() if math.isfinite(value)]
    return [label for label, value in means.items() if finite and value == max(finite)]


def _shown(figures: Sequence[float], item: Item) -> str:
    if not all(map(math.isfinite, figures)):
        return "diverged"
    digits = item.layout.digits
    behind = f" ± {spread(figures, item):.{digits}f}" if len(figures) > 1 else ""
    return f"{mean(figures):.{digits}f}{behind}"


def _verdict(table: Reproduction, found: Found, first: str, second: str, column: str) -> str:
    if (first, column) not in found or (second, column) not in found:
        return "not run"
    one, other = (values(found[label, column], table) for label in (first, second))
    fine = [all(map(math.isfinite, figures)) for figures in (one, other)]
    if not all(fine):
        if any(fine):
            return "held (the other diverged)" if fine[0] else "NOT held (diverged)"
        return "both diverged"
    ahead = mean(one) - mean(other)
    if not table.measure.higher_is_better:
        ahead = -ahead
    noise = max(stdev(one), stdev(other)) if min(len(one), len(other)) > 1 else 0.0
    if abs(ahead) <= noise:
        return "within the spread"
    return "held" if ahead > 0 else "NOT held"
