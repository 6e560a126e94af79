"""Options that several commands have, given to each as one dictionary."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def grouped(
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
