"""Whether a command that a page names could be typed: its program, options, names and keys."""

import functools
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import typer.main

from fedpriv import cli
from fedpriv.cli.run import settings_of
from fedpriv.datasets.importers import locate
from fedpriv.datasets.importers.downloads import DATASETS
from fedpriv.experiments.load import load_experiment
from simulations.reproduction.command import _named, app, find_reproductions
from tests.docs.shell_blocks import Command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
#: What is the shell's or another project's: containers are tried by `make deploy-guide`, and `flwr`
#: is called by tests.
FOREIGN = (
    *("cd", "export", "source", ".", "sh", "git", "mkdir", "sbatch", "srun", "python", "python3"),
    *("docker", "docker-compose", "kubectl", "tar", "flwr"),
)


class Refused(Exception):
    """What is wrong with a command."""


def check(command: Command) -> None:
    """Check one command, without running it.

    Raises:
        Refused: If it could not be typed so.
    """
    for name, _ in command.variables:
        _check_variable(name)
    if not command.words:
        return
    program, *words = command.words
    if words[:2] == ["-m", "simulations"]:
        _check_simulations(words[2:])
    elif words[:1] == ["-m"]:
        _check_module(words[1])
    elif program == "fedpriv":
        _check_fedpriv(words)
    elif program == "make":
        _check_make(words)
    elif program == "pip":
        _check_pip(words)
    elif program.startswith("flower-"):
        known = _help_of(program)
        for word in words:
            if word.startswith("-") and word.partition("=")[0] not in known:
                raise Refused(f"{program} has no option {word}")
    elif program == "export":
        for word in words:
            _check_variable(word.partition("=")[0])
    elif program not in FOREIGN:
        raise Refused(f"nobody knows what {program!r} is")


def parsed(group: click.Command, words: list[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return a command's names and parameters as click reads them.

    Raises:
        Refused: If there is no such command or option, or a value is of another kind.
    """
    names: tuple[str, ...] = ()
    try:
        while isinstance(group, click.Group) and words and not words[0].startswith("-"):
            name, *words = words
            found = group.get_command(click.Context(group), name)
            if found is None:
                raise Refused(f"{name!r} is no command; there are {', '.join(group.commands)}")
            group, names = found, (*names, name)
        return names, group.make_context(" ".join(names), list(words)).params
    except click.exceptions.Exit:  # --help, --version
        return names, {}
    except click.ClickException as error:
        raise Refused(error.format_message()) from error


def _check_fedpriv(words: list[str]) -> None:
    names, given = parsed(cli.loaded(), words)
    try:
        if names in (("run",), ("plan",)) and given.get("experiment"):
            _check_experiment(given)
        elif names == ("list",) and given.get("name"):
            load_experiment(given["name"])
    except ValueError as error:
        raise Refused(str(error)) from error
    if names == ("data", "fetch") and given and given["dataset"] not in DATASETS:
        raise Refused(f"{given['dataset']!r} cannot be fetched")
    if names == ("data", "info") and given.get("corpus"):
        corpus = given["corpus"]
        if "/" not in corpus and "." not in corpus and corpus not in locate.NAMES:
            raise Refused(f"{corpus!r} is no name of a corpus")


def _check_simulations(words: list[str]) -> None:
    _, given = parsed(typer.main.get_command(app), words)
    try:
        for item in _named(find_reproductions(), given["name"]) if given.get("name") else ():
            if item.kind == "study":
                item.chosen({}, tuple(given["settings"] or ()))
    except ValueError as error:
        raise Refused(str(error)) from error


def _check_experiment(given: dict[str, Any]) -> None:
    """Check the experiment and its options; a module of the reader's own is not here."""
    if ":" in given["experiment"] and not given["experiment"].startswith("simulations."):
        return
    experiment = load_experiment(given["experiment"])
    options = settings_of(given.get("option") or ())
    kebab = {name.replace("_", "-"): value for name, value in given.items()}
    known = experiment.options()
    flags = {name: value for name, value in kebab.items() if value is not None and name in known}
    experiment.with_options(flags | options)


def _check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for word in words:
        if "=" not in word and not re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE):
            raise Refused(f"make has no target {word!r}")


def _check_pip(words: list[str]) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    for extra in re.findall(r"(?:fedpriv|\.)\[([\w,-]+)\]", " ".join(words)):
        if missing := set(extra.split(",")) - set(extras):
            raise Refused(f"fedpriv has no extra {missing}")


def _check_module(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise Refused(f"there is no module {module!r}")


@functools.cache
def _help_of(program: str) -> frozenset[str]:
    """Return the options that a program says it has."""
    path = Path(sys.executable).with_name(program)
    if not path.is_file():
        raise Refused(f"{program} is not installed with Flower")
    done = subprocess.run([path, "--help"], capture_output=True, text=True, check=True)
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", done.stdout))


def _check_variable(name: str) -> None:
    if name.startswith("FEDPRIV_"):
        sources = (path.read_text("utf-8") for path in (ROOT / "fedpriv").rglob("*.py"))
        compose = (ROOT / "docker-compose.yml").read_text("utf-8")
        if f"${{{name}" not in compose and not any(f'"{name}"' in source for source in sources):
            raise Refused(f"fedpriv never reads {name}")
