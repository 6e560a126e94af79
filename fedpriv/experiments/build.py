"""Tasks and components of an experiment, made from its options and the data."""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedpriv.datasets.local_data import NodeData
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.experiments.components import (
    EXAMPLE_FIELD_NAMES,
    USER_FIELD_NAMES,
    Components,
    make_example_components,
    make_side_information,
    make_trainer,
    make_user_components,
    refined,
)
from fedpriv.experiments.experiment import Experiment, FederatedExperiment
from fedpriv.experiments.mechanism import CorrelatedNoise, GaussianNoise
from fedpriv.experiments.options import said_as_options
from fedpriv.experiments.settings import Settings, choose_settings
from fedpriv.experiments.start import FromPublic, public_only
from fedpriv.experiments.users import Adaptive, PoissonCohorts
from fedpriv.privacy.epsilon import default_delta
from fedpriv.privacy.statement.coverage import private_start
from fedpriv.rng import Key
from fedpriv.tasks.checks import check_central_task, check_task
from fedpriv.tasks.task import HoldsOutPublicUsers, Task
from fedpriv.training.public_learning import learn
from fedpriv.training.work import LocalTrainer
from fedpriv.tree import l2_norm, num_elements


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
    return factory(experiment, corpus) if takes_corpus(factory) else factory(experiment)


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


def build(experiment: Experiment, corpus: Corpus | None = None, task: Any = None) -> Components:
    """Return the components of an experiment.

    Options that are automatic are chosen here (`fedpriv.experiments.settings`); `experiment` of the
    components has their values.

    Args:
        experiment: Says what is done.
        corpus: What its task is made on; None for a task that brings its own data.
        task: What is learnt, instead of the experiment's own.

    Raises:
        ValueError: If its options do not fit together or do not fit the data.
    """
    if experiment.unit == "example":
        if corpus is not None:
            raise ValueError(f"{experiment.name} brings its own data; leave the corpus out")
        given = make_task(experiment, None) if task is None else task
        check_central_task(given, experiment.name)
        with said_as_options(experiment.field_names() | EXAMPLE_FIELD_NAMES):
            components = refined(experiment, make_example_components(experiment, given))
            return _payable(replace(components, experiment=experiment))
    made = make_task(experiment, corpus) if task is None else task
    check_task(made, experiment.name)
    if task is None:
        check_heeded(experiment, made)
    with said_as_options(experiment.field_names() | USER_FIELD_NAMES):
        settled, settings = settle(experiment, made)
        components = refined(settled, make_user_components(settled, made))
        return _payable(replace(components, experiment=settled, settings=settings))


def _payable(made: Components) -> Components:
    """Return components whose target pays for at least one round.

    Raises:
        ValueError: If it pays for none.
    """
    plan = made.plan
    if plan.event is not None and plan.is_private and plan.affordable_rounds == 0:
        raise ValueError(
            f"target_epsilon {plan.target_epsilon:g} pays for no round: "
            f"{plan.refusal(Counter(), plan.event)}; raise target_epsilon or noise_multiplier, "
            "lower the cohort, or leave noise_multiplier out (the target then chooses it)"
        )
    return made


#: What `Settings` calls the options that it chooses.
_CHOSEN = {
    "sampling.cohort": "cohort",
    "rounds": "rounds",
    "bound.l2_clip_norm": "l2_clip_norm",
    "start.factor": "start_factor",
}


def settle(experiment: Experiment, task: Task) -> tuple[Experiment, Settings | None]:
    """Return an experiment with a value for each automatic option, and what was chosen.

    They keep the values that the experiment has where nothing can be chosen: no target ε, a noise
    multiplier that is given, or other noise than the Gaussian of every round's own. The clip norm
    does, too, where it adapts or there are no public users to measure updates of.

    Where a rostered asker's title and tags would be in what is measured they keep them as well: by
    sentence, others' tags decide which of a public user's sentences train, and a public start of
    all posts learns from them.

    Guarantees:
        * Of a rostered user's records and questions, others' answers to these included, values
          follow from the roster's length alone.
    """
    if not experiment.automatic:
        return experiment, None
    if not isinstance(experiment, FederatedExperiment):
        return replace(experiment, automatic=()), None
    if getattr(experiment.task, "split", None) == "by-sentence" or private_start(
        experiment.options()
    ):
        return replace(experiment, automatic=()), None
    noise, bound = experiment.noise, experiment.bound
    if (
        not isinstance(noise, GaussianNoise)
        or isinstance(noise, CorrelatedNoise)
        or not isinstance(experiment.sampling, PoissonCohorts)
        or noise.target_epsilon is None
        or noise.multiplier is not None
    ):
        return replace(experiment, automatic=()), None
    fixed: dict[str, Any] = {
        "cohort": experiment.sampling.cohort,
        "rounds": experiment.rounds,
        "l2_clip_norm": getattr(bound, "l2_clip_norm", None),
    }
    for path in experiment.automatic:
        fixed.pop(path.rpartition(".")[2], None)
    norms, num_public = public_update_norms(experiment, task)
    # A clip norm that adapts begins from the one given.
    if not norms or isinstance(getattr(bound, "clip_norm", None), Adaptive):
        fixed["l2_clip_norm"] = getattr(bound, "l2_clip_norm", None)
    num_users = len(task.roster)
    found = choose_settings(
        num_users=num_users,
        epsilon=noise.target_epsilon,
        delta=default_delta(num_users) if experiment.delta is None else experiment.delta,
        relation=experiment.neighbours(),
        update_norm=float(np.median(norms)) if norms else None,
        num_params=num_elements(task.init_params(Key.simulation(0))),
        num_public_examples=num_public,
        **fixed,
    )
    start = experiment.start
    free = {*found.chosen, *(("start.factor",) if isinstance(start, FromPublic) else ())}
    names = tuple(name for name in experiment.automatic if name in free)
    if "start.factor" not in names:
        found = replace(found, start_factor=getattr(start, "factor", None))
    values = {name: getattr(found, _CHOSEN[name]) for name in names}
    # The bound goes to nodes with each question; no node needs these options.
    return experiment.with_options(values), replace(found, chosen=names)


def public_update_norms(experiment: Experiment, task: Task) -> tuple[list[float], int]:
    """Return the l2 norms of public users' updates, and how many examples they have.

    Each is made at a start that was not trained on its user (a start that was would make it too
    short), with the settings that the public search chose for the start.
    """
    trainer = make_trainer(experiment, task, make_side_information(experiment, task))
    if not isinstance(task, HoldsOutPublicUsers) or not isinstance(trainer, LocalTrainer):
        return [], 0
    start, key = experiment.start, Key.simulation(0).fold("update norms")
    found = public_only(task, key) if isinstance(start, FromPublic) else None
    norms, num_examples = [], 0
    for learner, users in task.public_users_held_out():
        params = (
            start.make(task, key).params
            if found is None or not isinstance(start, FromPublic)
            else (learn(learner, start.settings(found)).params)
        )
        norms += [l2_norm(trainer.train(params, examples, key)) for examples in users]
        num_examples += sum(len(examples) for examples in users)
    return [norm for norm in norms if math.isfinite(norm) and norm > 0.0], num_examples
