"""How a ServerApp ends that was asked wrongly: with one line, not with Flower's tracebacks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app.exception import AppExitException
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedpriv.experiments.own_code import one_line

_LOG = logging.getLogger("fedpriv.server")


class AskedWronglyError(AppExitException):
    """What was asked wrongly; Flower then lists the run as failed, with this as the reason."""

    exit_code = 3  # of those that Flower explains nothing about: the line says it all


class SaidAlready(logging.Filter):
    """Leaves out what Flower's log says of a failure that was said in a line.

    That is the traceback of it, and an exit code with the address of a page that explains codes.

    Args:
        failed: The failure.
    """

    def __init__(self, failed: Exception) -> None:
        super().__init__()
        self._failed = failed

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record says something else."""
        shown = record.exc_info[1] if record.exc_info else None
        return shown is not self._failed and not record.getMessage().startswith("Exit Code: ")


@contextmanager
def ended_in_one_line(grid: Grid) -> Iterator[None]:
    """End the app with one line where something was asked wrongly; a fault of ours is raised.

    Args:
        grid: Of Flower's kind: whatever is raised on another one is left as it is.

    Raises:
        AskedWronglyError: When the line was logged; of it Flower logs nothing, and lists the run,
            deployed or simulated, as failed.
        Exception: What was raised, if it is a fault, or on another grid.
    """
    try:
        yield
    except Exception as raised:
        said = one_line(raised)
        if said is None or not isinstance(grid, (HttpGrid, InMemoryGrid)):
            raise
        _LOG.error("%s", said)
        failed = AskedWronglyError(said)
        logging.getLogger("flwr").addFilter(SaidAlready(failed))
    else:
        return
    raise failed from None
