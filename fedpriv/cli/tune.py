"""`fedpriv tune`: a private study over a grid of options."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.listing import with_flags
from fedpriv.cli.output import print_json, print_line
from fedpriv.cli.run import EXPERIMENT, FLAGS, CorpusName, Settings, given_once, settings_of
from fedpriv.experiments.options import Option


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(tune)


@with_flags(FLAGS)
def tune(
    experiment: Annotated[str, EXPERIMENT],
    corpus: CorpusName = None,
    *,
    flags: dict[str, Option],
    option: Settings = None,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=V1,V2,...",
            help="Values of an option to try; repeat for more options. A trial draws one of each.",
        ),
    ],
    mean: Annotated[float, typer.Option(help="How many trials there are on average, above 1.")],
    shape: Annotated[
        float,
        typer.Option(
            help="Of the law of their number, a truncated negative binomial; 1 is geometric."
        ),
    ] = 1.0,
    score: Annotated[
        str | None,
        typer.Option(
            help="Released figure to compare by, such as accuracy_public; by default the first."
        ),
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Entropy from the operating system; no seed.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The study's folder; give it again to go on.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print study.json.")] = False,
) -> None:
    """Choose options by a study whose ε covers the choice, and release its best run only.

    How many trials are run is drawn once by chance, and never said; so there is no progress to see,
    and nothing of the others is kept. Interrupted, the same command goes on.

    For example: fedpriv tune dp-fedavg-tags --grid l2-clip-norm=0.1,0.3,1 --mean 5 --out tuned
    """
    from fedpriv.api import running

    options = given_once(flags, settings_of(option or ()))
    best = running.tune(
        experiment,
        out,
        grid=_grid(grid),
        mean=mean,
        shape=shape,
        score=score,
        corpus=corpus,
        secure=secure,
        progress=not as_json,
        **options,
    )
    if as_json:
        stated = json.loads((out / "study.json").read_text("utf-8"))
        print_json({**stated, "run_dir": str(best.path)})
        return
    for line in (best.statement.headline, f"released: {best.path}"):
        print_line(line)


def _grid(pairs: Iterable[str]) -> dict[str, tuple[Option, ...]]:
    """Return values by option name.

    Raises:
        ValueError: If a pair is none, or an option is given twice.
    """
    found: dict[str, tuple[Option, ...]] = {}
    for pair in pairs:
        name, separator, values = pair.partition("=")
        if not separator or not values:
            raise ValueError(f"--grid {pair!r} is not NAME=V1,V2; e.g. --grid l2-clip-norm=0.1,1")
        if name.strip() in found:
            raise ValueError(f"--grid {name.strip()} is given twice; give all values at once")
        tried = [settings_of([f"{name}={value}"])[name.strip()] for value in values.split(",")]
        found[name.strip()] = tuple(tried)
    return found
