"""A task is looked at before a run folder is made: what it lacks is said in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.measures import Measure, check_measures
from fedpriv.tasks.description import TaskDescription
from fedpriv.tasks.example_task import CentralTask
from fedpriv.tasks.task import LearnsInPublic
from fedpriv.training.evaluate import Metrics

#: What every task has, with what it is for.
_MEMBERS = {
    "roster": "the ids of its users",
    "roster_sha256": "fedpriv.datasets.stackexchange.rosters.roster_sha256(roster)",
    "data": "the users' examples: an object with examples(user_id) and num_examples(user_id)",
    "measures": "a tuple of fedpriv.measures.Measure, the headline first, or ()",
}
_METHODS = {
    "init_params": "init_params(key) returns the params before the first round",
    "trainer": "trainer(schedule, multiplier) returns what a user does",
    "evaluate": "evaluate(params, *, public, part) returns Metrics or None",
    "describe": "describe() returns a TaskDescription",
}
# Of a large roster so many users are looked for, from all over it.
_MOST_USERS = 10_000


def check_task(task: Any, of: str) -> None:
    """Refuse what is no task, before anything is written or charged.

    Args:
        task: Of users.
        of: The experiment's name, for messages.

    Raises:
        ValueError: If a member is missing or of another type, or its parts do not fit together.
    """
    wanted = {**_MEMBERS, **_METHODS}
    missing = [name for name in wanted if not hasattr(task, name)]
    if missing:
        raise ValueError(
            f"{_the_task(task, of)} has no {', '.join(missing)}; add "
            f"{'it' if len(missing) == 1 else 'them'}: {'; '.join(wanted[n] for n in missing)}"
        )
    for name in wanted:
        if name in _METHODS and not callable(getattr(task, name)):
            raise ValueError(f"{name} of {_the_task(task, of)} is no method; {_METHODS[name]}")
    _check_roster(task.roster, of)
    for name in ("examples", "num_examples"):
        if not callable(getattr(task.data, name, None)):
            raise ValueError(
                f"data of {_the_task(task, of)} are a {type(task.data).__name__} without a method "
                f"{name}(user_id); add it, or see fedpriv.tasks.array_users.ArrayUsers"
            )
    check_described(task, of)


def check_described(task: Any, of: str) -> None:
    """Refuse a task, of users or of examples, whose measures or description are not of their types.

    Raises:
        ValueError: If that is so, or it is described with another number of users than it has.
    """
    for measure in task.measures:
        if not isinstance(measure, Measure):
            raise ValueError(
                f"measures of {_the_task(task, of)} hold a {type(measure).__name__}; give "
                "fedpriv.measures.Measure(name=..., label=...)"
            )
    check_measures(task.measures)
    described = task.describe()
    if not isinstance(described, TaskDescription):
        raise ValueError(
            f"describe() of {_the_task(task, of)} returned a {type(described).__name__}; return a "
            "fedpriv.tasks.description.TaskDescription(name=..., synthetic=..., roster=..., "
            "num_users=...)"
        )
    if described.num_users != len(task.roster):
        raise ValueError(
            f"describe() of {_the_task(task, of)} says {described.num_users} users, and its roster "
            f"has {len(task.roster)}; say num_users=len(self.roster)"
        )


def check_central_task(task: Any, of: str) -> None:
    """Refuse what is no centralised task.

    Raises:
        ValueError: If it is of another type, or does not describe itself.
    """
    if not isinstance(task, CentralTask):
        raise ValueError(
            f"the task of {of} is a {type(task).__name__}; an experiment whose unit is an example "
            "takes a fedpriv.tasks.example_task.CentralTask"
        )
    check_described(task, of)


def check_users(task: Any, of: str) -> None:
    """Refuse a task that is to be trained here and has no examples of a rostered user.

    Of a large roster some thousands, from all over it, are looked for. A user with no examples at
    all is somebody who contributes zero, and is not refused.

    Raises:
        ValueError: If its data know nothing of one of them.
    """
    users = task.roster[:: -(-len(task.roster) // _MOST_USERS)]
    known = task.data if hasattr(task.data, "__contains__") else None
    for user_id in users:
        try:
            found = user_id in known if known is not None else task.data.num_examples(user_id) >= 0
        except Exception as error:
            raise ValueError(
                f"data of {_the_task(task, of)} have nothing of rostered user {user_id!r} "
                f"({type(error).__name__}); give examples, maybe none, for everybody on the "
                "roster, or take the user off it"
            ) from error
        if not found:
            raise ValueError(
                f"data of {_the_task(task, of)} have nothing of rostered user {user_id!r}; give "
                "examples, maybe none, for everybody on the roster, or take the user off it"
            )


def check_metrics(task: Any, found: Any) -> None:
    """Refuse what measuring public examples returned where it is not what the measures name.

    Args:
        task: Of any kind.
        found: What its trial returned; None where nothing was measured.

    Raises:
        ValueError: If it is no `Metrics`, has a figure of another name, or there should be some.
    """
    if found is None:
        number = task.describe().num_public_users
        # Public users that are learnt from need not have examples that are kept back.
        elsewhere = isinstance(task, (CentralTask, LearnsInPublic))
        if task.measures and number > 0 and not elsewhere:
            raise ValueError(
                f"describe() says {number} public users, but evaluate() measures nothing on them; "
                "give their examples, or say num_public_users=0"
            )
        return
    if not isinstance(found, Metrics) or not isinstance(found.totals, Mapping):
        raise ValueError(
            f"evaluate() of the task returned a {type(found).__name__}; return Metrics.of(number, "
            "name=mean), or None where there is nothing to measure on"
        )
    named = [measure.name for measure in task.measures]
    for name in found.totals:
        if name not in named:
            raise ValueError(
                f"evaluate() measured {name!r}, which is not among the task's measures "
                f"({', '.join(named) or 'none'}); add a Measure of that name"
            )


def _check_roster(roster: Any, of: str) -> None:
    if not isinstance(roster, tuple):
        raise ValueError(
            f"the roster of {of} is a {type(roster).__name__}; give a tuple of user ids, sorted"
        )
    if not roster:
        raise ValueError(f"the roster of {of} is empty; there must be users to learn from")
    for user_id in roster:
        if not isinstance(user_id, str):
            raise ValueError(
                f"user {user_id!r} on the roster of {of} is a {type(user_id).__name__}; give text"
            )
    if len(set(roster)) != len(roster):
        twice = next(user_id for user_id in roster if roster.count(user_id) > 1)
        raise ValueError(f"user {twice!r} is on the roster of {of} more than once; list each once")


def _the_task(task: Any, of: str) -> str:
    return f"the task of {of} ({type(task).__name__})"
