"""The comparison as one page: plots, tables that sort and filter, differences, cost, privacy.

`fedpriv compare` and studies show their runs with it; a study adds what its runs do not know.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.measures import Measure
from fedpriv.privacy.statement.statement import run_statement
from fedpriv.report import theme
from fedpriv.report.comparison.groups import (
    Group,
    Section,
    curves_of,
    differences,
    gaps,
    mismatches,
    nouns_of,
    sections_of,
    shared_options,
    spread_note,
    styles,
    terms_of,
)
from fedpriv.report.comparison.paired import (
    BY_SEED,
    BY_USER,
    BY_USER_ALONE,
    PUBLIC_ONLY,
    Difference,
    paired_differences,
)
from fedpriv.report.comparison.plots import as_svg, epsilon_plot, level_name, points_of, round_plots
from fedpriv.report.comparison.tables import (
    Cell,
    Row,
    as_csv,
    as_json,
    as_latex,
    cost_table,
    differences_as_csv,
    measured_columns,
    references_of,
    table_of,
)
from fedpriv.report.estimate import FEWEST_SEEDS, Estimate
from fedpriv.report.head import NO_GAIN, Figure, badges, counted
from fedpriv.report.page import write_page
from fedpriv.report.wording import NOTHING, direction, figure
from fedpriv.report.wording import difference as written_difference
from fedpriv.untrusted_text import plain


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """Head of a column.

    Attributes:
        title: What it says.
        remark: Small text below it.
        label: What names its cells on a narrow screen; "" for the title.
        words: Whether its cells are words, sorted as such, or numbers.
        first: How the first click sorts: "ascending" or "descending".
        bold: Whether a cell is bold in a row that is clear.
    """

    title: str
    remark: str = ""
    label: str = ""
    words: bool = False
    first: str = "ascending"
    bold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRow:
    """A row of a table that sorts and filters.

    Attributes:
        title: Its first cell.
        cells: The others.
        remark: Small text below the title.
        filters: What selections find it by, by key.
        mark: A dot and an interval on the scale of all rows.
        reference: Whether other rows are read against it: it stays below them, and is always shown.
        clear: Whether its interval excludes zero.
    """

    title: str
    cells: Sequence[Cell]
    remark: str = ""
    filters: Mapping[str, str] = field(default_factory=dict)
    mark: Mapping[str, Any] | None = None
    reference: bool = False
    clear: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """A selection above a table.

    Attributes:
        label: Its name.
        key: Of the rows' `filters`.
        choices: (value, text); the value "" shows all rows.
        chosen: What is chosen at first.
    """

    label: str
    key: str
    choices: Sequence[tuple[str, str]]
    chosen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """A table that sorts and filters.

    Attributes:
        kind: What a row is: head of the first column.
        heads: Heads of the other columns.
        rows: In the order at first.
        filters: Selections above it.
        marked: Whether the second column shows marks.
        over: Titles over columns, each with how many it spans.
        before: Columns of `heads` before those.
        others: Columns behind those.
    """

    kind: str
    heads: Sequence[ColumnHead]
    rows: Sequence[DataRow]
    filters: Sequence[Filter] = ()
    marked: bool = False
    over: Sequence[tuple[str, int]] = ()
    before: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Parts of a page that runs do not know.

    Attributes:
        title: Heading of the page.
        leads: Paragraphs below it.
        badges: Labels, each with whether it is a warning.
        figures: Key figures.
        tables: Further tables with their titles: trials that failed, what a search tried.
        privacy: Paragraphs before the privacy statements.
        command: What makes it again, or "".
        versions: Versions of libraries; those of the runs where empty.
        downloads: Further files: (name, what it is, type, content).
        document: Entries of the JSON file besides rows and differences.
        name: What files are called, without a suffix.
    """

    title: str
    leads: Sequence[str] = ()
    badges: Sequence[tuple[str, bool]] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[tuple[str, DataTable]] = ()
    privacy: Sequence[str] = ()
    command: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    downloads: Sequence[tuple[str, str, str, bytes]] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    name: str = "comparison"


def render(groups: Sequence[Group], heading: Heading | None = None) -> str:
    """Return the comparison page as HTML; see `render_with_files`."""
    return render_with_files(groups, heading)[0]


