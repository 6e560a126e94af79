"""Commands as a user types them."""

import json
import sys

import pytest

from fedpriv import cli
from tests.harness.command_line import CliRunner, fedpriv

SMALL = ("--rounds", "3", "--noise-multiplier", "1", "--delta", "0.001", "--cohort", "6")


def run(*arguments):
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def figures(*arguments):
    """Return what a command prints as JSON."""
    result = fedpriv(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def main(monkeypatch, *arguments):
    """Run the installed command's own entry point; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["fedpriv", *map(str, arguments)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code
