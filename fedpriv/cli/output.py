"""How commands speak: JSON for programs, one clear line for errors."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

console = Console()
errors = Console(stderr=True)


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


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


def fail(message: str) -> NoReturn:
    """Print one line to standard error and exit with status 2."""
    errors.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(2)
