"""Grids of cohorts and rounds on the command line: which, how far, and their plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cli.output import errors, fail
from fedpriv.privacy.noise_grid import NoiseGrid, NoisePoint
from fedpriv.runs.progress import moves, plain_lines

GridCohorts = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Cohorts of the grid, such as 350,1000; by default doublings from a twentieth of the "
        "roster, at most 250, to 4,000.",
    ),
]
GridRounds = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Rounds of the grid; by default 25,50,100,200,400."),
]
PlotFile = Annotated[
    Path | None, typer.Option(help="Plot the grid into this file: .svg, .png or .html.")
]


def cohorts_of(text: str | None) -> tuple[float, ...] | None:
    """Return the cohorts of a grid, or None."""
    try:
        return None if text is None else tuple(map(float, text.split(",")))
    except ValueError:
        fail(f"--grid-cohorts {text!r} is no list of numbers; give one such as 350,1000,2000")


def rounds_of(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of rounds of a grid, or None."""
    try:
        return None if text is None else tuple(map(int, text.split(",")))
    except ValueError:
        fail(f"--grid-rounds {text!r} is no list of whole numbers; give one such as 25,50,100")


def check_plot(out: Path | None) -> None:
    """End with a line if no plot can be written there."""
    if out is not None:
        from fedpriv.report.noise_plot import check_noise_file

        try:
            check_noise_file(out)
        except ValueError as error:
            fail(str(error))


def plot(grid: NoiseGrid | None, out: Path | None, planned: NoisePoint | None) -> None:
    """Write a grid as a plot, where one is asked for."""
    if out is None or grid is None:
        return
    from fedpriv.report.noise_plot import write_noise_plot

    try:
        write_noise_plot(grid, out, planned)
    except ValueError as error:
        fail(str(error))
    errors.print(f"plot: {out}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def calibrating(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show how far a grid is: at once in a terminal, elsewhere by a line every few seconds."""
    what = "calibrating cohorts and rounds"
    if quiet:
        yield lambda done, total: None
        return
    if not moves(errors):
        with plain_lines(errors) as say:
            yield lambda done, total: say(f"{what}: {done} of {total}")
        return
    with errors.status("looking at data and model") as status:
        yield lambda done, total: status.update(f"{what}: {done} of {total}")
