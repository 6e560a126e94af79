"""Tasks and components of an experiment, made from its options and the data."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.averaging import Averaging
from fedpriv.experiments.experiment import Components, Experiment, Settings
from fedpriv.experiments.settings import settle
from fedpriv.privacy.plan import BY_EXAMPLE, Plan
from fedpriv.privacy.trials import Trials
from fedpriv.tasks.central import by_example
from fedpriv.tasks.checks import check_central_task, check_parts
from fedpriv.tasks.task import Task


def takes_corpus(factory: Callable[..., Any]) -> bool:
    """Return whether a task factory has a second positional parameter, for a corpus.

    >>> takes_corpus(lambda experiment, corpus: 0), takes_corpus(lambda experiment: 0)
    (True, False)
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) > 1


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


def make_task(
    experiment: Experiment, corpus: Corpus | NodeData | None, data: NodeData | None = None
) -> Any:
    """Return the task of an experiment: a `Task`, or a `CentralTask` of examples.

    Args:
        experiment: Whose.
        corpus: What it is made on; None for a task that brings its own data.
        data: Where a node's own data lie; None on a server, and on a node without any. In a
            simulation on such data they stand in the place of a corpus.

    Raises:
        ValueError: If there is a corpus, or a node's own data, that the task does not take.
    """
    factory: Callable[..., Any] = experiment.task
    if isinstance(corpus, NodeData):
        corpus, data = None, corpus
    if corpus is not None and not takes_corpus(factory):
        raise ValueError(
            f"{experiment.name} brings its own users and reads no corpus; leave corpus "
            f"{str(corpus.directory)!r} out, or have its task function use its second argument"
        )
    if data is not None:
        if not takes_data(factory):
            raise ValueError(
                f"{experiment.name} reads no data of a node's own: its task has no parameter "
                "`*, data=None`; leave data and data-key out, or give it one"
            )
        factory = functools.partial(factory, data=data)
    made = factory(experiment, corpus) if takes_corpus(factory) else factory(experiment)
    return _by_example(experiment, made)


def _by_example(experiment: Experiment, made: Any) -> Any:
    """Return a task of users as one of their examples, where the experiment draws examples.

    Raises:
        ValueError: If a user's examples are not bounded, or there are no users of whom they are; or
            if rounds of the task differ, and those of the method do not.
    """
    most = getattr(experiment, "examples_per_user", None)
    of_users = isinstance(made, Task)
    if (
        of_users
        and made.round_tensors is not None
        and (most is not None or experiment.method != "averaging")
    ):
        raise ValueError(
            f"the task of {experiment.name} gives users other tensors in each round "
            "(round_tensors), which federated averaging alone sends; leave them out (of next "
            "words: shift none), or use it"
        )
    if most is None and of_users and experiment.unit == "example":
        raise ValueError(
            f"{experiment.name} draws examples, and the unit of its task is a user, of any number "
            "of them; give examples-per-user, or draw users"
        )
    if most is not None and not of_users:
        raise ValueError(
            f"examples-per-user {most}: the task of {experiment.name} has examples and no users; "
            "leave it out, or give a task of users"
        )
    return made if most is None else by_example(made, most)


def check_heeded(experiment: Experiment, task: Task) -> None:
    """Refuse a choice of users that a task has not followed.

    Not for a node of a federation, which may hold a few of the users only.

    Raises:
        ValueError: If the options users or roster say other users than the task has.
    """
    options = experiment.options()  # a custom task need not have them
    users, roster = options.get("task.users"), options.get("task.roster")
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


