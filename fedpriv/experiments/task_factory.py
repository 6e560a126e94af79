"""Making an experiment's task: what its factory takes, and that no option goes by it unheeded."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import Any

from fedpriv.data.corpus.corpus import Corpus
from fedpriv.experiments.experiment import Experiment
from fedpriv.tasks.task import Task


def takes_corpus(factory: Callable[..., Any]) -> bool:
    """Return whether a task factory does anything with a corpus.

    It does if it has a second parameter and its code reads it: a parameter that is only there for
    the form would let `--corpus` pass unheeded.

    >>> takes_corpus(lambda experiment, corpus: corpus.view()), takes_corpus(lambda experiment: 0)
    (True, False)
    >>> takes_corpus(lambda experiment, corpus: 0)
    False
    """
    parameters = _positional(factory)
    if parameters is None:
        return True
    if len(parameters) < 2:
        return False
    called = factory if hasattr(factory, "__code__") else type(factory).__call__
    code = getattr(called, "__code__", None)
    if code is None:  # what it reads cannot be seen
        return True
    name = parameters[1]
    loaded = [i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")]
    return name in code.co_cellvars or any(
        name == value or (isinstance(value, tuple) and name in value) for value in loaded
    )


def make_task(experiment: Experiment, corpus: Corpus | None) -> Any:
    """Return the task of an experiment: a `Task`, or a `CentralTask` of examples.

    Raises:
        ValueError: If there is a corpus that the task does not take.
    """
    factory: Callable[..., Any] = experiment.task
    if corpus is not None and not takes_corpus(factory):
        raise ValueError(
            f"{experiment.name} brings its own users and reads no corpus; leave corpus "
            f"{str(corpus.directory)!r} out, or have its task function use its second argument"
        )
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
