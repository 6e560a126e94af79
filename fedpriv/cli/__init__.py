"""The command line: `fedpriv`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedpriv import __version__
from fedpriv.cli.output import Interrupted, errors, fail, print_line
from fedpriv.output_paths import why_unwritten
from fedpriv.training.stopping import interruptible

#: Module and help of each command, so that `fedpriv --help` loads none of them.
COMMANDS = {
    "list": ("cli.run", "List the experiments that can be run by name, or the options of one."),
    "run": (
        "cli.run",
        "Train an experiment, federated or centralised, and write a run folder with its report.",
    ),
    "new": (
        "cli.new",
        "Write a project: experiment, ServerApp and ClientApp, pyproject, compose file and test.",
    ),
    "account": ("cli.accounting", "Say what a number of rounds costs: ε at δ, per user."),
    "calibrate": (
        "cli.accounting",
        "Find the least noise that keeps ε within a target; the answer never overshoots.",
    ),
    "plan": (
        "cli.privacy",
        "Say what a run would be like before it is run: noise, memory, time. Nothing is charged.",
    ),
    "verify": (
        "cli.privacy",
        "Check a run's ledger and files, and recompute its ε; exits with 1 if anything is wrong.",
    ),
    "audit": (
        "cli.audit",
        "Run an experiment's mechanism on canary users and bound its ε from below.",
    ),
    "report": (
        "cli.results",
        "Write the report of a run, one self-contained page, into its folder.",
    ),
    "compare": (
        "cli.results",
        "Put runs side by side; runs that differ in their seed only become one line.",
    ),
    "export": (
        "cli.results",
        "Write a run's model, and a card that states its privacy; a tag model's vocabulary too.",
    ),
    "predict": (
        "cli.results",
        "Rank tags for a text, by a model of tags only; your own: docs/pretrained.md.",
    ),
    "uncertainty": (
        "cli.uncertainty",
        "Say how much of a model is noise, from the last checkpoints of its run.",
    ),
    "tune": (
        "cli.tune",
        "Choose options by a study whose ε covers the choice, and release its best run only.",
    ),
    "study": (
        "cli.study",
        "Run methods × ε × seeds × data in parallel, and write one page of them.",
    ),
    "supernode": (
        "deploy.commands",
        "Run Flower's SuperNode, with all of its options, so that rounds need not wait for it.",
    ),
    "superexec": (
        "deploy.commands",
        "Answer a SuperNode's messages, or run a SuperLink's ServerApps, in place of "
        "flower-superexec.",
    ),
    "status": (
        "cli.status",
        "Show the state of a run: round, ε, who holds it, nodes, last error. Changes nothing.",
    ),
    "attack": ("cli.audit", "Attacks on released models: measured, not guaranteed."),
    "data": (
        "cli.data",
        "Corpora: what is here, where it came from, fetching, importing, rosters.",
    ),
    "encoder": (
        "cli.encoder",
        "Pretrained encoders of text: add one from its files, and embed a corpus by it.",
    ),
    "deploy": ("cli.deploy", "Containers: their checks, and the SuperLink."),
}


#: What `fedpriv` alone says before its commands.
FIRST = """
fedpriv trains a model on many users' data, with a proven limit on what it reveals about any one.

  fedpriv run adadps-tags --quick      train a small private model (20 s), and write its report
  fedpriv verify runs/NAME             check the ledger of a run, and recompute its ε
  fedpriv list                         all experiments; with a name, the options of one
  fedpriv plan adadps-tags             what a run would cost and gain, before anything is charged
  fedpriv new mine                     a project with a model and users of your own, and its test
  fedpriv run own.py:experiment        your own model and users in one file: see the README; your
                                       own texts in a CSV: docs/pretrained.md#your-own-texts
  fedpriv compare runs/*               runs side by side
  fedpriv data list                    data that are here, and what can be fetched
"""


class _Later(TyperCommand):
    """A command whose module is loaded when the command is called or completed."""

    def __init__(self, name: str, module: str, text: str):
        super().__init__(name, help=text)
        self.module = module

    def make_context(self, info_name: str | None, args: list[str], **rest: Any) -> Any:
        return self.load().make_context(info_name, args, **rest)

    def load(self) -> Any:
        """Return the command itself."""
        holder = typer.Typer(rich_markup_mode="rich")
        importlib.import_module(f"fedpriv.{self.module}").register(holder)
        return typer.main.get_group(holder).commands[str(self.name)]


class _Commands(TyperGroup):
    """The commands by their names, in the order of `COMMANDS`."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        for name, (module, text) in COMMANDS.items():
            self.add_command(_Later(name, module, text))


app = typer.Typer(
    name="fedpriv",
    cls=_Commands,
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
    load: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.py",
            help="Run a file of your own first, such as one that adds a kind of event: then "
            "commands read runs that were charged such.",
        ),
    ] = None,
) -> None:
    for file in load or ():
        from fedpriv.experiments.load import load_file

        load_file(file)


def loaded() -> TyperGroup:
    """Return `fedpriv` with every command loaded, for what describes or checks them all."""
    group = typer.main.get_group(app)
    for name, command in group.commands.items():
        group.commands[name] = command.load() if isinstance(command, _Later) else command
    return group


#: Options of texts, which may be empty.
MAY_BE_EMPTY = ("--checkout", "--node-config", "--table", "--text", "--title")


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an option without a value, whose path would be the current folder.

    Raises:
        ValueError: If there is one.
    """
    pairs = [*pairwise(arguments), *(text.split("=", 1) for text in arguments if "=" in text)]
    for option, value in pairs:
        if option.startswith("--") and option not in MAY_BE_EMPTY and not value.strip():
            raise ValueError(f"{option} is given an empty value; name one, or leave {option} out")


def main(command: typer.Typer = app) -> None:
    """Run the command line.

    What was asked wrongly is answered in one clear line, not a traceback; an error in the user's
    own code by that code's traceback.
    """
    try:
        with interruptible():
            _refuse_empty(sys.argv[1:])
            if not sys.argv[1:]:
                print_line(FIRST.strip())
            command()
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and (ended.code != 130 or isinstance(ended, Interrupted)):
            raise
        errors.print("interrupted")  # Typer makes of Ctrl-C an exit with status 130
        sys.exit(130)
    except Exception as error:
        from fedpriv.experiments.user_code import user_traceback

        said = user_traceback(error)
        if said is not None:
            sys.stderr.write(said)
            sys.exit(1)
        why = why_unwritten(error)
        if why is not None or isinstance(error, (ValueError, OSError)):
            fail(why or str(error))
        raise
