"""`fedpriv reproduce`: a table or figure of a paper next to ours."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import fedpriv

#: Entry-point group of the module that runs studies: its `reproduce` takes this command's options.
STUDIES = "fedpriv.studies"
#: Folder above the package: the checkout that it is installed from, if it is.
CHECKOUT = Path(fedpriv.__file__).parents[1]


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
    seeds: Annotated[
        int | None,
        typer.Option(
            help="How many seeds are reported: 3 by default; of agd and bolt-on, --reduced, 2."
        ),
    ] = None,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="A size that takes minutes; its values are marked.")
    ] = False,
    results: Annotated[
        Path,
        typer.Option(
            help="JSON lines of all runs; what is in it is not run again. Some studies have a "
            "file of their own next to it: of bolt-on-pair-logistic --results runs/bolt.jsonl is "
            "runs/bolt-on-pair-logistic-bolt.jsonl."
        ),
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
    device: Annotated[
        str | None,
        typer.Option(
            help="Train on it: cuda:0, or cpu to try it. Its runs equal the others' to rounding, "
            "and their lines name it."
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
    find_studies().reproduce(
        name=name,
        corpus=corpus,
        seeds=seeds,
        reduced=reduced,
        results=results,
        out=out,
        plot=plot,
        processes=processes,
        device=device,
        settings=tuple(settings or ()),
    )


def find_studies() -> ModuleType:
    """Return the module that runs studies, of the checkout that fedpriv is installed from.

    Raises:
        ValueError: If fedpriv is installed from no checkout.
    """
    if (CHECKOUT / "pyproject.toml").is_file() and str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    for entry in importlib.metadata.entry_points(group=STUDIES):
        if importlib.util.find_spec(entry.value.partition(".")[0]) is not None:
            return importlib.import_module(entry.value)
    raise ValueError(
        "studies are run from a checkout of fedpriv, and this one is installed from none; install "
        "a checkout by `pip install -e .` in its folder"
    )
