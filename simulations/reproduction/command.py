"""`python -m simulations`: lists studies, does their runs, and prints and draws them."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as Listing

import simulations
from fedpriv.cli.output import console, errors, print_table
from fedpriv.output_paths import check_file
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
    synthetic_data,
    tuning_runs,
)

#: How many seeds are reported if no one says so.
SEEDS = 3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def find_reproductions() -> dict[str, Item]:
    """Return every table, figure and study, by name."""
    modules = map(importlib.import_module, simulations.REPRODUCTIONS)
    return {item.name: item for module in modules for item in module.REPRODUCTIONS}


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Of a table, figure or theorem, or its beginning up to a hyphen for several; "
            "without one they are listed."
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(help="Of `tags`: a prepared corpus, any site's Posts.xml, or a known name."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="How many seeds are reported: 3 by default; of agd and bolt-on, --reduced, 2."
        ),
    ] = None,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="A size that takes minutes; its values are marked.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the pages to this Markdown file.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw into this PNG or SVG file; several get their names added. Without it "
            "a figure is drawn into results/."
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="Runs at once, each on one thread.")] = 1,
    device: Annotated[
        str | None,
        typer.Option(
            help="Train on it: cuda:0, or cpu to try it. Its runs equal the others' to rounding, "
            "and the page names it."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="NAME=VALUE",
            help="Further options of a study, e.g. -s folds=1 or -s epsilons=2,8.",
        ),
    ] = None,
) -> None:
    """Print a table of a paper and what its methods do here, with ε as counted and as true."""
    found = find_reproductions()
    if name is None:
        _list(found)
        return
    given = {
        "corpus": corpus, "seeds": seeds, "out": out, "plot": plot, "processes": processes,
        "device": device,
    }  # fmt: skip
    if processes < 1 or (seeds is not None and seeds < 1):
        raise ValueError(f"--seeds {seeds} and --processes {processes} must be at least 1")
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
    for option, path in (("out", out), ("plot", plot)):
        if path is not None:
            check_file(path, f"--{option}")
    if device is not None:
        if processes > 1 and device != "cpu":
            raise ValueError(
                f"--processes {processes} with --device {device}: one process trains on a GPU; "
                "leave --processes out"
            )
        usable_device(device)
    done: dict[str, dict[str, Any]] = {}
    missing: dict[str, ValueError] = {}
    announced: set[str] = set()
    for item in items:
        picture = plot
        if plot is not None and len(items) > 1:
            picture = plot.with_stem(f"{plot.stem}-{item.name}")
        try:
            text = _reproduced(
                item, {**given, "plot": picture}, tuple(settings or ()), done, announced,
                reduced=reduced,
            )  # fmt: skip
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
    item: Item,
    given: Mapping[str, Any],
    settings: tuple[str, ...],
    done: dict[str, dict[str, Any]],
    announced: set[str],
    *,
    reduced: bool,
) -> str:
    """Do what an item still needs, draw it, and return its page; of a study "".

    Runs that another item has done are taken from `done`, and new ones are added to it.

    Raises:
        ValueError: If it has no reduced size and is asked for it, or as of its runs.
    """
    if reduced and not item.has_reduced:
        raise ValueError(f"{item.name} has no reduced size: leave --reduced out")
    if item.kind == "study":
        _tell(f"{item.name}: about {item.minutes[reduced]:,g} minutes on 2 cores")
        seeds = given["seeds"]
        if seeds is None and not (reduced and "seeds" in (item.reduced or {})):
            seeds = SEEDS
        item.call({**given, "seeds": seeds}, settings, reduced=reduced)
        return ""
    assert isinstance(item, Table)
    picture, seeds = given["plot"], range(given["seeds"] or SEEDS)
    _train(item, seeds, given, done, announced, reduced=reduced)
    if picture is None and item.kind == "figure":
        picture = Path("results") / f"{item.name}.png"
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
    raise ValueError(f"{name!r} is not known; {hint}`python -m simulations` lists all")


def _train(
    table: Table,
    seeds: range,
    given: Mapping[str, Any],
    done: dict[str, dict[str, Any]],
    announced: set[str],
    *,
    reduced: bool,
) -> None:
    """Do the runs of a table that are not done; synthetic data are announced before."""
    with _progress(table.name) as shows:

        def stage(title: str, runs: Iterable[Run]) -> None:
            todo = pending(runs, done)
            if not todo:
                return
            for data in synthetic_data(todo):
                if data not in announced:
                    announced.add(data)
                    _tell(f"data: SYNTHETIC {data}; no value of it is of real examples", "yellow")
            complete(
                todo, done, processes=given["processes"], device=given["device"],
                tell=shows(title, len(todo)),
            )  # fmt: skip

        stage("tuning", tuning_runs(table, reduced=reduced))
        stage("seeds", final_runs(table, done, seeds=seeds, reduced=reduced))


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