def render_with_files(
    groups: Sequence[Group], heading: Heading | None = None
) -> tuple[str, dict[str, bytes]]:
    """Return the comparison page as HTML, and the files that its head offers, by name.

    Args:
        groups: The groups; of a study whose trials all failed none.
        heading: Of a study; None for that of a comparison.

    Guarantees:
        Those of the report's page.
        The page's policy allows one script, which is part of the page, and no request.
    """
    sections = sections_of(groups)
    head = _heading_of(groups, sections) if heading is None else heading
    num_runs = sum(len(group.runs) for group in groups)
    paired = [paired_differences(section) for section in sections]
    files = _downloads(groups, head, [one for part in paired for one in part])
    page = theme.render(
        "comparison.html.md",
        title=f"{head.title} · fedpriv",
        head=head,
        downloads=[
            {
                "name": name,
                "what": what,
                "href": f"data:{kind};base64,{base64.b64encode(content).decode()}",
            }
            for name, what, kind, content in files
        ],
        parts=[
            _part(section, found, num_runs, study=heading is not None)
            for section, found in zip(sections, paired, strict=True)
        ],
        statements=_statements(groups),
        versions=head.versions or _versions(groups),
        script=theme.script("tables.js.md"),
    )
    return page, {name: content for name, _, _, content in files}


def _heading_of(groups: Sequence[Group], sections: Sequence[Section]) -> Heading:
    num_runs = sum(len(group.runs) for group in groups)
    corpora = dict.fromkeys(section.corpus for section in sections)
    return Heading(
        title=f"{counted(len(groups), 'experiment')} compared",
        leads=[f"{counted(num_runs, 'run')} on {', '.join(corpora)}"],
        privacy=privacy_paragraphs(groups),
    )


def privacy_paragraphs(groups: Sequence[Group], *, several: bool = True) -> list[str]:
    """Return what holds of every ε of the page, and what none of them covers.

    Args:
        groups: The groups.
        several: Whether to say that the ε of several runs add up; else the caller says it.
    """
    private = [group for group in groups if group.head.private]
    runs = [run for group in groups for run in group.runs]
    texts = []
    if terms := terms_of(groups):
        texts.append(f"Every ε is stated with {terms}. It is that of one run, rounded up.")
    if len(private) < len(groups):
        texts.append("Runs without privacy guarantee nothing to anyone: their ε is infinite.")
    if several and sum(len(group.runs) for group in private) > 1:
        texts.append(
            "No ε covers that many runs were trained on the same data: to someone who sees them "
            "all, their ε add up. Nor does one cover choosing among them by values measured on "
            f"{nouns_of(Section(groups=tuple(private))).rostered}s."
        )
    texts += list(dict.fromkeys(gaps(groups)))
    if any(run.synthetic for run in runs):
        texts.append(
            "Synthetic data: no real person is in it. Accuracy on it says nothing of accuracy on "
            "real data."
        )
    if any(run.simulated for run in runs):
        texts.append(
            "Simulated: noise and cohorts came from a seed, which anybody who knows it can "
            "subtract. The ε are those that the same runs would have in secure mode."
        )
    return texts


def _statements(groups: Sequence[Group]) -> list[tuple[str, str, Any]]:
    """Return the privacy statement of the run with the largest ε for each set of terms."""
    found: dict[tuple[str, ...], Group] = {}
    for group in groups:
        if group.head.private:
            key = (terms_of([group]), *group.coverage.not_covered)
            if key not in found or group.epsilon > found[key].epsilon:
                found[key] = group
    return [
        (
            f"Privacy statement of {group.label}",
            "of one run, the one with the largest ε on these terms",
            run_statement(group.head).sections,
        )
        for group in found.values()
    ]


def _versions(groups: Sequence[Group]) -> dict[str, str]:
    """Return the versions that the runs ran on, each once."""
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        for run in group.runs:
            versions = run.description.get("versions")
            for name, version in versions.items() if isinstance(versions, Mapping) else ():
                found.setdefault(str(name), {})[str(version)] = None
    return {name: ", ".join(versions) for name, versions in found.items()}


