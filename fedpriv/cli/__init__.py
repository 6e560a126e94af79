"""The command line: `fedpriv`."""

from __future__ import annotations

import sys

import typer

from fedpriv.cli import data, privacy, reproduce, results, run
from fedpriv.cli.output import fail

app = typer.Typer(
    name="fedpriv",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning with user-level differential privacy: simulate it, deploy it on "
    "Flower, and say what it protects.",
)
run.register(app)
privacy.register(app)
results.register(app)
reproduce.register(app)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; errors of the user's are one clear line, not a traceback."""
    try:
        app()
    except (ValueError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
