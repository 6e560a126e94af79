"""Flags that are options of experiments, made of what the parts declare.

An option's name, type and help are typed once, in its part; a command only says which options have
a flag of their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from fedpriv.experiments.reference import described


def with_flags(names: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command a flag for each of some options.

    The command has a parameter `flags`, in whose place the flags stand in its help; it is given
    those that were typed, by option name.

    Args:
        names: Options of federated experiments, in kebab-case.

    Raises:
        KeyError: If there is no such option.
    """
    options = {name.replace("-", "_"): described(name) for name in names}
    made = [
        inspect.Parameter(
            parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[option.kind | None, typer.Option(help=option.help)],
        )
        for parameter, option in options.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        parameters: list[inspect.Parameter] = []
        for name, parameter in own.items():
            if name == "flags":
                parameters += made
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def call(**given: Any) -> None:
            typed = {name: given.pop(name) for name in options}
            flags = {options[name].name: v for name, v in typed.items() if v is not None}
            command(flags=flags, **given)

        # Typer reads a function's parameters here.
        call.__dict__["__signature__"] = inspect.Signature(parameters)
        call.__annotations__ = {item.name: item.annotation for item in parameters}
        return call

    return decorate
