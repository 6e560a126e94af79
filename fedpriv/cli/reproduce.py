"""`fedpriv reproduce`: a table of a paper beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedpriv.cli.output import console, errors


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("reproduce")(reproduce)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Of a table or figure; without one they are listed.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds are reported.")] = 3,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="A size that takes minutes; its figures are marked.")
    ] = False,
    results: Annotated[
        Path, typer.Option(help="JSON lines of all runs; what is in it is not run again.")
    ] = Path("results/reproductions.jsonl"),
    out: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
    processes: Annotated[int, typer.Option(help="Runs at once, each on one thread.")] = 1,
) -> None:
    """Print a table of a paper beside what its methods do here, with ε as counted and as true."""
    from fedpriv.catalogue import find_reproductions
    from fedpriv.reproduction import complete, final_runs, table_markdown, tuning_runs

    found = find_reproductions()
    if name is None:
        _list(found)
        return
    if name not in found:
        raise ValueError(f"reproduction {name!r} is not known; `fedpriv reproduce` lists them")
    if seeds < 1 or processes < 1:
        raise ValueError(f"--seeds {seeds} and --processes {processes} must be at least 1")
    table, chosen = found[name], range(seeds)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors) as bar:

        def follow(stage: str) -> Any:
            line = bar.add_task(f"{table.name}, {stage}", total=None)

            def tell(done: int, total: int, row: dict[str, Any]) -> None:
                bar.update(line, completed=done, total=total)

            return tell

        tuning = tuning_runs(table, reduced=reduced)
        done = complete(tuning, results, processes=processes, tell=follow("tuning"))
        finals = final_runs(table, done, seeds=chosen, reduced=reduced)
        done = complete(finals, results, processes=processes, tell=follow("seeds"))
    text = table_markdown(table, done, seeds=chosen, reduced=reduced)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, "utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _list(found: dict[str, Any]) -> None:
    table = Table("name", "what it is", "minutes", "reduced", box=None, header_style="bold")
    for name, item in sorted(found.items()):
        full, small = item.minutes
        table.add_row(name, item.title, f"{full:g}", f"{small:g}")
    console.print(table)
