"""Output of commands: JSON for programs, one clear line for errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from fedpriv.untrusted_text import PlainConsole, escaped

console = PlainConsole()
errors = PlainConsole(stderr=True)


def print_json(value: Any) -> None:
    """Print one JSON document to standard output; control signs in it are escaped."""
    sys.stdout.write(escaped(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def print_line(text: object, to: Console | None = None) -> None:
    """Print text as it is, without markup; a long line is not broken.

    Args:
        text: What is printed.
        to: Standard output by default.
    """
    (console if to is None else to).print(str(text), markup=False, highlight=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table whose words are whole, whatever is narrow.

    In a terminal cells wrap to its width, and what is narrower than the longest words breaks lines.
    In a file or pipe, which have no width, nothing wraps: a row is a line.
    """
    name, *_ = table.columns
    name.no_wrap = name.overflow != "fold"
    for column in table.columns:
        column.overflow = "fold"  # rich cuts words by default
    wide = Measurement.get(console, console.options.update(max_width=10_000), table)
    table.width = wide.maximum
    if console.is_terminal:
        table.width = min(wide.maximum, max(console.width, wide.minimum))
    console.print(table, crop=False)


@contextmanager
def counting(what: str, *, quiet: bool) -> Generator[Callable[[int, int], None]]:
    """Give a callback (done, total) that shows on standard error how far a thing is.

    Args:
        what: Is done.
        quiet: Whether it shows nothing.
    """
    from fedpriv.runs.progress import status_line

    if quiet:
        yield lambda done, total: None
        return
    with status_line(errors) as tell:
        yield lambda done, total: tell(f"{what}: {done / total:.0%}" if total else what)


class Interrupted(SystemExit):
    """The end by Ctrl-C of a command that has said so: exit status 130."""

    def __init__(self) -> None:
        super().__init__(130)


def fail(message: str) -> NoReturn:
    """Print one line to standard error and exit with status 2."""
    errors.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(2)
