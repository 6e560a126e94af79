"""End of a ServerApp on a user's mistake: one line in place of Flower's tracebacks."""

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


class MistakeError(AppExitException):
    """A user's mistake; Flower lists the run as failed, with this as the reason."""

    exit_code = 3  # one of those that Flower does not explain


class LoggedAlready(logging.Filter):
    """Leaves out Flower's log records of a failure that was logged in one line.

    That is the traceback of it, and an exit code with the address of a page that explains codes.

    Args:
        failed: The failure.
    """

    def __init__(self, failed: Exception) -> None:
        super().__init__()
        self._failed = failed

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is about something else."""
        logged = record.exc_info[1] if record.exc_info else None
        return logged is not self._failed and not record.getMessage().startswith("Exit Code: ")


@contextmanager
def ended_in_one_line(grid: Grid) -> Iterator[None]:
    """End the app with one line on a user's mistake; a fault of the program is raised.

    Args:
        grid: Of Flower's kind: whatever is raised on another one is left as it is.

    Raises:
        MistakeError: When the line was logged; of it Flower logs nothing, and lists the run,
            deployed or simulated, as failed.
        Exception: What was raised, if it is a fault, or on another grid.
    """
    try:
        yield
    except Exception as raised:
        line = one_line(raised)
        if line is None or not isinstance(grid, (HttpGrid, InMemoryGrid)):
            raise
        _LOG.error("%s", line)
        failed = MistakeError(line)
        logging.getLogger("flwr").addFilter(LoggedAlready(failed))
    else:
        return
    raise failed from None
