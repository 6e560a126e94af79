"""Experiments whose unit is an example, centralised: DP-SGD, AdaDPS, DP-NSGD, baselines.

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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedpriv import optimizers
from fedpriv.experiments.components import (
    Components,
    make_aggregate,
    make_plan,
    plain_bound,
    release_preconditioner,
)
from fedpriv.experiments.parts import shared
from fedpriv.experiments.parts.examples import (
    CleanStatistics,
    KnownBeforehand,
    OwnStatistics,
    PublicBatches,
    SumOfSquares,
)
from fedpriv.mechanisms import SideInformation, moments
from fedpriv.mechanisms.preconditioner import NoPreconditioner, Preconditioner
from fedpriv.mechanisms.preconditioners import Fixed, MirrorDescent, PublicMoments
from fedpriv.noise.gaussian import Unprotected
from fedpriv.privacy.plans.named import sampler_of
from fedpriv.privacy.plans.plan import Plan
from fedpriv.rng import Key
from fedpriv.tasks.example_task import CentralTask
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.per_example.example_sum import CentralSum, public_gradient, warm_start
from fedpriv.transform import Transform, chain
from fedpriv.tree import Params

if TYPE_CHECKING:
    from fedpriv.experiments.experiment import Experiment


#: What a plan and an optimiser call the options that set them; a plan speaks of users.
FIELD_NAMES = {
    "num_rounds": "steps",
    "expected_cohort_size": "batch-size",
    "cohort": "batch",
    "users": "examples",
    "beta1": "momentum",
    "server momentum": "momentum",
    "server learning rate": "learning-rate",
    "server adaptivity": "adaptivity",
}


def num_steps(experiment: Experiment, num_examples: int) -> int:
    """Return how many steps are planned.

    Raises:
        ValueError: If neither steps nor epochs are given, or both.
    """
    steps, epochs = experiment.steps, experiment.epochs
    if (steps is None) == (epochs is None):
        raise ValueError(f"steps {steps!r} and epochs {epochs!r}: give exactly one of them")
    if steps is not None:
        return steps
    return max(1, math.ceil(epochs * num_examples / experiment.batch_size - 1e-9))


def make_components(experiment: Experiment, task: CentralTask) -> Components:
    """Return the components of an experiment on a task that is `warmed`.

    Raises:
        ValueError: If the options do not fit together, or not the task.
    """
    planned = num_steps(experiment, task.num_train)
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
    return Components(
        task=task,
        plan=_plan(experiment, task, planned),
        algorithm=FederatedAveraging(
            optimizer=_optimizer(experiment, planned),
            aggregate=make_aggregate(experiment),
            preconditioner=_preconditioner(experiment, task, side, planned),
        ),
        trainer=CentralSum(gradients=task.train, num_examples=task.num_train, num_groups=groups),
        side_information=side,
    )


def warmed(experiment: Experiment, task: CentralTask) -> CentralTask:
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


def _plan(experiment: Experiment, task: CentralTask, planned: int) -> Plan:
    ideal = experiment.guide == "ideal"
    if ideal and experiment.noise != "none" and experiment.noise_multiplier is None:
        raise ValueError("guide 'ideal' has no ε to calibrate to; give noise-multiplier")
    plan = make_plan(
        experiment,
        calibrate=not ideal,
        sampler=sampler_of(experiment.sampling, task.num_train, experiment.batch_size),
        bound=plain_bound(experiment),
        micro_batch=experiment.micro_batch,
        num_rounds=planned,
        roster_sha256=task.roster_sha256,
        unit="example",
    )
    if not ideal:
        return plan
    # It sees clean gradients: nothing is promised, whatever noise is added.
    mechanism = plan.live_mechanism
    unprotected = Unprotected(stddev=mechanism.stddev)
    return replace(plan, mechanism=replace(mechanism, privatizer=unprotected))


def _optimizer(experiment: Experiment, planned: int) -> Transform:
    made = experiment.part("optimizer")
    rate = made.learning_rate
    match experiment.optimizer:
        case "momentum":
            optimizer = optimizers.momentum(rate, made.momentum, ema=False)
        case "ema-momentum":
            optimizer = optimizers.momentum(rate, made.momentum, ema=True)
        case "adam":
            optimizer = optimizers.adam(rate, made.adaptivity, beta1=made.momentum)
        case "rmsprop":
            optimizer = optimizers.rmsprop(rate, made.adaptivity)
        case "adagrad":
            optimizer = optimizers.adagrad(rate, made.adaptivity)
        case _:
            optimizer = optimizers.sgd(rate)
    match experiment.schedule:
        case "step":
            factor = optimizers.stepwise(planned)
        case "cyclic":
            factor = optimizers.cyclic(planned)
        case "inverse-root":
            factor = optimizers.inverse_root()
        case _:
            return optimizer
    return chain(optimizer, optimizers.scheduled(factor))


def _statistics(experiment: Experiment) -> moments.Statistics:
    match experiment.part("guide"):
        case SumOfSquares(regulariser=regulariser, regulariser_inside=inside):
            return moments.adagrad(regulariser=regulariser, inside=inside)
        case OwnStatistics():
            if experiment.statistics is None:
                raise ValueError("guide 'public-own' needs statistics=Statistics(...)")
            return experiment.statistics
        case guide:
            kinds = {"regulariser": guide.regulariser, "inside": guide.regulariser_inside}
            if experiment.guide == "public-adam":
                return moments.adam(guide.decay, guide.decay, **kinds)
            return moments.rmsprop(guide.decay, **kinds)


def _preconditioner(
    experiment: Experiment, task: CentralTask, side: SideInformation | None, planned: int
) -> Preconditioner:
    guide: Any = experiment.part("guide")
    made = release_preconditioner(guide)
    if made is not None:
        return made
    match guide:
        case shared.Nothing():
            return NoPreconditioner()
        case KnownBeforehand():
            assert side is not None
            return Fixed(multiplier=side.multiplier)
        case CleanStatistics():
            batch = min(task.num_train, math.ceil(experiment.batch_size))
            return PublicMoments(
                gradient=public_gradient(task.train, task.num_train, batch),
                statistics=_statistics(experiment),
            )
    public = task.public_examples()
    gradient = public_gradient(public, task.num_public, guide.public_batch)
    if isinstance(guide, PublicBatches):
        return MirrorDescent(gradient=gradient, num_rounds=planned)
    refresh, batches = 1, 1
    if guide.refresh == "epoch":
        refresh = max(1, round(task.num_train / experiment.batch_size))
        size = guide.public_batch or task.num_public
        batches = max(1, task.num_public // size)
    return PublicMoments(
        gradient=gradient,
        statistics=_statistics(experiment),
        refresh_every=refresh,
        batches=batches,
        divide="step" if experiment.guide in ("r-pub", "adam-pub") else "before",
    )
