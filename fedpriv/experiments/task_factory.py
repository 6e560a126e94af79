"""Making an experiment's task: what its factory takes, and that no option goes by it unheeded."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.experiment import Experiment
from fedpriv.tasks.task import Task


def takes_corpus(factory: Callable[..., Any]) -> bool:
    """Return whether a task factory does anything with a corpus.

    It does if it has a second parameter and its code reads it. A signature alone does not tell: a
    task that brings its own users may be written with both parameters, and `--corpus` would pass
    unheeded. So it is the bytecode that is read, of the function that is called in the
    end, through partials, decorators, methods and classes; where there is none to look at (compiled
    code), the answer is no, so that a corpus is refused and never ignored.

    >>> takes_corpus(lambda experiment, corpus: corpus.view()), takes_corpus(lambda experiment: 0)
    (True, False)
    >>> takes_corpus(functools.partial(lambda rows, experiment, corpus: 0, 3))
    False
    """
    function = _function(factory)
    name = _second(factory)
    if function is None or name is None:
        return False
    code = function.__code__
    if name not in code.co_varnames[: code.co_argcount]:  # handed on, among any number of others
        if not code.co_flags & inspect.CO_VARARGS:
            return False
        name = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
    loaded = [i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")]
    return name in code.co_cellvars or any(
        name == value or (isinstance(value, tuple) and name in value) for value in loaded
    )


def _function(called: Any) -> types.FunctionType | None:
    """Return the Python function that a call ends in; None where it ends in none."""
    for _ in range(100):  # decorators may go round in a circle
        if isinstance(called, types.FunctionType) and not hasattr(called, "__wrapped__"):
            return called
        if isinstance(called, functools.partial):
            called = called.func
        elif hasattr(called, "__wrapped__"):
            called = called.__wrapped__
        elif isinstance(called, types.MethodType):
            called = called.__func__
        elif isinstance(called, type):
            own = (called.__init__, called.__new__)
            called = next((made for made in own if isinstance(made, types.FunctionType)), None)
        else:  # an object of a class with __call__; a slot of C has one of its own again
            called = type(called).__call__
            if isinstance(called, types.WrapperDescriptorType):
                return None
    return None


def _second(factory: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that a second argument goes to; None if it goes to none."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return None
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [parameter.name] * 2
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[1] if len(names) > 1 else None


def takes_data(factory: Callable[..., Any]) -> bool:
    """Return whether a task factory has a keyword-only parameter `data`, for a node's own data.

    >>> takes_data(lambda experiment, *, data=None: 0), takes_data(lambda experiment, data: 0)
    (True, False)
    """
    try:
        found = inspect.signature(factory).parameters.get("data")
    except (TypeError, ValueError):
        return False
    return found is not None and found.kind is found.KEYWORD_ONLY


def make_task(experiment: Experiment, corpus: Corpus | None, data: NodeData | None = None) -> Any:
    """Return the task of an experiment: a `Task`, or a `CentralTask` of examples.

    Args:
        experiment: Whose.
        corpus: What it is made on; None for a task that brings its own data.
        data: Where a node's own data lie; None on a server, and on a node without any.

    Raises:
        ValueError: If there is a corpus, or a node's own data, that the task does not take.
    """
    factory: Callable[..., Any] = experiment.task
    if corpus is not None and not takes_corpus(factory):
        raise ValueError(
            f"{experiment.name} brings its own users and reads no corpus; leave corpus "
            f"{str(corpus.directory)!r} out, or have its task function use its second argument"
        )
    if data is not None:
        if not takes_data(factory):
            raise ValueError(
                f"{experiment.name} reads no data of a node's own: its task has no parameter "
                "`*, data=None`; leave data and data-key out of the node-config, or give it one"
            )
        factory = functools.partial(factory, data=data)
    parameters = _positional(factory)
    alone = parameters is not None and len(parameters) == 1
    return factory(experiment) if alone else factory(experiment, corpus)


def check_heeded(experiment: Experiment, task: Task) -> None:
    """Refuse a choice of users that a task has not followed.

    Not for a node of a federation, which may hold a few of the users only.

    Raises:
        ValueError: If the options users or roster say other users than the task has.
    """
    users = getattr(experiment, "users", None)  # a task of one's own need not have them
    roster = getattr(experiment, "roster", None)
    if users is not None and users != len(task.roster):
        raise ValueError(
            f"users {users}: the task of {experiment.name} has {len(task.roster)} users "
            "whatever this option says; leave it out, or have the task read it"
        )
    described = task.describe().roster
    if roster is not None and roster != described:
        raise ValueError(
            f"roster {roster!r}: the task of {experiment.name} has the roster "
            f"{described!r} whatever this option says; leave it out, or have "
            "the task read it"
        )


def _positional(factory: Callable[..., Any]) -> list[str] | None:
    """Return the names of positional parameters; None where they are any number or unknown."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]
