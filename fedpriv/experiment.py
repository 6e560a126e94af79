"""Experiments: one frozen value says everything about a run, and is made into its parts here.

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

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from fedpriv import optimizers
from fedpriv.checkpoints import aggregates
from fedpriv.data.corpus import Corpus
from fedpriv.mechanisms import (
    Bound,
    Clip,
    Normalise,
    Preconditioned,
    Rounded,
    SideInformation,
    Unbounded,
)
from fedpriv.options import Option, as_fields, checked, kebab
from fedpriv.privacy.plan import Plan
from fedpriv.training.local import LocalTrainer, Schedule
from fedpriv.training.round import Round
from fedpriv.training.tasks import TagPrediction, Task
from fedpriv.transform import Transform, identity

TaskFactory = Callable[["Experiment", Corpus | None], Task]


def tag_prediction(experiment: Experiment, corpus: Corpus | None) -> Task:
    """Return the tag-prediction task of a corpus through the experiment's roster."""
    if corpus is None:
        raise ValueError(
            "tag prediction needs a corpus; give --corpus PATH, or see `fedpriv data list`"
        )
    view = corpus.view(roster=experiment.roster, users=experiment.users)
    return TagPrediction(view, inputs=experiment.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything that decides a run.

    Attributes:
        name: What `fedpriv run` calls it.
        description: One line for lists and reports.
        task: Makes the task from this experiment and a corpus.
        carriers: The carriers that it claims to run on.
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
        bound: "clip", "normalise" or "none".
        exact_sum: Round bounded updates to a public grid, so that their sum is exact: the same
            bits for any order, carrier and number of workers. Only with noise, beside which the
            grid is a millionth or less.
        l2_clip_norm: C.
        normalise_regulariser: r of C Δ/(r + ‖Δ‖).
        noise: "gaussian" or "none".
        noise_multiplier: stddev of the noise on the sum over C; None to calibrate.
        target_epsilon: Calibrates the noise, and stops a run before it would be exceeded.
        delta: None for num_users^-1.1.
        relation: "add-remove" or "replace-one".
        sampling: "poisson" or "fixed".
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
        aggregate: "none" or "ema".
        ema_decay: Weight of the past in the EMA of checkpoints.
        seed: Of the simulation.
        eval_every: Rounds between evaluations; the last round is always evaluated.
    """

    name: str
    description: str
    task: TaskFactory = field(default=tag_prediction, repr=False)
    carriers: tuple[str, ...] = ("serial", "threads", "ray", "flower")

    roster: str | None = None
    users: int | None = None
    inputs: Literal["tff", "unit-norm"] = "tff"

    precondition: Literal["none", "local", "update", "both", "scale-then-privatise"] = "none"
    side_information: Literal["rank", "frequency", "tf-idf"] = "rank"
    preconditioner_gain: float = 200.0
    preconditioner_top: int = 100
    preconditioner_power: float = 1.0

    bound: Literal["clip", "normalise", "none"] = "clip"
    exact_sum: bool = True
    l2_clip_norm: float = 1.0
    normalise_regulariser: float = 0.0

    noise: Literal["gaussian", "none"] = "gaussian"
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float | None = None
    relation: Literal["add-remove", "replace-one"] = "add-remove"
    sampling: Literal["poisson", "fixed"] = "poisson"
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

    aggregate: Literal["none", "ema"] = "none"
    ema_decay: float = 0.9

    seed: int = 0
    eval_every: int = 10

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for item in fields(self):
            if item.name not in _FIXED:
                value = checked(item.name, getattr(self, item.name), hints[item.name])
                object.__setattr__(self, item.name, value)
        if self.eval_every < 1:
            raise ValueError(f"eval-every {self.eval_every} must be at least 1")
        if self.noise == "gaussian" and self.bound == "none":
            raise ValueError(
                "noise 'gaussian' without a bound protects nobody; use bound 'clip' or "
                "'normalise', or noise 'none'"
            )

    def options(self) -> dict[str, Option]:
        """Return every option by its kebab-case name."""
        return {
            kebab(item.name): getattr(self, item.name)
            for item in fields(self)
            if item.name not in _FIXED
        }

    def with_options(self, options: Mapping[str, Option]) -> Experiment:
        """Return the experiment with some options changed.

        Raises:
            ValueError: For an unknown option (with the nearest known one) or an unfit value.
        """
        changes = as_fields(options, self.options())
        # A given noise replaces a calibrated one and the other way round.
        if changes.get("target_epsilon") is not None and "noise_multiplier" not in changes:
            changes["noise_multiplier"] = None
        if changes.get("noise_multiplier") is not None and "target_epsilon" not in changes:
            changes["target_epsilon"] = None
        return replace(self, **changes)  # type: ignore[arg-type]


_FIXED = frozenset({"name", "description", "task", "carriers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an experiment is made of once its data are at hand.

    Attributes:
        task: Roster, users, model and measures.
        plan: The promise.
        bound: What is applied to each update; public.
        round: The server's half of a round.
        trainer: What a user does.
        side_information: 1/A and where it came from; None without preconditioning.

    Raises:
        ValueError: If the plan was made for another number of users than the task's roster has:
            cohorts would be drawn with another probability than its ε is of.
    """

    task: Task
    plan: Plan
    bound: Bound
    round: Round
    trainer: LocalTrainer
    side_information: SideInformation | None

    def __post_init__(self) -> None:
        self.plan.check_roster(self.task.roster)


def build(experiment: Experiment, corpus: Corpus | None) -> Parts:
    """Return the parts of an experiment on a corpus.

    Raises:
        ValueError: If its options do not fit together or do not fit the corpus.
    """
    task = experiment.task(experiment, corpus)
    side = make_side_information(experiment, task)
    bound = make_bound(experiment, side)
    plan = make_plan(experiment, task, bound)
    return Parts(
        task=task,
        plan=plan,
        bound=bound,
        round=Round(
            plan=plan,
            optimizer=make_optimizer(experiment),
            aggregate=make_aggregate(experiment),
            inverse=side.inverse()
            if side and experiment.precondition == "scale-then-privatise"
            else None,
        ),
        trainer=make_trainer(experiment, task, side),
        side_information=side,
    )


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


def make_bound(experiment: Experiment, side: SideInformation | None) -> Bound:
    """Return the public bound, preconditioned and rounded where the experiment says so."""
    inner: Bound
    if experiment.bound == "clip":
        inner = Clip(l2_clip_norm=experiment.l2_clip_norm)
    elif experiment.bound == "normalise":
        inner = Normalise(
            l2_clip_norm=experiment.l2_clip_norm, regulariser=experiment.normalise_regulariser
        )
    else:
        inner = Unbounded()
    if side is not None and experiment.precondition in ("update", "both", "scale-then-privatise"):
        inner = Preconditioned(multiplier=side.multiplier, bound=inner)
    # Without noise a bound may be set so high that it never binds, and its grid would be coarse.
    exact = experiment.exact_sum and experiment.noise != "none"
    return Rounded(bound=inner) if exact else inner


def make_plan(experiment: Experiment, task: Task, bound: Bound) -> Plan:
    """Return the promise, with its noise calibrated if the experiment asks for that.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    num_users = len(task.roster)
    private = experiment.noise != "none"
    cohort = experiment.cohort if experiment.cohort is not None else max(1.0, num_users / 20)
    arguments: dict[str, Any] = {
        "num_users": num_users,
        "expected_cohort_size": cohort,
        "num_rounds": experiment.rounds,
        "sampling": experiment.sampling,
        "cohort_cap": experiment.cohort_cap,
        "bound": experiment.bound,
        "l2_bound": None if experiment.bound == "none" else bound.l2_bound,
        "noise": experiment.noise,
        "relation": experiment.relation,
        "delta": experiment.delta,
        "max_examples_per_user": experiment.max_examples_per_user,
        "roster_sha256": task.roster_sha256,
    }
    if not private:
        return Plan(**arguments, noise_multiplier=0.0)
    if experiment.noise_multiplier is None:
        if experiment.target_epsilon is None:
            raise ValueError("give noise-multiplier or target-epsilon, or say noise 'none'")
        return Plan.calibrated(**arguments, target_epsilon=experiment.target_epsilon)
    return Plan(
        **arguments,
        noise_multiplier=experiment.noise_multiplier,
        target_epsilon=experiment.target_epsilon,
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


def make_aggregate(experiment: Experiment) -> Transform:
    """Return the checkpoint aggregate."""
    return aggregates.ema(experiment.ema_decay) if experiment.aggregate == "ema" else identity()
