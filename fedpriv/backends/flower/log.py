"""The log of a ServerApp and of a ClientApp: a line an event, with its time and its level.

No line holds what an exception says, which may be a value of somebody's: of one that is logged with
its traceback, the kind and the places in the code are written.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from flwr.app.exception import AppExitException
from flwr.serverapp import Grid

from fedpriv.experiments.user_code import one_line
from fedpriv.training.failures import raised_at
from fedpriv.untrusted_text import plain


class LineFormatter(logging.Formatter):
    r"""Time in UTC, level, logger and text, in one line.

    >>> record = logging.LogRecord("fedpriv.x", logging.INFO, "", 0, "round %d\nof 3", (1,), None)
    >>> LineFormatter().format(record)[20:]
    ' INFO fedpriv.x: round 1 of 3'
    """

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = " ".join(plain(record.getMessage()).split())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = f"{text} ({type(error).__name__} at {raised_at(error)})"
        line = logging.LogRecord(record.name, record.levelno, "", 0, "%s", (text,), None)
        line.created, line.msecs = record.created, record.msecs
        return super().format(line)


class _StandardError(logging.Handler):
    """Writes lines to what standard error is by then."""

    def emit(self, record: logging.LogRecord) -> None:
        _write_once()
        sys.stderr.write(self.format(record) + "\n")


def _is_another(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] != "fedpriv"


def show_log(name: str = "fedpriv") -> None:
    """Write a logger's lines to standard error, from INFO on; where it has handlers, they stay.

    Args:
        name: Of the logger. Lines of one below "fedpriv" are not written there again.
    """
    logger = logging.getLogger(name)
    if not logger.handlers:
        handler = _StandardError()
        handler.setFormatter(LineFormatter())
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = name == "fedpriv"


class MistakeError(AppExitException, ValueError):
    """A user's mistake; Flower lists the run as failed, with this as the reason."""

    exit_code = 3  # one of those that Flower does not explain


def _is_new(record: logging.LogRecord, failed: Exception) -> bool:
    """Return whether a record of Flower's says more than one line on a failure has said already.

    It does not with the traceback of it, nor with an exit code and the address of a page on codes.
    """
    logged = record.exc_info[1] if record.exc_info else None
    return logged is not failed and not record.getMessage().startswith("Exit Code: ")


@contextmanager
def ended_in_one_line(grid: Grid) -> Generator[None]:
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
        if line is None or not type(grid).__module__.startswith("flwr."):
            raise
        logging.getLogger("fedpriv.server").error("%s", line)
        failed = MistakeError(line)
        logging.getLogger("flwr").addFilter(partial(_is_new, failed=failed))
    else:
        return
    raise failed from None


def _write_once() -> None:
    """Have nothing else write our lines to standard error.

    Flower's own processes have a handler there for every logger, and a library that logs without
    having been asked to makes one, whenever that is; the root's are called after ours.
    """
    for other in logging.getLogger().handlers:
        if getattr(other, "stream", None) in (sys.stderr, sys.__stderr__):
            other.addFilter(_is_another)  # again is no second time
