"""Commands as a user types them, in this process."""

import contextlib
import functools
import io
import sys
from typing import Any, NamedTuple
from unittest import mock

import click.testing
import typer.main

from fedpriv.cli import main

_command = functools.cache(typer.main.get_command)


class CliRunner(click.testing.CliRunner):
    """Runner of Typer apps that builds the command of each app once."""

    def invoke(self, cli: Any, args: Any = None, **options: Any) -> click.testing.Result:
        """Call an app with arguments, as `typer.testing.CliRunner` does."""
        return super().invoke(_command(cli), args, **options)


class Result(NamedTuple):
    """What a command left: its exit status and what it printed."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, one after the other."""
        return self.stdout + self.stderr


def fedpriv(*arguments: Any) -> Result:
    """Call `fedpriv` with arguments; errors are answered as they are on a command line."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["fedpriv", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return Result(code, out.getvalue(), err.getvalue())


def refusal(*arguments: Any) -> str:
    """The one line on standard error of a call that is refused with exit status 2."""
    result = fedpriv(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.strip().splitlines()
    return line