def _downloads(
    groups: Sequence[Group], head: Heading, paired: Sequence[Difference]
) -> list[tuple[str, str, str, bytes]]:
    """Return the files that the page holds: (name, what it is, type, content)."""
    files = [
        (f"{head.name}.csv", "every row", "text/csv", as_csv(groups).encode()),
        (f"{head.name}.tex", "table for a paper", "application/x-tex", as_latex(groups).encode()),
        (
            f"{head.name}.json",
            "everything",
            "application/json",
            as_json(groups, paired, head.document).encode(),
        ),
        *head.downloads,
    ]
    if paired:
        text = differences_as_csv(paired)
        files.insert(1, (f"{head.name}-differences.csv", "paired", "text/csv", text.encode()))
    if any(points_of(section) for section in sections_of(groups)):
        files.append((f"{head.name}.svg", "plot", "image/svg+xml", as_svg(groups).encode()))
    return files


def _part(
    section: Section, paired: Sequence[Difference], num_runs: int, *, study: bool
) -> dict[str, Any]:
    """Return what the template needs of one part of the page."""
    groups, best = section.groups, section.nonprivate
    headlines = [group.head.figures[0] for group in groups if group.head.figures]
    # Of a study each method is one column: its ε are in every other table.
    columns = [c.groups for c in curves_of(groups)] if study else [(group,) for group in groups]
    options = differences(columns)
    if study:
        options = {name: found for name, found in options.items() if name not in _OF_LEVELS}
    measure = section.headline
    return {
        "title": section.title,
        "nouns": nouns_of(section),
        "mismatches": mismatches(groups),
        "against": epsilon_plot(section),
        "against_title": f"{measure.title if measure else ''} against ε",
        "unlike": section.unlike if study else "",
        "leaders": leaders(section, paired) if study else [],
        "table": runs_table(section),
        "terms": terms_of(groups),
        "gaps": gaps(groups),
        "diagnosed": list(
            dict.fromkeys(
                column.measure.label
                for column in measured_columns(section)
                if column.diagnosed and column.measure in headlines
            )
        ),
        "public_only": section.public_only,
        "public_only_note": section.public_only_note,
        "gap_closed_known": any(section.gap_closed(group) is not None for group in groups),
        "majority_known": section.majority is not None,
        "best": best[0].label if best else "",
        "spread": spread_note(section),
        "many_runs": num_runs > 1 and any(group.head.private for group in groups),
        "paired": paired_table(section, paired) if paired else None,
        "paired_note": _paired_note(section, paired),
        "plots": round_plots(section),
        "cost": _data_table(section, *cost_table(section)),
        "same": shared_options(groups),
        "labels": [column[0].method or column[0].label for column in columns],
        "differences": options,
    }


_OF_LEVELS = ("target_epsilon", "noise.multiplier", "output_noise.noise_multiplier")


def leaders(section: Section, paired: Sequence[Difference]) -> list[str]:
    """Return a sentence for each ε: the best method, and by how much it leads the next."""
    lead = section.lead
    if lead is None:
        return []
    names = {id(g): curve.label for curve in curves_of(section.groups) for g in curve.groups}
    found = {(d.level, d.first, d.second): d for d in paired}
    found |= {(d.level, d.second, d.first): d.reversed() for d in paired}
    texts = []
    for level in sorted({group.level for group in section.groups}):
        reached = [
            (names[id(g)], value.mean, g.public_model)
            for g in section.groups
            if g.level == level and g.finished and (value := g.measure(lead)) is not None
        ]
        if len(reached) < 2:
            continue
        reached.sort(key=lambda one: -lead.measure.worth(one[1]))
        (first, value, public), (second, _, next_public) = reached[:2]
        text = f"{level_name(level)}: {first}, {figure(lead.measure, value)}"
        text += f" ({public})" if public else ""
        if not math.isfinite(level):
            text = text[:1].upper() + text[1:]
        if over := found.get((level, first, PUBLIC_ONLY)):
            text += f", {_over_public(lead.measure, over, value)}"
        if ahead := found.get((level, first, second)):
            ends = _ends(lead.measure, ahead)
            unclear = "" if ahead.excludes_zero or not ends else "; it does not tell them apart"
            next_one = f"{second} ({next_public})" if next_public else second
            text += f". Next: {next_one}, by {written_difference(lead.measure, ahead.value)}"
            text += f" ({_interval_text(ends, ahead.seeds)}{unclear})"
        texts.append(f"{text}.")
    return texts


