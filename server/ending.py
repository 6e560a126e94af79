"""How a ServerApp ends that was asked wrongly: with one line, not with Flower's tracebacks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from flwr.app.exception import AppExitException
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedpriv.experiments.own_code import one_line

_LOG = logging.getLogger("fedpriv.server")


class error(AppExitException):
    """What was asked wrongly, for a deployed run, which Flower then lists as failed.

    Flower logs whatever an app raises with its traceback; of this one there is none to see.
    """

    exit_code = 3  # of those that Flower explains nothing about: the line says it all
    __module__ = "builtins"  # a name that is printed as it is

    @property
    def __traceback__(self) -> TracebackType | None:  # pyright: ignore
        return None

    @__traceback__.setter
    def __traceback__(self, found: TracebackType | None) -> None:
        """Forget it."""


@contextmanager
def ended_in_one_line(grid: Grid) -> Iterator[None]:
    """End the app with one line where something was asked wrongly; a fault of ours is raised.

    Args:
        grid: Of Flower's kind, which decides how an app can end. A simulation has no way to fail
            without Flower's traceback and exit code 700, so there the app just ends, and Flower
            lists a run as completed in which nothing was trained.

    Raises:
        Exception: For a deployed run, what Flower prints as the line. On any other grid what was
            raised.
        SystemExit: Within a simulation.
    """
    try:
        yield
    except Exception as raised:
        said = one_line(raised)
        if said is None or not isinstance(grid, (HttpGrid, InMemoryGrid)):
            raise
        if isinstance(grid, InMemoryGrid):
            _LOG.error("error: %s", said)
            raise SystemExit(2) from None
        failed = error(said)
    else:
        return
    raise failed from None
