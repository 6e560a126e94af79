"""Commands as a user types them, in this process."""

from __future__ import annotations

import functools
from typing import Any

import click.testing
import typer.main

_command = functools.cache(typer.main.get_command)


class CliRunner(click.testing.CliRunner):
    """Runner of Typer apps that builds the command of each app once."""

    def invoke(self, cli: Any, args: Any = None, **options: Any) -> click.testing.Result:
        """Call an app with arguments, as `typer.testing.CliRunner` does."""
        return super().invoke(_command(cli), args, **options)
