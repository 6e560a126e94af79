"""The options of an experiment as they are listed and completed, and those that are flags.

An option's name, type and help are typed once, in its part; a command only says which options have
a flag of their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedpriv.cli.output import console, print_json, print_table
from fedpriv.experiments.averaging import FederatedExperiment
from fedpriv.experiments.options import OptionIndex, entries, kebab
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.runs.backends import backends_of

if TYPE_CHECKING:
    from fedpriv.experiments.experiment import Experiment
    from fedpriv.experiments.options import Entry, Option


def show_options(experiment: Experiment, *, as_json: bool) -> None:
    """Print every option that an experiment has, part by part, with value and help."""
    values = experiment.options() | dict.fromkeys(experiment.automatic, "automatic")
    options = [
        (entry, values[entry.path], _part_of(entry, values)) for entry in experiment.entries()
    ]
    if as_json:
        print_json(
            {
                "name": experiment.name,
                "description": experiment.description,
                "unit": experiment.unit,
                "backends": backends_of(experiment),
                "options": [
                    {
                        "name": entry.path,
                        "value": value,
                        "default": entry.default,
                        "takes": entry.takes,
                        "help": entry.help,
                        "part": part,
                    }
                    for entry, value, part in options
                ],
            }
        )
        return
    style: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    console.print(f"{experiment.name}: {experiment.description}", **style)
    table = Table("option", "value", "what it is", box=None, header_style="bold")
    heading = None
    for entry, value, part in options:
        if part != heading:
            heading = part
            table.add_row(f"[bold]{escape(part)}[/]")
        usual = "" if value == entry.default else f" (default {_format_option(entry.default)})"
        what = f"{entry.help} {entry.takes}." if entry.is_choice else entry.help
        table.add_row(f"  {entry.path}", _format_option(value), escape(what + usual))
    print_table(table)
    console.print(
        "Change one with -s NAME=VALUE; choosing another part brings its options.", **style
    )


def _part_of(entry: Entry, values: Mapping[str, Option]) -> str:
    """Return the heading of an option: the place and kind of the part that it belongs to."""
    place = entry.path if entry.is_choice else entry.path.rpartition(".")[0]
    return f"{place} {values.get(place, '')}".strip() or "experiment"


def _format_option(value: Option) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def complete_experiments(incomplete: str) -> list[tuple[str, str]]:
    """Return the experiments whose names begin so, with their descriptions."""
    from fedpriv.experiments.load import find_experiments

    return [
        (name, make().description)
        for name, make in sorted(find_experiments().items())
        if name.startswith(incomplete)
    ]


def complete_settings(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return completions of `-s`: options of the experiment named on the line, or their values."""
    from fedpriv.experiments.load import load_experiment

    try:
        options = load_experiment(ctx.params.get("experiment") or "").entries()
    except ValueError:  # no error message in the middle of a word
        return []
    name, separator, value = incomplete.partition("=")
    if separator:
        choices = [option.takes.split(", ") for option in options if option.path == name]
        return [
            (f"{name}={choice}", "")
            for choice in (choices[0] if choices else ())
            if choice.startswith(value) and " " not in choice
        ]
    return [(f"{option.path}=", option.help) for option in options if option.path.startswith(name)]


def option_named(name: str) -> Entry:
    """Return an option of federated averaging on tag prediction.

    Raises:
        KeyError: If there is none of that name.
    """
    tags = entries(TagPredictionTask, prefix="task.")
    found = OptionIndex((*tags, *entries(FederatedExperiment))).find(name)
    if not found:
        raise KeyError(name)
    return found[0]


def _flag(option: Entry) -> Any:
    kind = option.type
    if not option.takes_none or kind is str:
        return typer.Option(help=f"{option.help} Takes {option.takes}.")
    name = {float: "float", int: "integer", bool: "boolean"}[kind]

    def read(text: str) -> Any:
        # The word stays a word here: the option itself reads it as no value at all.
        try:
            return text if text == "none" else kind(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a valid {name}, or none.") from None

    return typer.Option(
        help=f"{option.help} Takes {option.takes}.", parser=read, metavar=name.upper()
    )


def with_flags(names: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command a flag for each of some options.

    The command has a parameter `flags`, in whose place the flags stand in its help; it is given
    those that were typed, by option name.

    Args:
        names: Options of federated experiments, in kebab-case.

    Raises:
        KeyError: If there is no such option.
    """
    options = {kebab(name).replace("-", "_"): option_named(name) for name in names}
    made = [
        inspect.Parameter(
            parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[option.type | None, _flag(option)],
        )
        for parameter, option in options.items()
    ]

    return option_group("flags", made, {name: kebab(name) for name in options})


def option_group(
    group: str, made: Sequence[inspect.Parameter], names: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command options of a group, as one dictionary.

    The command has a parameter of the group's name, in whose place they stand in its help; it is
    given those that were typed.

    Args:
        group: The parameter.
        made: The options, None by default.
        names: What the dictionary calls them; by default as they are.
    """
    called = {item.name: item.name for item in made} if names is None else names

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        parameters: list[inspect.Parameter] = []
        for name, parameter in own.items():
            if name == group:
                parameters += made
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def call(**given: Any) -> None:
            typed = {called[item.name]: given.pop(item.name) for item in made}
            found = {name: value for name, value in typed.items() if value is not None}
            command(**{group: found}, **given)

        # Typer reads a function's parameters here.
        call.__dict__["__signature__"] = inspect.Signature(parameters)
        call.__annotations__ = {item.name: item.annotation for item in parameters}
        return call

    return decorate
