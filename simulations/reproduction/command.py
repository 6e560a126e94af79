"""`fedpriv reproduce`: lists studies, does the runs that they lack, and prints and draws them."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedpriv.cli.output import console, errors, print_table
from fedpriv.output_paths import check_file, writing_to
from fedpriv.runs.progress import Pace, moves, plain_lines
from simulations.reproduction.items import AnyItem, Item
from simulations.reproduction.page import figure_markdown, table_markdown
from simulations.reproduction.plot import draw
from simulations.reproduction.runs import (
    Run,
    complete,
    final_runs,
    pending,
    read,
    synthetic_data,
    tuning_runs,
)

#: Entry-point group of further packages with tables and figures.
REPRODUCTIONS = "fedpriv.reproductions"


def find_reproductions() -> dict[str, AnyItem]:
    """Return every table and figure of a paper, by name.

    Looks in `simulations` and the packages of the entry-point group `fedpriv.reproductions`, in
    `REPRODUCTIONS`: names of modules with a tuple of that name.
    """
    found: dict[str, AnyItem] = {}
    further = {entry.value for entry in importlib.metadata.entry_points(group=REPRODUCTIONS)}
    for package in sorted(further | {"simulations"}):
        for module in importlib.import_module(package).REPRODUCTIONS:
            for item in importlib.import_module(module).REPRODUCTIONS:
                found[item.name] = item
    return found


def reproduce(
    *,
    name: str | None,
    corpus: str | None,
    seeds: int,
    reduced: bool,
    results: Path,
    out: Path | None,
    plot: Path | None,
    processes: int,
) -> None:
    """Reproduce a table or figure, or list them all; options as `fedpriv reproduce --help` says.

    Raises:
        ValueError: If an option is refused, or data of an item are not to be had.
    """
    found = find_reproductions()
    if name is None:
        _list(found)
        return
    if seeds < 1 or processes < 1:
        raise ValueError(f"--seeds {seeds} and --processes {processes} must be at least 1")
    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--plot {plot} must end in .png or .svg")
    items, pages = _named(found, name), list[str]()
    if corpus is not None:
        for item in items:
            if item.kind != "script" or "corpus" not in item.passes:
                raise ValueError(
                    f"{item.name} brings its own data and takes no --corpus; leave it out, or "
                    "reproduce tags"
                )
    for option, asked in (("out", out), ("plot", plot)):
        without = [i.name for i in items if i.kind == "script" and option not in i.passes]
        if asked is not None and without:
            raise ValueError(
                f"--{option} {asked} is not taken by {', '.join(without)}, which prints or draws "
                "in its own place; leave it out"
            )
    for option, file in (("--results", results), ("--out", out), ("--plot", plot)):
        if file is not None:
            check_file(file, option)
    wanted = _Wanted(
        seeds=range(seeds),
        reduced=reduced,
        results=results,
        out=out,
        processes=processes,
        corpus=corpus,
    )
    missing: dict[str, ValueError] = {}
    for item in items:
        picture = plot
        if plot is not None and len(items) > 1:
            picture = plot.with_stem(f"{plot.stem}-{item.name}")
        try:
            text = _reproduced(item, wanted, picture)
        except ValueError as error:
            if len(items) == 1:
                raise
            # One data set that is not to be had does not keep the others from being run.
            missing[item.name] = error
            errors.print(f"{item.name}: {error}", style="red", markup=False, soft_wrap=True)
            continue
        if item.kind == "script":  # it prints, and writes, what it has
            continue
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        pages.append(text)
        if out is not None:  # after each, so that a long night leaves what it had
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("\n".join(pages), "utf-8")
    if missing:
        raise ValueError(f"not reproduced: {', '.join(missing)}; the reasons are above")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """How items are reproduced.

    Attributes:
        seeds: Which are reported.
        reduced: Whether in the size that takes minutes.
        results: JSON lines of all runs.
        out: Where the pages will lie; None to write none.
        processes: Runs at once.
        corpus: Of items that take one; None for their own.
    """

    seeds: Sequence[int]
    reduced: bool
    results: Path
    out: Path | None
    processes: int
    corpus: str | None = None
    said: set[str] = field(default_factory=set)


def _reproduced(item: AnyItem, wanted: _Wanted, picture: Path | None) -> str:
    """Do what an item still needs, draw it, and return its page."""
    if item.kind == "script":
        given = {
            "corpus": wanted.corpus,
            "seeds": len(wanted.seeds),
            "results": wanted.results,
            "out": wanted.out,
            "plot": picture,
        }
        minutes = item.minutes[wanted.reduced]
        said = f"{item.name}: about {minutes:,g} minutes on 2 cores"
        errors.print(said, markup=False, highlight=False, soft_wrap=True)
        item.run(reduced=wanted.reduced, given=given)
        return ""
    done = _done(item, wanted)
    if picture is None and item.kind == "figure":
        picture = wanted.results.parent / f"{item.name}.png"
    seeds, reduced = wanted.seeds, wanted.reduced
    if picture is not None:
        draw(item, done, picture, seeds=seeds, reduced=reduced)
        errors.print(f"plot: {picture}", markup=False, highlight=False, soft_wrap=True)
    if item.kind == "table":
        return table_markdown(item, done, seeds=seeds, reduced=reduced)
    folder = wanted.out.parent if wanted.out else "."
    address = picture and Path(os.path.relpath(picture, folder)).as_posix()
    return figure_markdown(item, done, seeds=seeds, reduced=reduced, picture=address)


def _named(found: Mapping[str, AnyItem], name: str) -> list[AnyItem]:
    """Return the reproduction of a name, or all of a beginning up to a hyphen, by name."""
    if name in found:
        return [found[name]]
    items = [found[known] for known in sorted(found) if f"{known}-".startswith(f"{name}-")]
    if items:
        return items
    parts = (known.split("-") for known in sorted(found))
    beginnings = ["-".join(part[:end]) for part in parts for end in range(len(part), 0, -1)]
    near = difflib.get_close_matches(name, beginnings, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"reproduction {name!r} is not known; {hint}`fedpriv reproduce` lists them")


def _done(item: Item, wanted: _Wanted) -> dict[str, dict[str, Any]]:
    """Do what an item still needs and return all runs; synthetic data are said before."""
    with _progress(item.name) as shows:

        def stage(title: str, runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
            done = read(wanted.results)
            todo = pending(runs, done)
            if not todo:
                return done
            for data in synthetic_data(todo):
                if data not in wanted.said:
                    wanted.said.add(data)
                    errors.print(
                        f"data: SYNTHETIC {data}; no figure of it is of real examples",
                        style="yellow",
                        markup=False,
                        highlight=False,
                        soft_wrap=True,
                    )
            tell = shows(title, len(todo))
            with writing_to(wanted.results, "; runs that had ended are kept"):
                return complete(
                    todo,
                    wanted.results,
                    processes=wanted.processes,
                    tell=lambda done, total, row: tell(done),
                )

        done = stage("tuning", tuning_runs(item, reduced=wanted.reduced))
        finals = final_runs(item, done, seeds=wanted.seeds, reduced=wanted.reduced)
        return stage("seeds", finals)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Give what begins a stage of so many runs, and returns what tells how many are done.

    In a terminal it is a bar, elsewhere lines.
    """
    if not moves(errors):
        with plain_lines(errors) as say:

            def lines(title: str, total: int) -> Callable[[int], None]:
                pace = Pace(total)

                def tell(done: int) -> None:
                    pace.done = done
                    say(f"{name}, {title}: {pace}")

                tell(0)
                return tell

            yield lines
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors) as bar:

        def line(title: str, total: int) -> Callable[[int], None]:
            added = bar.add_task(f"{name}, {title}", total=total)
            return lambda done: bar.update(added, completed=done)

        yield line


def _list(found: Mapping[str, AnyItem]) -> None:
    table = Table("name", "what it is", "minutes", "reduced", box=None, header_style="bold")
    for name, item in sorted(found.items()):
        full, small = item.minutes
        has_small = item.kind != "script" or item.reduced
        table.add_row(name, item.title, f"{full:g}", f"{small:g}" if has_small else "–")
    print_table(table)
