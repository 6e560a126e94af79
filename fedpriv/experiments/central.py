"""Centralised experiments: DP-SGD, AdaDPS, DP-NSGD and their baselines, by options alone.

A method is a bound, a preconditioner (option `guide`) and an optimiser:

==================  ============================================================================
DP-SGD              bound clip, optimizer sgd
DP-Adam             bound clip, optimizer adam (likewise rmsprop, adagrad)
DP-NSGD, DP-NAdam   bound normalise, optimizer sgd or adam
AdaDPS              guide public-rmsprop, public-adam, public-adagrad, public-own (statistics of
                    one's own) or side-information
DP-R-Pub            guide r-pub
DP-Adam-Pub         guide adam-pub, optimizer ema-momentum
PDA-DPMD            guide mirror-descent
DP²                 guide delayed
scale-then-priv.    guide past-releases, optimizer adam or rmsprop
warm start          warm-start-epochs above 0
ideal               guide ideal: not private, whatever the noise
SGD, Adam, AdaS     noise none, bound none, with the guide or optimizer of that name
==================  ============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from fedpriv import optimizers
from fedpriv.experiments.base_options import (
    BaseOptions,
    make_aggregate,
    make_plan,
    plain_bound,
    refined,
    release_preconditioner,
)
from fedpriv.experiments.options import check_ranges, said_as_options
from fedpriv.mechanisms import SideInformation, moments
from fedpriv.mechanisms.preconditioner import NoPreconditioner, Preconditioner
from fedpriv.mechanisms.preconditioners import Fixed, MirrorDescent, PublicMoments
from fedpriv.noise.gaussian import Unprotected
from fedpriv.privacy.plan import Plan, sampler_of
from fedpriv.ranges import Range
from fedpriv.rng import Key
from fedpriv.tasks.example_task import CentralTask
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.per_example.example_sum import CentralSum, public_gradient, warm_start
from fedpriv.transform import Transform, chain
from fedpriv.tree import Params

CentralTaskFactory = Callable[["CentralExperiment"], CentralTask]

#: What a plan and an optimiser call the options that set them; a plan speaks of users.
_FIELD_NAMES = {
    "num_rounds": "steps",
    "expected_cohort_size": "batch-size",
    "cohort": "batch",
    "users": "examples",
    "beta1": "momentum",
    "server momentum": "momentum",
    "server learning rate": "learning-rate",
    "server adaptivity": "adaptivity",
}
_RANGES = {
    "batch_size": Range.ABOVE_ZERO,
    "epochs": Range.ABOVE_ZERO,
    "steps": Range.AT_LEAST_ONE,
    "micro_batch": Range.AT_LEAST_ONE,
    "learning_rate": Range.ABOVE_ZERO,
    "momentum": Range.FRACTION,
    "adaptivity": Range.ABOVE_ZERO,
    "public_batch": Range.AT_LEAST_ONE,
    "warm_start_epochs": Range.AT_LEAST_ZERO,
    "warm_start_rate": Range.ABOVE_ZERO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralExperiment(BaseOptions):
    """Everything that decides a centralised run; what it promises is inherited.

    Attributes:
        task: Makes the task from this experiment.
        statistics: Moments and preconditioner of one's own, for guide "public-own".
        backends: Centralised training runs in one process.
        batch_size: Expected examples a step; every example is drawn by a coin of its own.
        epochs: Passes over the training set, in expectation; sets `steps`.
        steps: Steps; None takes them from `epochs`.
        micro_batch: Examples whose mean is bounded as one, in expectation. Above 1 the
            sensitivity is twice the clip norm and the noise follows it.
        optimizer: Of the released mean gradient.
        learning_rate: α.
        momentum: Of the momentum optimisers, and β₁ of Adam.
        adaptivity: Added to √v by adam, rmsprop and adagrad.
        schedule: Of the learning rate: "constant", "step" (a tenth at half and at three
            quarters), "cyclic" (one triangle) or "inverse-root" (α/√t).
        guide: What public data or past releases add.
        side_information: Which of the task's; for guide "side-information".
        public_batch: Public examples a look; None for all of them.
        refresh: Whether statistics of public data are renewed every "step" (Algorithm 1 of
            AdaDPS) or every "epoch" over all public batches (its authors' code).
        regulariser_inside: A = √(v + ε_s) instead of √v + ε_s.
        warm_start_epochs: Epochs on the public set before, without noise.
        warm_start_rate: Their learning rate.
    """

    task: CentralTaskFactory = field(repr=False)
    statistics: moments.Statistics | None = field(default=None, repr=False)
    backends: tuple[str, ...] = ("serial",)

    batch_size: float = 64.0
    epochs: float | None = None
    steps: int | None = None
    micro_batch: int = 1

    optimizer: Literal["sgd", "momentum", "ema-momentum", "adam", "rmsprop", "adagrad"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    adaptivity: float = 1e-8
    schedule: Literal["constant", "step", "cyclic", "inverse-root"] = "constant"

    guide: Literal[
        "none",
        "side-information",
        "public-rmsprop",
        "public-adam",
        "public-adagrad",
        "public-own",
        "ideal",
        "r-pub",
        "adam-pub",
        "mirror-descent",
        "delayed",
        "past-releases",
    ] = "none"
    side_information: str = "frequency"
    public_batch: int | None = None
    refresh: Literal["step", "epoch"] = "step"
    regulariser_inside: bool = False
    warm_start_epochs: int = 0
    warm_start_rate: float = 0.1

    def __post_init__(self) -> None:
        BaseOptions.__post_init__(self)  # `super()` does not know a class remade with slots
        check_ranges(self, _RANGES)

    def num_steps(self, num_examples: int) -> int:
        """Return how many steps are planned.

        Raises:
            ValueError: If neither steps nor epochs are given, or both.
        """
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"steps {self.steps!r} and epochs {self.epochs!r}: give exactly one of them"
            )
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * num_examples / self.batch_size - 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralComponents:
    """What a centralised experiment is made of once its data are at hand.

    Attributes:
        task: The training set, the model and its measures.
        plan: The promise, of examples, with the mechanism that runs.
        algorithm: What is asked of examples, and what is made of the answers.
        trainer: Sums bounded updates over a batch.
        side_information: What is known besides, and where it came from; None for nothing.
    """

    task: CentralTask
    plan: Plan
    algorithm: FederatedAveraging
    trainer: CentralSum
    side_information: SideInformation | None

    def __post_init__(self) -> None:
        self.plan.check_roster(self.task.roster)


def build_central(
    experiment: CentralExperiment, task: CentralTask | None = None
) -> CentralComponents:
    """Return the components of an experiment.

    Args:
        experiment: Says what is done.
        task: What it is done on; None makes the experiment's own.

    Raises:
        ValueError: If the options do not fit together, or not the task.
    """
    task = _warmed(experiment, experiment.task(experiment) if task is None else task)
    with said_as_options(experiment.field_names() | _FIELD_NAMES):
        return _built(experiment, task)


def _built(experiment: CentralExperiment, task: CentralTask) -> CentralComponents:
    num_steps = experiment.num_steps(task.num_train)
    side = None
    if experiment.guide == "side-information":
        side = task.side_information(experiment.side_information)
    elif experiment.guide == "ideal":
        side = SideInformation(
            multiplier={}, source="private", description="clean gradients of private examples"
        )
    groups = None
    if experiment.micro_batch > 1:
        groups = max(1, round(experiment.batch_size / experiment.micro_batch))
    made = CentralComponents(
        task=task,
        plan=_plan(experiment, task, num_steps),
        algorithm=FederatedAveraging(
            optimizer=_optimizer(experiment, num_steps),
            aggregate=make_aggregate(experiment),
            preconditioner=_preconditioner(experiment, task, side, num_steps),
        ),
        trainer=CentralSum(gradients=task.train, num_examples=task.num_train, num_groups=groups),
        side_information=side,
    )
    return refined(experiment, made)


def _warmed(experiment: CentralExperiment, task: CentralTask) -> CentralTask:
    """Return the task with params that were trained on its public examples first."""
    if experiment.warm_start_epochs == 0:
        return task
    public = task.public_examples()

    def init(key: Key) -> Params:
        return warm_start(
            public,
            task.num_public,
            task.init_params(key),
            key.fold("warm start"),
            epochs=experiment.warm_start_epochs,
            learning_rate=experiment.warm_start_rate,
        )

    return replace(task, init=init)


def _plan(experiment: CentralExperiment, task: CentralTask, num_steps: int) -> Plan:
    ideal = experiment.guide == "ideal"
    if ideal and experiment.noise != "none" and experiment.noise_multiplier is None:
        raise ValueError("guide 'ideal' has no ε to calibrate to; give noise-multiplier")
    plan = make_plan(
        replace(experiment, target_epsilon=None) if ideal else experiment,
        sampler=sampler_of(experiment.sampling, task.num_train, experiment.batch_size),
        bound=plain_bound(experiment),
        micro_batch=experiment.micro_batch,
        num_rounds=num_steps,
        roster_sha256=task.roster_sha256,
        unit="example",
    )
    if not ideal:
        return plan
    # It sees clean gradients: nothing is promised, whatever noise is added.
    mechanism = plan.live_mechanism
    unprotected = Unprotected(stddev=mechanism.stddev)
    return replace(plan, mechanism=replace(mechanism, privatizer=unprotected))


def _optimizer(experiment: CentralExperiment, num_steps: int) -> Transform:
    rate, beta = experiment.learning_rate, experiment.momentum
    match experiment.optimizer:
        case "sgd":
            optimizer = optimizers.sgd(rate)
        case "momentum":
            optimizer = optimizers.momentum(rate, beta, ema=False)
        case "ema-momentum":
            optimizer = optimizers.momentum(rate, beta, ema=True)
        case "adam":
            optimizer = optimizers.adam(rate, experiment.adaptivity, beta1=beta)
        case "rmsprop":
            optimizer = optimizers.rmsprop(rate, experiment.adaptivity)
        case "adagrad":
            optimizer = optimizers.adagrad(rate, experiment.adaptivity)
    match experiment.schedule:
        case "constant":
            return optimizer
        case "step":
            factor = optimizers.stepwise(num_steps)
        case "cyclic":
            factor = optimizers.cyclic(num_steps)
        case "inverse-root":
            factor = optimizers.inverse_root()
    return chain(optimizer, optimizers.scheduled(factor))


def _statistics(experiment: CentralExperiment) -> moments.Statistics:
    kinds = {"regulariser": experiment.regulariser, "inside": experiment.regulariser_inside}
    match experiment.guide:
        case "public-own":
            if experiment.statistics is None:
                raise ValueError("guide 'public-own' needs statistics=Statistics(...)")
            return experiment.statistics
        case "public-adam":
            return moments.adam(experiment.decay, experiment.decay, **kinds)
        case "public-adagrad":
            return moments.adagrad(**kinds)
        case _:
            return moments.rmsprop(experiment.decay, **kinds)


def _preconditioner(
    experiment: CentralExperiment, task: CentralTask, side: SideInformation | None, num_steps: int
) -> Preconditioner:
    match experiment.guide:
        case "none":
            return NoPreconditioner()
        case "side-information":
            assert side is not None
            return Fixed(multiplier=side.multiplier)
        case "delayed" | "past-releases":
            return release_preconditioner(experiment, experiment.guide)
        case "ideal":
            batch = min(task.num_train, math.ceil(experiment.batch_size))
            return PublicMoments(
                gradient=public_gradient(task.train, task.num_train, batch),
                statistics=_statistics(experiment),
            )
    public = task.public_examples()
    gradient = public_gradient(public, task.num_public, experiment.public_batch)
    if experiment.guide == "mirror-descent":
        return MirrorDescent(gradient=gradient, num_rounds=num_steps)
    refresh, batches = 1, 1
    if experiment.refresh == "epoch":
        refresh = max(1, round(task.num_train / experiment.batch_size))
        size = experiment.public_batch or task.num_public
        batches = max(1, task.num_public // size)
    return PublicMoments(
        gradient=gradient,
        statistics=_statistics(experiment),
        refresh_every=refresh,
        batches=batches,
        divide="step" if experiment.guide in ("r-pub", "adam-pub") else "before",
    )
