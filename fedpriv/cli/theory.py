"""`fedpriv theory`: convergence bounds of the papers, one command for each function of `theory`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from fedpriv.cli.output import print_json, print_line, print_table
from fedpriv.theory import FORMULAS, Result


class _Theorems(TyperGroup):
    """Commands that answer the start of a name by the names that begin so."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        begin = [name for name in FORMULAS if name.startswith(args[0])]
        if begin and args[0] not in FORMULAS:
            ctx.fail(f"No such command {args[0]!r}; there are {', '.join(begin)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Theorems,
    no_args_is_help=True,
    help="What the papers' theorems guarantee in a setting: bounds, their parts and assumptions.",
)


def register(to: typer.Typer) -> None:
    """Add the commands to the application."""
    to.add_typer(app, name="theory")


def _helps(function: Callable[..., Result]) -> dict[str, str]:
    """Return what a docstring says of each argument, as one line."""
    _, _, listed = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    found = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", listed.split("\nRaises:")[0], re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def _command(function: Callable[..., Result]) -> Callable[..., None]:
    """Return a command whose options are the arguments of a function."""
    helps = _helps(function)
    own = inspect.signature(function, eval_str=True).parameters.values()
    # Without escape, E[g] would be read as markup and lose its brackets.
    options = [
        item.replace(
            annotation=Annotated[item.annotation, typer.Option(help=escape(helps[item.name]))]
        )
        for item in own
    ]
    asks_json = inspect.Parameter(
        "as_json",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--json", help="Print the values as JSON.")],
    )

    def command(*, as_json: bool, **given: float | None) -> None:
        found = function(**given)
        print_json(found.to_json()) if as_json else _show(found)

    # Typer reads a function's parameters here.
    command.__dict__["__signature__"] = inspect.Signature([*options, asks_json])
    command.__annotations__ = {item.name: item.annotation for item in [*options, asks_json]}
    command.__doc__ = (inspect.getdoc(function) or "").partition("\n")[0]
    return command


def _show(result: Result) -> None:
    """Print a result for people: its values, then what it assumes and where it comes from."""
    print_line(result.title)
    table = Table("value", "", "what it is", "source", box=None, header_style="bold")
    sources = list(dict.fromkeys(value.source for value in result.values))
    for value in result.values:
        number = f"{value.number:.6g}"
        table.add_row(value.name, number, value.meaning, f"({sources.index(value.source) + 1})")
    print_table(table)
    for number, source in enumerate(sources, start=1):
        print_line(f"({number}) {source}")
    for text in result.assumes:
        print_line(f"assumes: {text}")
    for text in result.notes:
        print_line(f"note: {text}")


for _name, _function in FORMULAS.items():
    app.command(_name)(_command(_function))
