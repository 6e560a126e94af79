"""Experiments whose unit is a user: local work on users' devices, a server that steps.

`user_parts` says what such an experiment is composed of; `make_components` makes it work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpriv import optimizers
from fedpriv.experiments.components import (
    Components,
    make_aggregate,
    make_plan,
    plain_bound,
    release_preconditioner,
)
from fedpriv.mechanisms import Bound, Rounded, SideInformation
from fedpriv.mechanisms.preconditioner import NoPreconditioner, Preconditioner
from fedpriv.mechanisms.preconditioners import Fixed
from fedpriv.privacy.plans.named import sampler_of
from fedpriv.privacy.plans.plan import Plan
from fedpriv.tasks.task import KnowsMultipliers, KnowsWords, Task
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.local.trainer import LocalTrainer, Schedule
from fedpriv.transform import Transform

if TYPE_CHECKING:
    from fedpriv.experiments.experiment import Experiment


#: What a plan and a schedule call the options that set them.
FIELD_NAMES = {
    "num_users": "users",
    "num_rounds": "rounds",
    "expected_cohort_size": "cohort",
    "beta1": "server-momentum",
    "server momentum": "server-momentum",
    "server adaptivity": "server-adaptivity",
}


def make_components(experiment: Experiment, task: Task) -> Components:
    """Return the components of an experiment on a task.

    Raises:
        ValueError: If its options do not fit together or do not fit the task.
    """
    side = make_side_information(experiment, task)
    return Components(
        task=task,
        plan=federated_plan(experiment, task),
        algorithm=FederatedAveraging(
            optimizer=make_optimizer(experiment),
            aggregate=make_aggregate(experiment),
            preconditioner=make_preconditioner(experiment, side),
        ),
        trainer=make_trainer(experiment, task, side),
        side_information=side,
    )


def make_side_information(experiment: Experiment, task: Task) -> SideInformation | None:
    """Return 1/A and where it came from; None where the experiment does not precondition.

    Raises:
        ValueError: If the task does not know what it is to be made of.
    """
    if experiment.precondition == "none":
        return None
    kind, made = experiment.side_information, experiment.part("side-information")
    if kind == "own":
        if not isinstance(task, KnowsMultipliers):
            raise ValueError(
                f"side-information 'own': the task of {experiment.name} knows no multipliers; give "
                "it a method side_information() that returns a SideInformation, or leave "
                "precondition out"
            )
        return task.side_information()
    if not isinstance(task, KnowsWords):
        more = "set side-information own" if isinstance(task, KnowsMultipliers) else (
            "give it a method side_information() that returns a SideInformation and set "
            "side-information own, or leave precondition out"
        )  # fmt: skip
        raise ValueError(
            f"side-information {kind!r} is made of public words, of which the task of "
            f"{experiment.name} has none; {more}"
        )
    words = task.public_words()
    rows, said = made.rows(words)
    return SideInformation(
        multiplier={"kernel": rows.astype(np.float32).reshape(-1, 1)},
        source=words.source,
        description=f"{said}, from {words.where}",
    )


def make_preconditioner(experiment: Experiment, side: SideInformation | None) -> Preconditioner:
    """Return what preconditions updates: what is known beforehand, or learnt from past releases.

    Raises:
        ValueError: If the updates would be preconditioned twice.
    """
    guided = release_preconditioner(experiment.part("guide"))
    if guided is not None:
        if experiment.precondition in ("update", "both", "scale-then-privatise"):
            raise ValueError(
                f"guide {experiment.guide!r} preconditions updates, and so does precondition "
                f"{experiment.precondition!r}; choose one, or precondition 'local'"
            )
        return guided
    if side is None or experiment.precondition in ("none", "local"):
        return NoPreconditioner()
    undone = experiment.precondition == "scale-then-privatise"
    return Fixed(multiplier=side.multiplier, inverse=side.inverse() if undone else {})


def make_schedule(experiment: Experiment) -> Schedule:
    """Return how much each user works."""
    return Schedule(
        learning_rate=experiment.local_learning_rate,
        batch_size=experiment.local_batch_size,
        epochs=experiment.local_epochs,
        max_examples=experiment.max_examples_per_user,
    )


def local_multiplier(
    experiment: Experiment, side: SideInformation | None
) -> Mapping[str, np.ndarray]:
    """Return 1/A for local steps, empty where the experiment does not precondition them."""
    if side is None or experiment.precondition not in ("local", "both"):
        return {}
    return side.multiplier


def make_trainer(
    experiment: Experiment, task: Task, side: SideInformation | None, device: str = "cpu"
) -> LocalTrainer:
    """Return what a user does, on a device.

    Raises:
        ValueError: If the task or this machine has no use for the device.
    """
    schedule, multiplier = make_schedule(experiment), local_multiplier(experiment, side)
    if device == "cpu":  # a task of somebody's own need not know of devices
        return task.trainer(schedule, multiplier)
    return task.trainer(schedule, multiplier, device=device)


def make_bound(experiment: Experiment) -> Bound:
    """Return the public bound, rounded to a grid where the experiment says so."""
    inner = plain_bound(experiment)
    # Without noise a bound may be set so high that it never binds, and its grid would be coarse.
    exact = experiment.noise != "none" and experiment.exact_sum
    return Rounded(bound=inner) if exact else inner


def federated_plan(experiment: Experiment, task: Task) -> Plan:
    """Return the promise, with its noise calibrated if the experiment asks for that.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    num_users = len(task.roster)
    cohort = experiment.cohort if experiment.cohort is not None else max(1.0, num_users / 20)
    cap = getattr(experiment.part("sampling"), "cohort_cap", None)
    return make_plan(
        experiment,
        sampler=sampler_of(experiment.sampling, num_users, cohort, cap),
        bound=make_bound(experiment),
        num_rounds=experiment.rounds,
        max_examples_per_user=experiment.max_examples_per_user,
        roster_sha256=task.roster_sha256,
    )


def make_optimizer(experiment: Experiment) -> Transform:
    """Return the server optimiser."""
    made = experiment.part("server-optimizer")
    rate = made.learning_rate
    match experiment.server_optimizer:
        case "momentum":
            return optimizers.momentum(rate, made.momentum, ema=False)
        case "ema-momentum":
            return optimizers.momentum(rate, made.momentum, ema=True)
        case "adam":
            return optimizers.adam(rate, made.adaptivity, beta1=made.momentum)
        case "yogi":
            return optimizers.yogi(rate, made.adaptivity, beta1=made.momentum)
        case "adagrad":
            return optimizers.adagrad(rate, made.adaptivity)
        case _:
            return optimizers.sgd(rate)
