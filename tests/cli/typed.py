"""Commands as a user types them."""

import json

from tests.harness.command_line import fedpriv

SMALL = ("--rounds", "3", "--noise-multiplier", "1", "--delta", "0.001", "--cohort", "6")


def run(*arguments):
    """Return the result of a command, which must succeed."""
    result = fedpriv(*arguments)
    assert result.exit_code == 0, result.output
    return result


def figures(*arguments):
    """Return what a command prints as JSON."""
    return json.loads(run(*arguments, "--json").stdout)
