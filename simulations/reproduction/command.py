"""`fedpriv reproduce`: lists studies, does the runs that they lack, and prints and draws them."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
from rich.table import Table as Listing

from fedpriv.cli.output import console, errors, print_table
from fedpriv.output_paths import check_file, writing_to
from fedpriv.runs.progress import Pace, moves, plain_lines
from fedpriv.training.devices import usable_device
from simulations.reproduction.items import Item, Table
from simulations.reproduction.page import markdown
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

#: How many seeds are reported if no one says so.
SEEDS = 3
#: Entry-point group of further packages with tables and figures.
REPRODUCTIONS = "fedpriv.reproductions"


def find_reproductions() -> dict[str, Item]:
    """Return every table, figure and study, by name.

    Looks in `simulations` and the packages of the entry-point group `fedpriv.reproductions`, in
    `REPRODUCTIONS`: names of modules with a tuple of that name.
    """
    found: dict[str, Item] = {}
    further = {entry.value for entry in importlib.metadata.entry_points(group=REPRODUCTIONS)}
    for package in sorted(further | {"simulations"}):
        for module in importlib.import_module(package).REPRODUCTIONS:
            for item in importlib.import_module(module).REPRODUCTIONS:
                found[item.name] = item
    return found


def reproduce(*, name: str | None, settings: tuple[str, ...] = (), **given: Any) -> None:
    """Reproduce a table, figure or study, or list them all.

    Args:
        name: Of one, or its beginning up to a hyphen for several; None to list them.
        settings: "name=value" of further options of studies.
        given: The other options of `fedpriv reproduce`, by name.

    Raises:
        ValueError: If an option is refused, or data of an item are not to be had.
    """
    found = find_reproductions()
    if name is None:
        _list(found)
        return
    out, plot = given["out"], given["plot"]
    seeds = SEEDS if given["seeds"] is None else given["seeds"]
    if seeds < 1 or given["processes"] < 1:
        raise ValueError(f"--seeds {seeds} and --processes {given['processes']} must be at least 1")
    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--plot {plot} must end in .png or .svg")
    items, pages = _named(found, name), list[str]()
    for option in ("corpus", "out", "plot", "device"):
        # A table brings its own data, is written and drawn anywhere, and trains on any device.
        without = [
            item.name
            for item in items
            if (option == "corpus" if item.kind != "study" else not item.takes(option))
        ]
        if given[option] is not None and without:
            raise ValueError(
                f"--{option} {given[option]} is not taken by {', '.join(without)}; leave it out"
            )
    if settings and any(item.kind != "study" for item in items):
        raise ValueError(f"-s {settings[0]} is of studies, and {name} is a table of runs")
    for option in ("results", "out", "plot"):
        if given[option] is not None:
            check_file(given[option], f"--{option}")
    if given["device"] is not None:
        if given["processes"] > 1 and given["device"] != "cpu":
            raise ValueError(
                f"--processes {given['processes']} with --device {given['device']}: one process "
                "trains on a GPU; leave --processes out"
            )
        usable_device(given["device"])
    missing: dict[str, ValueError] = {}
    announced: set[str] = set()
    for item in items:
        picture = plot
        if plot is not None and len(items) > 1:
            picture = plot.with_stem(f"{plot.stem}-{item.name}")
        try:
            text = _reproduced(item, {**given, "plot": picture}, settings, announced)
        except ValueError as error:
            if len(items) == 1:
                raise
            # One data set that is not to be had does not keep the others from being run.
            missing[item.name] = error
            errors.print(f"{item.name}: {error}", style="red", markup=False, soft_wrap=True)
            continue
        if item.kind == "study":  # it prints, and writes, what it has
            continue
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        pages.append(text)
        if out is not None:  # after each, so that a long night leaves what it had
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("\n".join(pages), "utf-8")
    if missing:
        raise ValueError(f"not reproduced: {', '.join(missing)}; the reasons are above")


def _reproduced(
    item: Item, given: Mapping[str, Any], settings: tuple[str, ...], announced: set[str]
) -> str:
    """Do what an item still needs, draw it, and return its page; of a study "".

    Raises:
        ValueError: If it has no reduced size and is asked for it, or as of its runs.
    """
    reduced = given["reduced"]
    if reduced and not item.has_reduced:
        raise ValueError(f"{item.name} has no reduced size: leave --reduced out")
    if item.kind == "study":
        _tell(f"{item.name}: about {item.minutes[reduced]:,g} minutes on 2 cores")
        names = ("corpus", "seeds", "results", "out", "plot", "processes", "device")
        shared = {name: given[name] for name in names}
        if shared["seeds"] is None and not (reduced and "seeds" in (item.reduced or {})):
            shared["seeds"] = SEEDS
        item.call(shared, settings, reduced=reduced)
        return ""
    assert isinstance(item, Table)
    results, picture, seeds = given["results"], given["plot"], range(given["seeds"] or SEEDS)
    done = _done(item, given, announced)
    if picture is None and item.kind == "figure":
        picture = results.parent / f"{item.name}.png"
    address = None
    if picture is not None:
        draw(item, done, picture, seeds=seeds, reduced=reduced)
        _tell(f"plot: {picture}")
        if item.kind == "figure":
            folder = given["out"].parent if given["out"] else "."
            address = Path(os.path.relpath(picture, folder)).as_posix()
    return markdown(item, done, seeds=seeds, reduced=reduced, picture=address)


def _tell(text: str, style: str | None = None) -> None:
    errors.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _named(found: Mapping[str, Item], name: str) -> list[Item]:
    """Return the item of a name, or all of a beginning up to a hyphen, by name."""
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


def _done(table: Table, given: Mapping[str, Any], announced: set[str]) -> dict[str, dict[str, Any]]:
    """Do what a table still needs and return all runs; synthetic data are announced before."""
    results, reduced = given["results"], given["reduced"]
    with _progress(table.name) as shows:

        def stage(title: str, runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
            done = read(results)
            todo = pending(runs, done)
            if not todo:
                return done
            for data in synthetic_data(todo):
                if data not in announced:
                    announced.add(data)
                    _tell(f"data: SYNTHETIC {data}; no value of it is of real examples", "yellow")
            tell = shows(title, len(todo))
            with writing_to(results, "; runs that had ended are kept"):
                return complete(
                    todo,
                    results,
                    processes=given["processes"],
                    device=given["device"],
                    tell=lambda done, row: tell(done),
                )

        done = stage("tuning", tuning_runs(table, reduced=reduced))
        finals = final_runs(table, done, seeds=range(given["seeds"] or SEEDS), reduced=reduced)
        return stage("seeds", finals)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Give a function that begins a stage of so many runs and returns its progress callback.

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


def _list(found: Mapping[str, Item]) -> None:
    listing = Listing("name", "what it is", "minutes", "reduced", box=None, header_style="bold")
    for name, item in sorted(found.items()):
        full, *small = item.minutes
        listing.add_row(name, item.title, f"{full:g}", f"{small[0]:g}" if item.has_reduced else "–")
    print_table(listing)
