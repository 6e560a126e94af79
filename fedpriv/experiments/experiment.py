"""Experiments: one frozen value says everything about a run, and is made into its components here.

An experiment is a Python function that returns an `Experiment`; most derive theirs from another by
`with_options`. The options are flat and their kebab-case names are the same on the command line,
in a run folder and in Flower's run-config.

>>> experiment = Experiment(name="demo", description="A demonstration.")
>>> experiment.with_options({"l2-clip-norm": 2, "bound": "normalise"}).l2_clip_norm
2.0
>>> experiment.with_options({"l2-clip-norms": 2})
Traceback (most recent call last):
    ...
ValueError: 'l2-clip-norms' is not an option of an experiment; did you mean 'l2-clip-norm'?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedpriv import optimizers
from fedpriv.data.corpus.corpus import Corpus
from fedpriv.experiments.base_options import (
    BaseOptions,
    make_aggregate,
    make_plan,
    plain_bound,
    refined,
    release_preconditioner,
)
from fedpriv.experiments.options import check_ranges, said_as_options
from fedpriv.experiments.task_factory import check_heeded, make_task
from fedpriv.mechanisms import (
    Bound,
    Rounded,
    SideInformation,
)
from fedpriv.mechanisms.preconditioner import NoPreconditioner, Preconditioner
from fedpriv.mechanisms.preconditioners import Fixed
from fedpriv.privacy.plan import Plan, sampler_of
from fedpriv.ranges import Range
from fedpriv.tasks.tasks import TagPrediction, Task
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.local.trainer import LocalTrainer, Schedule
from fedpriv.transform import Transform

#: What a plan and a schedule call the options that set them.
_FIELD_NAMES = {
    "num_users": "users",
    "num_rounds": "rounds",
    "expected_cohort_size": "cohort",
    "beta1": "server-momentum",
    "server momentum": "server-momentum",
    "server adaptivity": "server-adaptivity",
}
_RANGES = {
    "users": Range.AT_LEAST_ONE,
    "preconditioner_top": Range.AT_LEAST_ZERO,
    "cohort": Range.ABOVE_ZERO,
    "cohort_cap": Range.AT_LEAST_ONE,
    "rounds": Range.AT_LEAST_ONE,
    "server_learning_rate": Range.ABOVE_ZERO,
    "local_learning_rate": Range.ABOVE_ZERO,
    "local_batch_size": Range.AT_LEAST_ONE,
    "local_epochs": Range.AT_LEAST_ONE,
    "max_examples_per_user": Range.AT_LEAST_ONE,
}

#: From an experiment and a corpus, or from an experiment alone, to its task.
TaskFactory = Callable[["Experiment", Corpus | None], Task] | Callable[["Experiment"], Task]


def tag_prediction(experiment: Experiment, corpus: Corpus | None) -> Task:
    """Return the tag-prediction task of a corpus through the experiment's roster."""
    if corpus is None:
        raise ValueError(
            "tag prediction needs a corpus; give --corpus PATH, or see `fedpriv data list`"
        )
    view = corpus.view(roster=experiment.roster, users=experiment.users)
    return TagPrediction(view, inputs=experiment.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(BaseOptions):
    """Everything that decides a federated run; what it promises is inherited.

    Attributes:
        task: Makes the task from this experiment and a corpus, or from this experiment alone.
        backends: The backends that it claims to run on.
        roster: A roster of the corpus; None for the corpus's own default.
        users: Only the roster's first so many users, for quick trials.
        inputs: "tff" or "unit-norm".
        precondition: Where A acts: "none", "local" (AdaDPS Algorithm 3: every local step divides
            by A), "update" (the user's update is divided by A, then bounded), "both", or
            "scale-then-privatise" (as update, and the released mean is multiplied by A).
        side_information: Where A comes from: "rank", "frequency" or "tf-idf".
        preconditioner_gain: Largest multiplier 1/A.
        preconditioner_top: How many of the commonest words "rank" leaves alone.
        preconditioner_power: Exponent of "frequency".
        guide: A preconditioner made of past releases: "delayed" (DP²), or "past-releases"
            (scale-then-privatise); not beside one that is known beforehand.
        exact_sum: Round bounded updates to a public grid, so that their sum is exact: the same
            bits for any order, backend and number of workers. Only with noise, beside which the
            grid is a millionth or less.
        cohort: Expected cohort size; None for a twentieth of the roster.
        cohort_cap: Largest cohort under Poisson sampling.
        rounds: How many rounds are planned and paid for.
        local_learning_rate: Step size of local SGD.
        local_batch_size: Examples a local step.
        local_epochs: Local passes.
        max_examples_per_user: Cap of a user's work.
        server_optimizer: "sgd", "momentum", "ema-momentum", "adam", "yogi" or "adagrad".
        server_learning_rate: Step size of the server.
        server_momentum: Weight of the past, for the momentum optimisers and β₁ of the adaptive.
        server_adaptivity: Added to √v by the adaptive optimisers.
    """

    task: TaskFactory = field(default=tag_prediction, repr=False)
    backends: tuple[str, ...] = ("serial", "threads", "ray", "flower")

    roster: str | None = None
    users: int | None = None
    inputs: Literal["tff", "unit-norm"] = "tff"

    precondition: Literal["none", "local", "update", "both", "scale-then-privatise"] = "none"
    side_information: Literal["rank", "frequency", "tf-idf"] = "rank"
    preconditioner_gain: float = 200.0
    preconditioner_top: int = 100
    preconditioner_power: float = 1.0

    guide: Literal["none", "delayed", "past-releases"] = "none"

    exact_sum: bool = True

    cohort: float | None = None
    cohort_cap: int | None = None
    rounds: int = 100

    local_learning_rate: float = 1.0
    local_batch_size: int = 100
    local_epochs: int = 1
    max_examples_per_user: int = 256

    server_optimizer: Literal["sgd", "momentum", "ema-momentum", "adam", "yogi", "adagrad"] = "sgd"
    server_learning_rate: float = 1.0
    server_momentum: float = 0.9
    server_adaptivity: float = 1e-3

    def __post_init__(self) -> None:
        BaseOptions.__post_init__(self)  # `super()` does not know a class remade with slots
        check_ranges(self, _RANGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What an experiment is made of once its data are at hand.

    Attributes:
        task: Roster, users, model and measures.
        plan: The promise, with the mechanism that runs.
        algorithm: What is asked of users, and what the server makes of the answers.
        trainer: What a user does.
        side_information: 1/A and where it came from; None without preconditioning.

    Raises:
        ValueError: If the plan was made for another number of users than the task's roster has:
            cohorts would be drawn with another probability than its ε is of.
    """

    task: Task
    plan: Plan
    algorithm: FederatedAveraging
    trainer: LocalTrainer
    side_information: SideInformation | None

    def __post_init__(self) -> None:
        self.plan.check_roster(self.task.roster)


def build(experiment: Experiment, corpus: Corpus | None) -> Components:
    """Return the components of an experiment on a corpus.

    Raises:
        ValueError: If its options do not fit together or do not fit the corpus.
    """
    task = make_task(experiment, corpus)
    check_heeded(experiment, task)
    with said_as_options(experiment.field_names() | _FIELD_NAMES):
        side = make_side_information(experiment, task)
        made = Components(
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
        return refined(experiment, made)


def make_side_information(experiment: Experiment, task: Task) -> SideInformation | None:
    """Return 1/A and where it came from; None where the experiment does not precondition."""
    if experiment.precondition == "none":
        return None
    return task.side_information(
        experiment.side_information,
        gain=experiment.preconditioner_gain,
        top=experiment.preconditioner_top,
        power=experiment.preconditioner_power,
    )


def make_preconditioner(experiment: Experiment, side: SideInformation | None) -> Preconditioner:
    """Return what preconditions updates: what is known beforehand, or learnt from past releases.

    Raises:
        ValueError: If the updates would be preconditioned twice.
    """
    if experiment.guide != "none":
        if experiment.precondition in ("update", "both", "scale-then-privatise"):
            raise ValueError(
                f"guide {experiment.guide!r} preconditions updates, and so does precondition "
                f"{experiment.precondition!r}; choose one, or precondition 'local'"
            )
        return release_preconditioner(experiment, experiment.guide)
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
    exact = experiment.exact_sum and experiment.noise != "none"
    return Rounded(bound=inner) if exact else inner


def federated_plan(experiment: Experiment, task: Task) -> Plan:
    """Return the promise, with its noise calibrated if the experiment asks for that.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    num_users = len(task.roster)
    cohort = experiment.cohort if experiment.cohort is not None else max(1.0, num_users / 20)
    return make_plan(
        experiment,
        sampler=sampler_of(experiment.sampling, num_users, cohort, experiment.cohort_cap),
        bound=make_bound(experiment),
        num_rounds=experiment.rounds,
        max_examples_per_user=experiment.max_examples_per_user,
        roster_sha256=task.roster_sha256,
    )


def make_optimizer(experiment: Experiment) -> Transform:
    """Return the server optimiser."""
    rate, momentum = experiment.server_learning_rate, experiment.server_momentum
    adaptivity = experiment.server_adaptivity
    match experiment.server_optimizer:
        case "sgd":
            return optimizers.sgd(rate)
        case "momentum":
            return optimizers.momentum(rate, momentum, ema=False)
        case "ema-momentum":
            return optimizers.momentum(rate, momentum, ema=True)
        case "adam":
            return optimizers.adam(rate, adaptivity, beta1=momentum)
        case "yogi":
            return optimizers.yogi(rate, adaptivity, beta1=momentum)
        case "adagrad":
            return optimizers.adagrad(rate, adaptivity)