def build(
    experiment: Experiment,
    corpus: Corpus | NodeData | None = None,
    task: Any = None,
    known: Settings | None = None,
) -> Components:
    """Return the components of an experiment.

    Options that are automatic are chosen here (`fedpriv.experiments.settings`); `experiment` of the
    components has their values.

    Args:
        experiment: Says what is done.
        corpus: What its task is made on; None for a task that brings its own data.
        task: What is learnt, instead of the experiment's own.
        known: What was chosen for the same experiment and task at another ε, to save measuring.

    Raises:
        ValueError: If its options do not fit together or do not fit the data.
    """
    experiment.check()
    central = experiment.unit == "example" and not getattr(experiment, "examples_per_user", None)
    if central and corpus is not None:
        raise ValueError(f"{experiment.name} brings its own data; leave the corpus out")
    made = make_task(experiment, corpus) if task is None else _by_example(experiment, task)
    if experiment.unit == "example":
        check_central_task(made, experiment.name)
        if experiment.method != "averaging" and made.owned is not None:
            whose = "a user" if made.owned.unit == BY_EXAMPLE else "an owner"
            raise ValueError(
                f"method {experiment.method!r} bounds single examples, and of {made.name} {whose} "
                f"has up to {made.owned.most}: its ε would be of one of them alone; use method "
                f"'averaging', whose ε is of {whose}, or a training set of one example each"
            )
    else:
        check_parts(made, experiment.name)
        if task is None:
            check_heeded(experiment, made)
    settled, settings = settle(experiment, made, known)
    components = settled.make_components(made)
    _check_bound(settled, components)
    _check_payable(components)
    own = {
        **getattr(made, "user_defined", {}),
        **_user_defined(components),
        **settled.user_defined(),
    }
    return replace(components, experiment=settled, settings=settings, user_defined=own)


_OBJECTS = {
    "method": "algorithm",
    "server": "algorithm.optimizer",
    "aggregate": "algorithm.aggregate",
    "precondition": "algorithm.preconditioner",
    "sampling": "plan.mechanism.sampler",
    "bound": "plan.mechanism.bound",
    "noise": "plan.mechanism.privatizer",
}
"""Objects of components, by the path of the option that names them."""


def _user_defined(made: Components) -> dict[str, str]:
    """Return the names of classes that are not fedpriv's among components, by options' paths."""
    found: dict[str, str] = {}
    for path, name in _OBJECTS.items():
        try:
            made_of = type(attrgetter(name)(made))
        except AttributeError:  # of another algorithm, or an adaptive plan
            continue
        if not made_of.__module__.startswith("fedpriv."):
            found[path] = made_of.__qualname__.partition(".<locals>")[0]
    return found


def _check_bound(experiment: Experiment, made: Components) -> None:
    """Refuse a bound of coordinates of single examples, of which none is formed."""
    bound = getattr(getattr(made.plan, "mechanism", None), "bound", None)
    if experiment.unit == "example" and bound and (bound.limits or bound.multiple_of):
        raise ValueError(
            f"{experiment.name!r} bounds by {bound!r}, which limits or rounds coordinates; of "
            "single examples none is formed: give a bound of norms"
        )


def _check_payable(made: Components) -> None:
    """Refuse a target ε that pays for no round."""
    plan = made.plan
    if plan.event is not None and plan.is_private and plan.affordable_rounds == 0:
        raise ValueError(
            f"target_epsilon {plan.target_epsilon:g} pays for no round: "
            f"{plan.refusal(Counter(), plan.event)}; raise target_epsilon or noise_multiplier, "
            "lower the cohort, or leave noise_multiplier out (the target then chooses it)"
        )


def in_study(experiment: Experiment, made: Components, trials: Trials | None) -> Components:
    """Return components of one trial of a study, whose every ε is of the whole study.

    Args:
        experiment: Says how much noise, or to which ε it is calibrated: that of the study.
        made: Of it.
        trials: The law of how many trials there are; None for a run that is no trial.

    Raises:
        ValueError: If its plan decides prices on the way, or RDP does not account its rounds.
    """
    if trials is None:
        return made
    if not isinstance(made.plan, Plan) or made.plan.event is None:
        raise ValueError(
            f"{experiment.name} decides on the way what its answers cost, and a study needs trials "
            "of equal cost; give a plan whose charges are all one"
        )
    plan = replace(made.plan, trials=trials, target_epsilon=None)
    if plan.is_private:
        assert isinstance(experiment, Averaging)
        plan = experiment.calibrated(plan)
    # Settings are of one run at this ε, which has less noise than a trial.
    return replace(made, plan=plan, settings=None)
