"""`fedpriv reproduce`: a table or figure of a paper next to ours."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

#: Entry-point group of the module that runs studies: its `reproduce` takes this command's options.
STUDIES = "fedpriv.studies"
#: Module in a checkout whose metadata declare no such entry point.
IN_CHECKOUT = "simulations.reproduction.command"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("reproduce")(reproduce)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Of a table or figure, or its beginning up to a hyphen for several; without one "
            "they are listed."
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(help="Of `tags`: a prepared corpus, any site's Posts.xml, or a known name."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds are reported.")] = 3,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="A size that takes minutes; its figures are marked.")
    ] = False,
    results: Annotated[
        Path, typer.Option(help="JSON lines of all runs; what is in it is not run again.")
    ] = Path("results/reproductions.jsonl"),
    out: Annotated[Path | None, typer.Option(help="Write the pages to this Markdown file.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw into this PNG or SVG file; several get their names added. Without it "
            "a figure is drawn next to --results."
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="Runs at once, each on one thread.")] = 1,
) -> None:
    """Print a table of a paper and what its methods do here, with ε as counted and as true."""
    find_studies().reproduce(
        name=name,
        corpus=corpus,
        seeds=seeds,
        reduced=reduced,
        results=results,
        out=out,
        plot=plot,
        processes=processes,
    )


def find_studies() -> ModuleType:
    """Return the module that runs studies.

    Raises:
        ValueError: If the studies are not on the Python path.
    """
    entries = importlib.metadata.entry_points(group=STUDIES)
    module = next((entry.value for entry in entries), IN_CHECKOUT)
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ValueError(
            "studies are run from a checkout of fedpriv, and none is on the Python path; start "
            "`python -m fedpriv reproduce` in the checkout's folder"
        )
    return importlib.import_module(module)
