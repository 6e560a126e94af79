"""The command line: `fedpriv`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import typer

from fedpriv import __version__
from fedpriv.cli import (
    accounting,
    audit,
    data,
    data_ids,
    encoder,
    new,
    privacy,
    reproduce,
    results,
    run,
    status,
    study,
    theory,
    tune,
    uncertainty,
)
from fedpriv.cli import deploy as deploying
from fedpriv.cli.output import Interrupted, errors, fail, print_line
from fedpriv.deploy import commands
from fedpriv.experiments.user_code import user_traceback
from fedpriv.output_paths import why_unwritten
from fedpriv.training.stopping import interruptible

app = typer.Typer(
    name="fedpriv",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning with user-level differential privacy: simulate it, deploy it on "
    "Flower, and say what it protects.",
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print_line(f"fedpriv {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_say_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


run.register(app)
new.register(app)
accounting.register(app)
privacy.register(app)
audit.register(app)
results.register(app)
uncertainty.register(app)
tune.register(app)
study.register(app)
reproduce.register(app)
data_ids.register(data.app)
app.add_typer(data.app, name="data")
app.add_typer(encoder.app, name="encoder")
app.add_typer(theory.app, name="theory")
app.add_typer(deploying.app, name="deploy")
commands.register(app)
app.command()(status.status)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an option without a value, whose path would be the current folder.

    Raises:
        ValueError: If there is one.
    """
    pairs = [*pairwise(arguments), *(text.split("=", 1) for text in arguments if "=" in text)]
    for option, value in pairs:
        if option.startswith("--") and not value.strip():
            raise ValueError(f"{option} is given an empty value; name one, or leave {option} out")


def main() -> None:
    """Run the command line.

    What was asked wrongly is answered in one clear line, not a traceback; an error in the user's
    own code by that code's traceback.
    """
    try:
        with interruptible():
            _refuse_empty(sys.argv[1:])
            app()
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and (ended.code != 130 or isinstance(ended, Interrupted)):
            raise
        errors.print("interrupted")  # Typer makes of Ctrl-C an exit with status 130
        sys.exit(130)
    except Exception as error:
        said = user_traceback(error)
        if said is not None:
            sys.stderr.write(said)
            sys.exit(1)
        why = why_unwritten(error)
        if why is not None or isinstance(error, (ValueError, OSError)):
            fail(why or str(error))
        raise