def _over_public(measure: Measure, over: Difference, value: float) -> str:
    side, public = "below" if over.value < 0 else "above", figure(measure, value - over.value)
    size = written_difference(measure, over.value).lstrip("+-−")  # 0 has no sign
    interval = _interval_text(_ends(measure, over), over.seeds)
    return f"{size} {side} {PUBLIC_ONLY} ({public}; {interval})"


def _interval_text(ends: str, seeds: int) -> str:
    return f"95 % interval {ends}" if ends else f"{counted(seeds, 'seed')}: no interval"


def _ends(measure: Measure, found: Difference) -> str:
    if found.low is None or found.high is None:
        return ""
    low, high = (written_difference(measure, end) for end in (found.low, found.high))
    return f"{low.removesuffix(' points')} to {high.removesuffix(' points')}"


def paired_table(section: Section, paired: Sequence[Difference]) -> DataTable:
    """Return every difference both ways round, at first those from one method or public-only."""
    measure = section.headline
    assert measure is not None  # or there would be no difference
    names = [curve.label for curve in curves_of(section.groups)]
    if any(one.second == PUBLIC_ONLY for one in paired):
        names.insert(0, PUBLIC_ONLY)
    both = [*paired, *(one.reversed() for one in paired if one.second != PUBLIC_ONLY)]
    order = {name: place for place, name in enumerate(names)}
    both.sort(key=lambda one: (one.level, order[one.second], order[one.first]))
    some = dict.fromkeys(one.second for one in both)
    return DataTable(
        kind="method",
        heads=[
            ColumnHead("compared with", words=True),
            ColumnHead("ε", label="ε"),
            ColumnHead("difference", direction(measure), first="descending", bold=True),
            ColumnHead("95 % interval"),
            ColumnHead("seeds"),
            ColumnHead("interval over", words=True),
        ],
        rows=[
            DataRow(
                title=one.first,
                cells=[
                    Cell(one.second),
                    Cell(_level_text(one.level), value=one.level),
                    Cell(written_difference(measure, one.value), value=one.value),
                    Cell(_ends(measure, one) or NOTHING, value=one.low),
                    Cell(str(one.seeds), value=one.seeds),
                    Cell(one.clusters.partition(",")[0] or NOTHING),
                ],
                filters={"level": _level_text(one.level), "second": one.second},
                clear=one.excludes_zero,
            )
            for one in both
        ],
        filters=[
            Filter(
                label="compared with",
                key="second",
                choices=[("", "all"), *((name, plain(name)) for name in names if name in some)],
                chosen=next(name for name in names if name in some),
            ),
            _level_filter(one.level for one in both),
        ],
    )


def _paired_note(section: Section, paired: Sequence[Difference]) -> str:
    kinds = {one.clusters for one in paired}
    texts = ["Same seeds and held-out examples; bold: the 95 % interval excludes zero."]
    if {BY_USER, BY_USER_ALONE} & kinds:
        texts.append(
            "Intervals over users: users, with all of their examples, and seeds are resampled in "
            "a paired bootstrap; they say what other users of the same kind would give, and know "
            "nothing of seeds where there is one."
        )
    if BY_SEED in kinds:
        texts.append(
            "Intervals over seeds: Student's t of the differences seed by seed, on the same "
            f"{nouns_of(section).contributor}s."
        )
    if "" in kinds:
        texts.append(f"No interval: fewer than {FEWEST_SEEDS} seeds.")
    texts.append("Each interval is of one difference; none is corrected for how many there are.")
    return " ".join(texts)


def _level_text(level: float) -> str:
    return f"{level:g}" if math.isfinite(level) else "∞"


def _level_filter(levels: Any) -> Filter:
    found = [_level_text(level) for level in sorted(set(levels))]
    return Filter(label="ε", key="level", choices=[("", "all"), *((one, one) for one in found)])


