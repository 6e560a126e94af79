"""The comparison as rows of values, and as tables: JSON, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedpriv.measures import ACCURACY, MAJORITY, Measure
from fedpriv.privacy.statement.coverage import KEY
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report.comparison.groups import (
    Column,
    Group,
    Section,
    columns_of,
    gaps,
    interval_words,
    mismatches,
    nouns_of,
    sections_of,
    spread_note,
    terms_of,
)
from fedpriv.report.comparison.paired import Difference, paired_differences
from fedpriv.report.estimate import Estimate, estimate
from fedpriv.report.run_record import total_epsilon
from fedpriv.report.wording import NOTHING, difference, epsilon, figure, half_width, number, percent
from fedpriv.untrusted_text import plain


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: What it says.
        remark: Small text behind it.
        value: What rows are sorted by; None last.
    """

    text: str
    remark: str = ""
    value: float | None = None

    @property
    def line(self) -> str:
        """Text and remark on one line."""
        return " ".join(filter(None, (self.text, self.remark)))


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        title: Name of the group or of what it is read against.
        cells: One for each column.
        group: The group; None of a row that others are read against.
    """

    title: str
    cells: list[Cell]
    group: Group | None = None


def measured_columns(section: Section) -> list[Column]:
    """Return the columns that something was measured for, in one of the groups."""
    groups = section.groups
    return [c for c in columns_of(groups) if any(group.measure(c) for group in groups)]


def table_of(section: Section) -> tuple[list[str], list[Row]]:
    """Return the names of the columns, and the rows: the groups, then what they are read against.

    The measured columns come first, each named with those whose values it has; in a study, where ε
    is a part of a row's name, after ε.
    """
    nouns, groups = nouns_of(section), section.groups
    columns = measured_columns(section)
    first: list[tuple[str, Callable[[Group], Cell]]] = [("ε", _epsilon_cell)]
    names = [
        f"{c.measure.label}, {nouns.tested if c.diagnosed else nouns.public}s" for c in columns
    ]
    more: list[tuple[str, Callable[[Group], Cell]]] = []
    if any(group.gain for group in groups):
        more.append(("gain over public-only", gain_cell))
    if any(section.gap_closed(group) is not None for group in groups):
        more.append(("gap closed", lambda group: _share_cell(section.gap_closed(group))))
    if not groups[0].method:
        first, more = [], more + first
    more += [
        (f"{nouns.turn}s", lambda group: _count_cell(min(r.rounds_done for r in group.runs))),
        ("seeds", lambda group: _count_cell(len(group.runs))),
    ]
    rows = []
    for group in groups:
        cells = [cell(group) for _, cell in first]
        cells += [measure_cell(column.measure, group.measure(column)) for column in columns]
        cells += [cell(group) for _, cell in more]
        rows.append(Row(group.method or group.label, cells, group))
    for name, spent, value in references_of(section):
        cells = [
            measure_cell(c.measure, value) if c == section.lead else Cell(NOTHING) for c in columns
        ]
        before, after = (
            [Cell(spent if n == "ε" else NOTHING) for n, _ in part] for part in (first, more)
        )
        rows.append(Row(name, before + cells + after))
    return [*(name for name, _ in first), *names, *(name for name, _ in more)], rows


def cost_table(section: Section) -> tuple[list[str], list[Row]]:
    """Return what each group cost: rounds, cohort, noise, and seconds where they are known."""
    nouns = nouns_of(section)
    columns: list[tuple[str, Callable[[Group], Cell]]] = [
        ("ε", _epsilon_cell),
        (f"{nouns.turn}s", lambda group: _count_cell(min(r.rounds_done for r in group.runs))),
        (
            f"{nouns.contributor}s a {nouns.turn}",
            lambda group: _number_cell(group.head.mechanism.get("expected_cohort_size")),
        ),
        ("noise multiplier", lambda group: _number_cell(noise_multiplier(group))),
        (f"seconds a {nouns.turn}", lambda group: _mean_cell(seconds_per_round(group))),
        ("seconds a run", lambda group: _mean_cell(estimate(group.seconds))),
    ]
    rows = [
        Row(group.method or group.label, [cell(group) for _, cell in columns], group)
        for group in section.groups
    ]
    known = [
        place
        for place in range(len(columns))
        if any(row.cells[place].text != NOTHING for row in rows)
    ]
    return (
        [columns[place][0] for place in known],
        [Row(row.title, [row.cells[place] for place in known], row.group) for row in rows],
    )


def noise_multiplier(group: Group) -> float | None:
    """Return the noise multiplier of its plan; None without noise, or where there is none."""
    found = (group.head.mechanism.get("privatizer") or {}).get("noise_multiplier")
    known = group.head.private and isinstance(found, int | float) and found > 0
    return float(found) if known else None  # type: ignore[arg-type]


def seconds_per_round(group: Group) -> Estimate | None:
    """Return the mean seconds of a round, over the finished runs: a diagnostic."""
    return estimate([run.summary.get("seconds_per_round") for run in group.runs])


def _epsilon_cell(group: Group) -> Cell:
    return Cell(epsilon(group.epsilon), group.coverage.mark, group.epsilon)


def _count_cell(value: int) -> Cell:
    return Cell(number(value), value=value)


def _number_cell(value: Any) -> Cell:
    known = isinstance(value, int | float) and math.isfinite(value)
    return Cell(number(float(value)), value=float(value)) if known else Cell(NOTHING)


def _share_cell(value: float | None) -> Cell:
    return Cell(percent(value, 0), value=value)


def _mean_cell(value: Estimate | None) -> Cell:
    return Cell(NOTHING) if value is None else Cell(number(value.mean, 3), value=value.mean)


def measure_cell(measure: Measure, value: Estimate | None) -> Cell:
    """Return a value and half its interval."""
    if value is None:
        return Cell(NOTHING)
    spread = "" if value.half_width is None else f"± {half_width(measure, value.half_width)}"
    return Cell(figure(measure, value.mean), spread, value.mean)


def gain_cell(group: Group) -> Cell:
    """Return the gain over public-only, and half its interval with the unit."""
    gain = group.gain
    if gain is None:
        return Cell("not measured" if group.public_only is None else NOTHING)
    measure = group.head.figures[0]
    if gain.mean == 0.0:
        return Cell("none", value=gain.mean)
    value, _, unit = difference(measure, gain.mean).partition(" ")
    spread = "" if gain.half_width is None else f"± {half_width(measure, gain.half_width)}"
    return Cell(value, " ".join(filter(None, (spread, unit))), gain.mean)


def references_of(section: Section) -> list[tuple[str, str, Estimate]]:
    """Return what needs no private run: (name, its ε, its value in the leading column)."""
    found = [
        ("majority class", NOTHING, estimate([section.majority])),
        ("public-only", "0", section.public_only),
    ]
    return [(name, spent, value) for name, spent, value in found if value is not None]


def as_csv(groups: Sequence[Group]) -> str:
    """Return the rows of `fedpriv compare --json` as CSV; lists are joined by semicolons."""
    return rows_as_csv(as_rows(groups))


def differences_as_csv(differences: Sequence[Difference]) -> str:
    """Return paired differences as CSV, the ends of an interval in columns of their own."""
    rows = []
    for one in differences:
        row = one.to_json()
        del row["interval"]
        rows.append(row | {"low": one.low, "high": one.high})
    return rows_as_csv(rows)


def rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, a column for each name; lists are joined by semicolons.

    An interval `name_interval` is two columns of numbers, `name_low` and `name_high`.
    """
    rows = [_with_ends(row) for row in rows]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    # Runs that measure different things have different names in their rows.
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer.writerow(names)
    writer.writerows([_csv_cell(row.get(name)) for name in names] for row in rows)
    return file.getvalue()


