"""Experiments whose unit is a user: local work on users' devices, a server that steps.

`parts.users` says what such an experiment is composed of, and each part makes its own object;
`make_components` puts them together.
"""

from __future__ import annotations

from fedpriv.experiments.components import Components, make_plan, own_components, own_method
from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.parts.noise import WITH_MEMORY
from fedpriv.mechanisms import SideInformation
from fedpriv.mechanisms.preconditioners import NoPreconditioner, Preconditioner
from fedpriv.privacy.plan import Plan
from fedpriv.tasks.task import Task
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import Trainers

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
    own = own_method(experiment)
    if own is not None:
        return own_components(experiment, task, own)
    side = make_side_information(experiment, task)
    return Components(
        task=task,
        plan=_plan(experiment, task),
        algorithm=_algorithm(experiment, task, side),
        trainer=make_trainer(experiment, task, side),
        side_information=side,
        start=experiment.part("start").make,
    )


def make_side_information(experiment: Experiment, task: Task) -> SideInformation | None:
    """Return 1/A and where it came from; None where the experiment does not precondition.

    Raises:
        ValueError: If the task does not know what it is to be made of.
    """
    if not experiment.has_part("side-information"):
        return None
    return experiment.part("side-information").make(task, experiment.name)


def make_trainer(
    experiment: Experiment, task: Task, side: SideInformation | None, device: str = "cpu"
) -> Trainers:
    """Return what a user does, on a device.

    Raises:
        ValueError: If the task or this machine has no use for the device.
    """
    own = own_method(experiment)
    if own is not None:
        return own.works(task, device)
    schedule = experiment.part("local work").schedule()
    multiplier = experiment.part("precondition").in_steps(side)
    if device == "cpu":  # a task of somebody's own need not know of devices
        trainer = task.trainer(schedule, multiplier)
    else:
        trainer = task.trainer(schedule, multiplier, device=device)
    if not experiment.has_part("clip-norm"):
        return trainer
    return experiment.part("clip-norm").sending(trainer, experiment.part("bound").make())


def _algorithm(
    experiment: Experiment, task: Task, side: SideInformation | None
) -> FederatedAveraging:
    """Return what the server does.

    Raises:
        ValueError: If updates would be preconditioned twice, or before a clip norm that adapts.
    """
    preconditioner = _preconditioner(experiment, side)
    optimizer = experiment.part("server-optimizer").make()
    aggregate = experiment.part("aggregate").averaging()
    tensors = getattr(task, "round_tensors", None)  # of a `ShiftsOverRounds`
    given = {"optimizer": optimizer, "tensors": tensors, **aggregate}
    if not experiment.has_part("clip-norm"):
        return FederatedAveraging(preconditioner=preconditioner, **given)
    return experiment.part("clip-norm").averaging(
        experiment.part("bound").make(), preconditioner, **given
    )


def _preconditioner(experiment: Experiment, side: SideInformation | None) -> Preconditioner:
    """Return what preconditions updates: what is known beforehand, or learnt from past releases.

    Raises:
        ValueError: If the updates would be preconditioned twice.
    """
    guided = experiment.part("guide").choose(None).preconditioner
    if guided is not None and experiment.noise in WITH_MEMORY:
        raise ValueError(
            f"guide {experiment.guide!r} changes what rounds are preconditioned by, and noise "
            f"{experiment.noise!r} takes back what earlier rounds added; use noise 'gaussian', or "
            "precondition by side information, which stays as it is"
        )
    known = experiment.part("precondition").on_updates(side)
    if guided is not None and known is not None:
        raise ValueError(
            f"guide {experiment.guide!r} preconditions updates, and so does precondition "
            f"{experiment.precondition!r}; choose one, or precondition 'local'"
        )
    return guided or known or NoPreconditioner()


def _plan(experiment: Experiment, task: Task) -> Plan:
    """Return the promise, with its noise calibrated if the experiment asks for that.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    bound = experiment.part("bound").make()
    if experiment.has_part("clip-norm"):
        bound = experiment.part("clip-norm").bound(bound)
    if experiment.has_part("sum"):
        bound = experiment.part("sum").rounded(bound)
    return make_plan(
        experiment,
        sampler=experiment.part("sampling").sampler(len(task.roster), experiment.rounds),
        bound=bound,
        num_rounds=experiment.rounds,
        max_examples_per_user=experiment.max_examples_per_user,
        roster_sha256=task.roster_sha256,
    )