def _data_table(section: Section, names: Sequence[str], rows: Sequence[Row]) -> DataTable:
    """Return a table of groups whose columns are numbers."""
    return DataTable(
        kind=_kind(section),
        heads=[ColumnHead(name) for name in names],
        rows=[
            DataRow(title=row.title, cells=row.cells, filters=_filters(row.group)) for row in rows
        ],
        filters=[_level_filter(group.level for group in section.groups)],
    )


def _kind(section: Section) -> str:
    return "method" if section.groups[0].method else "experiment"


def _filters(group: Group | None) -> dict[str, str]:
    return {} if group is None else {"level": _level_text(group.level)}


def runs_table(section: Section) -> DataTable:
    """Return `table_of` for the template, each row with a dot on a common scale."""
    lead, groups, nouns = section.lead, section.groups, nouns_of(section)
    columns = measured_columns(section)
    remarks = [_remarks(group) for group in groups]
    # What holds of every row is in the head of a study's page.
    shared = set.intersection(*map(set, remarks)) if groups[0].method else set[str]()
    shared -= {group.public_model for group in groups}
    marks = [
        (
            group.measure(lead) if lead else None,
            colour,
            " · ".join(remark for remark in found if remark not in shared),
        )
        for group, found, (colour, _) in zip(groups, remarks, styles(groups), strict=True)
    ]
    marks += [(value, "muted", "") for _, _, value in references_of(section)]
    scale = max([e.mean + (e.half_width or 0) for e, _, _ in marks if e], default=0.0)
    names, rows = table_of(section)
    before = int(bool(groups[0].method))  # ε, in a study
    heads = [
        ColumnHead(name, first="descending" if name.startswith("ga") else "ascending")
        for name in names
    ]
    for place, column in enumerate(columns, before):
        heads[place] = ColumnHead(
            column.measure.label,
            direction(column.measure),
            label=names[place],
            first="descending" if column.measure.higher_is_better else "ascending",
        )
    return DataTable(
        kind=_kind(section),
        heads=heads,
        rows=[
            DataRow(
                title=row.title,
                cells=row.cells,
                remark=remark,
                filters=_filters(row.group),
                mark=_strip(value, scale, colour),
                reference=row.group is None,
            )
            for row, (value, colour, remark) in zip(rows, marks, strict=True)
        ],
        filters=[_level_filter(group.level for group in groups)],
        marked=True,
        over=[
            (f"{noun}s", sum(column.diagnosed == diagnosed for column in columns))
            for diagnosed, noun in ((True, nouns.tested), (False, nouns.public))
        ],
        before=before,
        others=len(names) - len(columns) - before,
    )


def _remarks(group: Group) -> list[str]:
    found = badges(group.head, run_statement(group.head))
    labels = [label for label, _ in found if label not in ("Simulated", NO_GAIN)]
    return [*labels, *([group.public_model] if group.public_model else [])]


def _strip(value: Estimate | None, scale: float, colour: str) -> dict[str, Any]:
    """Return where the dot of a row is and where its interval ends, of 120 pixels from zero."""

    def at(share: float) -> str:
        return f"{5 + 110 * min(max(share / scale, 0.0), 1.0):.1f}"

    if value is None or scale <= 0:
        return {"dot": None}
    ends = [at(end) for end in value.interval] if value.interval else []
    return {"dot": at(value.mean), "ends": ends, "colour": colour}


_WRITERS: Mapping[str, Callable[[Sequence[Group]], str]] = {
    ".html": render,
    ".csv": as_csv,
    ".tex": as_latex,
    ".json": as_json,
    ".svg": as_svg,
}


def check_outputs(paths: Sequence[Path]) -> None:
    """Refuse a file that could not be written, before any run is read.

    Raises:
        ValueError: If the suffix is none of those that can be written, or it is a folder.
    """
    for path in paths:
        if path.suffix.lower() not in _WRITERS:
            known = ", ".join(_WRITERS)
            raise ValueError(f"{path} ends in none of {known}, which say what is written; add one")
        if path.is_dir():
            raise ValueError(f"{path} is a folder; give the name of a file to write")


def write_file(groups: Sequence[Group], path: Path) -> None:
    """Write a comparison in the form that the file's suffix names.

    Raises:
        ValueError: If the suffix is not known, or there is nothing to draw.
    """
    check_outputs([path])
    content = _WRITERS[path.suffix.lower()](groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(path, content)