def _with_ends(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        stem, mark, rest = name.rpartition("_interval")
        if mark and not rest:
            flat[f"{stem}_low"], flat[f"{stem}_high"] = value or (None, None)
        else:
            flat[name] = value
    return flat


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    if isinstance(value, str):
        text = plain(value)
        # A spreadsheet would run what begins so as a formula.
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
    return value


_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "—": "---", "…": r"\ldots{}", "\u202f": r"\,",
}  # fmt: skip
_GREEK = (  # from U+03B1 on; omicron has no command
    "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi - pi rho varsigma "
    "sigma tau upsilon varphi chi psi omega"
)
_CAPITALS = "Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Φ Phi Ψ Psi Ω Omega"
_OTHERS = (
    "ϵ epsilon ϕ phi µ mu ∞ infty ± pm × times · cdot ≤ le ≥ ge ≠ ne ≈ approx → to ← leftarrow ∈ in"
)
_NAMES = {chr(0x3B1 + n): name for n, name in enumerate(_GREEK.split()) if name != "-"}
_NAMES |= dict(pair.split() for pair in re.findall(r"\S+ \S+", f"{_CAPITALS} {_OTHERS}"))
_MATHS = {sign: f"\\{name}" for sign, name in _NAMES.items()} | {"−": "-", "⁻": "^{-}"}
_MATHS |= {sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_MATHS |= {sign: f"_{digit}" for digit, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")}
_SIGNS |= {sign: f"\\ensuremath{{{maths}}}" for sign, maths in _MATHS.items()}


def as_json(
    groups: Sequence[Group],
    paired: Sequence[Difference] | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Return the rows and the paired differences as a JSON document.

    Args:
        groups: The groups.
        paired: Their differences, where they are known already.
        more: Further entries, of JSON values.
    """
    if paired is None:
        paired = [one for section in sections_of(groups) for one in paired_differences(section)]
    document = {
        "format": "fedpriv-comparison",
        "version": 1,
        **(more or {}),
        "rows": as_rows(groups),
        "differences": [one.to_json() for one in paired],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_latex(groups: Sequence[Group]) -> str:
    """Return the comparison as tables for a paper; they need the package booktabs.

    A study has a row for each method and a column for each ε.
    """
    parts = [
        _grid(section) if section.groups[0].method else _table(section)
        for section in sections_of(groups)
    ]
    return "% Needs \\usepackage{booktabs}.\n" + "\n".join(parts)


def escaped(value: object) -> str:
    r"""Return any value as one line of LaTeX text that means only itself.

    >>> print(escaped("50 % of a_b\\n"))
    50 \% of a\_b\textbackslash{}n
    """
    text = " ".join(plain(value).split())
    return "".join(_SIGNS.get(sign, sign) for sign in text)


def _table(section: Section) -> str:
    names, rows_of = table_of(section)
    rows = []
    for title, cells, group in rows_of:
        # What an ε does not cover is in the caption.
        texts = [
            cell.text if name == "ε" else cell.line for name, cell in zip(names, cells, strict=True)
        ]
        marks = () if group is None else (group.unfinished_mark, group.public_model)
        rows.append([", ".join(filter(None, (title, *marks))), *texts])
    body = "\n".join(f"{' & '.join(map(escaped, row))} \\\\" for row in rows)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{escaped(_caption(section))}}}\n"
        f"\\begin{{tabular}}{{l{'r' * len(names)}}}\n\\toprule\n"
        f"{' & '.join(map(escaped, ['experiment', *names]))} \\\\\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _grid(section: Section) -> str:
    """Return the headline of a study, methods by ε; the best of each column is bold."""
    lead, measure = section.lead, section.headline
    by_level: dict[float, list[Group]] = {}
    for group in section.groups:
        by_level.setdefault(group.level, []).append(group)
    levels = sorted(by_level)
    found = {
        (group.method, group.level): value
        for group in section.groups
        if lead is not None and (value := group.measure(lead)) is not None
    }
    public = {(g.method, g.level): g.public_model for g in section.groups if g.public_model}
    best = {
        level: max(
            (measure.worth(found[key].mean) for key in found if key[1] == level), default=None
        )
        for level in levels
        if measure is not None
    }
    rows = []
    for method in dict.fromkeys(group.method for group in section.groups):
        cells = []
        for level in levels:
            value = found.get((method, level))
            if value is None or measure is None:
                cells.append(escaped(NOTHING))
                continue
            cell = measure_cell(measure, value)
            text = escaped(cell.text)
            if measure.worth(value.mean) == best[level]:
                text = f"\\textbf{{{text}}}"
            text += "*" if (method, level) in public else ""
            cells.append(" ".join(filter(None, (text, escaped(cell.remark)))))
        rows.append([escaped(method), *cells])
    for name, _, value in references_of(section):
        text = escaped(measure_cell(measure, value).line) if measure is not None else ""
        rows.append([escaped(name), f"\\multicolumn{{{len(levels)}}}{{c}}{{{text}}}"])
    heads = [escaped(_level_head(level, by_level[level])) for level in levels]
    body = "\n".join(f"{' & '.join(row)} \\\\" for row in rows)
    of = " in some or all of the runs" if any(" in " in one for one in public.values()) else ""
    marked = f" *: this is the public model{of}." if public else ""
    caption = escaped(f"{_caption(section)} Bold: the best of a column.{marked}")
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{caption}}}\n"
        f"\\begin{{tabular}}{{l{'r' * len(levels)}}}\n\\toprule\n"
        f"{' & '.join([escaped('method'), *heads])} \\\\\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _level_head(level: float, groups: Sequence[Group]) -> str:
    """Return the head of a column: the target ε, or what was spent where that is more."""
    if not math.isfinite(level):
        return "not private"
    spent = max(group.epsilon for group in groups)
    return f"ε = {level:g}" if spent <= level else f"ε = {epsilon(spent)}"


def _caption(section: Section) -> str:
    """Return what the figures are meaningless without."""
    groups, nouns = section.groups, nouns_of(section)
    terms = terms_of(groups)
    said = [f"{section.title}."]
    said += [f"ε with {terms}."] if terms else ["No run is private."]
    said += gaps(groups)
    if any(column.diagnosed for column in measured_columns(section)):
        said.append(f"Figures of {nouns.diagnosed}.")
    if any(group.head.simulated for group in groups):
        said.append("Simulated: the noise came from a seed.")
    if section.public_only is None:
        said.append("Public-only was not measured.")
    said.append(spread_note(section))
    if found := mismatches(groups):
        said.append(f"Not like with like: the runs differ in {', '.join(found)}.")
    if groups[0].method and (found := section.unlike):
        said.append(f"Not like with like: {found}")
    return " ".join(filter(None, said))


def as_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the comparison as JSON values; an infinite ε is null with `private` false."""
    rows, columns = [], columns_of(groups)
    of = {id(group): section for section in sections_of(groups) for group in section.groups}
    for group in groups:
        run = group.head
        guarantee = total_epsilon(run) if run.private else None
        spent_on = seconds_per_round(group)
        row: dict[str, Any] = {
            "name": group.name,
            "label": group.label,
            **_of_study(group),
            # A study's page is passed on; its trials are found by their keys.
            "runs": [r.folder.name if group.method else str(r.folder) for r in group.runs],
            "seeds": [r.options.get("seed") for r in group.runs],
            "private": run.private,
            "synthetic": run.synthetic,
            "simulated": run.simulated,
            "no_meaningful_protection": run_statement(run).no_meaningful_protection,
            "epsilon": group.epsilon if math.isfinite(group.epsilon) else None,
            KEY: list(group.coverage.not_covered),
            "delta": guarantee.delta if guarantee else None,
            "relation": guarantee.relation.value if guarantee else None,
            "unit": run.unit,
            "accountant": guarantee.accountant if guarantee else None,
            "rounds": min(r.rounds_done for r in group.runs),
            "rounds_planned": run.rounds_planned,
            "finished": group.finished,
            "noise_multiplier": noise_multiplier(group),
            "seconds_per_round": spent_on.mean if spent_on else None,
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
        row["interval_over"] = interval_words(of[id(group)]) or None
        row["returns_public_model"] = sum(run.returns_public for run in group.runs)
        row |= _against_public(group, of[id(group)].gap_closed(group))
        rows.append(row)
    return rows


def _of_study(group: Group) -> dict[str, Any]:
    """Return what names a group within a study; nothing of runs that are of none."""
    if not group.method:
        return {}
    seconds = estimate(group.seconds)
    return {
        "method": group.method,
        "data": group.part,
        "target_epsilon": group.level if math.isfinite(group.level) else None,
        "seconds": seconds.mean if seconds else None,
    }


def _against_public(group: Group, closed: float | None) -> dict[str, Any]:
    """Return what a figure is read against: majority class, public-only, and the gain over it."""
    run, gain, public_only = group.head, group.gain, group.public_only
    row: dict[str, Any] = {}
    if run.figures:
        measure = run.figures[0]
        row[f"{measure.name}_public_only"] = public_only.mean if public_only else None
        if measure == ACCURACY:
            row |= {n: run.baseline(ACCURACY, public=n == MAJORITY[True]) for n in MAJORITY}
    row["gain"] = gain.mean if gain else None
    row["gain_interval"] = list(gain.interval) if gain and gain.interval else None
    row["gap_closed"] = closed
    return row
