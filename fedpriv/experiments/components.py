"""What experiments of either unit are made into: components, and the promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.experiments.examples import num_groups, rounded, scheduled, warmed
from fedpriv.experiments.experiment import CentralExperiment, Experiment, FederatedExperiment
from fedpriv.experiments.mechanism import CorrelatedNoise, GaussianNoise, NoNoise, limit_of
from fedpriv.experiments.methods import AgdOfUsers, BoltOnOfUsers, OwnMethod
from fedpriv.experiments.preconditioning import Surroundings
from fedpriv.experiments.settings import Settings
from fedpriv.experiments.start import PublicOnly, Start
from fedpriv.mechanisms import Bound, Rounded, SideInformation
from fedpriv.mechanisms.gaussian import Unprotected
from fedpriv.mechanisms.preconditioners import NoPreconditioner, Preconditioner
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import AnyPlan, Plan, Unit
from fedpriv.privacy.sampling import Sampler
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.tasks.central import CentralTask
from fedpriv.tasks.task import Task
from fedpriv.training.algorithm import Algorithm
from fedpriv.training.evaluate import check_measurable
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.work import Trainers
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What an experiment is made of once its data are at hand.

    Attributes:
        task: Whom or what is learnt from, the model and its measures: a `Task`, or a `CentralTask`
            of examples.
        plan: The promise: fixed, with the mechanism that runs, or adaptive, where each query
            brings its own.
        algorithm: What is asked of users, and what is made of the answers.
        trainer: What a user does, or the sum of bounded updates over a batch of examples.
        side_information: What is known besides and where it came from; None for nothing.
        start: Makes the params before the first round; None takes the task's own.
        experiment: Of which they are made, each option with its value; None where of none.
        settings: What was chosen from the data's size, and why; None where nothing was.

    Raises:
        ValueError: If the plan was made for another number of users than the task's roster has:
            cohorts would be drawn with another probability than its ε is of. If the clip norm
            adapts and noise is correlated over rounds. If outputs are
            to be aggregated, and the task's model answers with no class.
    """

    task: Any
    plan: AnyPlan
    algorithm: Algorithm
    trainer: Trainers
    side_information: SideInformation | None
    start: Callable[[Any, Key, PublicOnly | None], Start] | None = None
    experiment: Experiment | None = None
    settings: Settings | None = None

    def __post_init__(self) -> None:
        self.plan.check_roster(self.task.roster)
        self.algorithm.check_plan(self.plan)
        check_measurable(self.task, self.algorithm)

    def begin(self, key: Key, found: PublicOnly | None = None) -> Start:
        """Return the params before the first round, and where they came from.

        Args:
            key: For what is drawn.
            found: What public examples alone were found to make, where that is known.

        Raises:
            ValueError: If the task cannot give such a start.
        """
        if self.start is None:
            return Start(params=self.task.init_params(key), facts={"kind": "fresh"})
        return self.start(self.task, key, found)

    def init_params(self, key: Key) -> Params:
        """Return the params before the first round, float32."""
        return self.begin(key).params


def refined(experiment: Experiment, made: Components) -> Components:
    """Return components as an experiment refines them.

    Raises:
        ValueError: If the task or its trainer was replaced.
    """
    if experiment.refine is None:
        return made
    own: Any = experiment.refine(made)
    for name in ("task", "trainer"):
        if getattr(own, name, None) is not getattr(made, name):
            raise ValueError(
                f"refine of {experiment.name!r} replaced the {name}, which workers and nodes make "
                "for themselves from the experiment's task; let that task return yours"
            )
    return own


def most_examples_of(experiment: Experiment) -> int:
    """Return how many examples of a user it trains on at most."""
    if isinstance(experiment, FederatedExperiment):
        return experiment.local.max_examples_per_user
    assert isinstance(experiment, (AgdOfUsers, BoltOnOfUsers))
    return experiment.max_examples_per_user


def noise_of(experiment: Experiment) -> GaussianNoise | NoNoise:
    """Return the noise of an experiment that averages."""
    assert isinstance(experiment, (FederatedExperiment, CentralExperiment))
    return experiment.noise


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
    fixed: Any = made.plan
    if fixed.event is None:
        raise ValueError(
            f"{experiment.name} decides on the way what its answers cost, and a study needs trials "
            "of equal cost; give a plan whose charges are all one"
        )
    plan = replace(fixed, trials=trials, target_epsilon=None)
    if plan.is_private:
        plan = noise_of(experiment).calibrated(plan)
    return replace(made, plan=plan)


def own_components(experiment: Experiment, task: Any, own: OwnMethod) -> Components:
    """Return the components of a method that brings its own.

    Raises:
        ValueError: If its options do not fit together, or not the task.
    """
    return Components(
        task=task,
        plan=own.plan(task),
        algorithm=own.algorithm(task),
        trainer=own.works(task),
        side_information=None,
        start=experiment.start.make,
    )


def make_plan(
    experiment: Experiment,
    *,
    sampler: Sampler,
    bound: Bound,
    num_rounds: int,
    micro_batch: int = 1,
    promises: bool = True,
    past_of_sums: float = 0.0,
    **rest: Any,
) -> Plan:
    """Return the promise, with its noise calibrated where the experiment asks for that.

    Args:
        experiment: Says how much noise.
        sampler: Who is drawn.
        bound: What bounds each; the mechanism holds this very object.
        num_rounds: T of the plan.
        micro_batch: As `Mechanism.micro_batch`.
        promises: Whether anything is, and so there is a target ε to mind.
        past_of_sums: β of an optimiser whose steps are along sums of the past, else 0.
        **rest: Every other field of a plan but the mechanism, the rounds, the relation and δ.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    noise, rows = noise_of(experiment), {}
    limit = limit_of(sampler, num_rounds)
    if limit is not None:  # which only noise with a memory asks for
        rows = {"limit": limit, "momentum": past_of_sums}
    mechanism = Mechanism(
        sampler=sampler,
        bound=bound,
        privatizer=noise.privatizer(calibrates=promises, **rows),
        micro_batch=micro_batch,
    )
    plan = Plan(
        mechanism=mechanism,
        num_rounds=num_rounds,
        relation=experiment.neighbours(),
        delta=experiment.delta,
        **rest,
    )
    return noise.calibrated(plan) if promises else plan


#: What a plan and a schedule call the options that set them.
USER_FIELD_NAMES = {
    "num_users": "users",
    "num_rounds": "rounds",
    "expected_cohort_size": "cohort",
    "beta1": "server-momentum",
    "server momentum": "server-momentum",
    "server adaptivity": "server-adaptivity",
}


def make_user_components(experiment: Experiment, task: Task) -> Components:
    """Return the components of an experiment on a task.

    Raises:
        ValueError: If its options do not fit together or do not fit the task.
    """
    own = experiment.own()
    if own is not None:
        return own_components(experiment, task, own)
    assert isinstance(experiment, FederatedExperiment)
    side = make_side_information(experiment, task)
    return Components(
        task=task,
        plan=_user_plan(experiment, task),
        algorithm=_algorithm(experiment, task, side),
        trainer=make_trainer(experiment, task, side),
        side_information=side,
        start=experiment.start.make,
    )


def make_side_information(experiment: Experiment, task: Task) -> SideInformation | None:
    """Return 1/A and where it came from; None where the experiment does not precondition.

    Raises:
        ValueError: If the task does not know what it is to be made of.
    """
    if not isinstance(experiment, FederatedExperiment):
        return None
    kind = getattr(experiment.precondition, "side_information", None)
    return None if kind is None else kind.make(task, experiment.name)


def make_trainer(
    experiment: Experiment, task: Task, side: SideInformation | None, device: str = "cpu"
) -> Trainers:
    """Return what a user does, on a device.

    Raises:
        ValueError: If the task or this machine has no use for the device.
    """
    own = experiment.own()
    if own is not None:
        return own.works(task, device)
    assert isinstance(experiment, FederatedExperiment)
    schedule = experiment.local.schedule()
    multiplier = experiment.precondition.in_steps(side)
    if device == "cpu":  # a task of somebody's own need not know of devices
        trainer = task.trainer(schedule, multiplier)
    else:
        trainer = task.trainer(schedule, multiplier, device=device)
    clips = getattr(experiment.bound, "clip_norm", None)
    return trainer if clips is None else clips.sending(trainer, experiment.bound.make())


def _algorithm(
    experiment: FederatedExperiment, task: Task, side: SideInformation | None
) -> FederatedAveraging:
    """Return what the server does.

    Raises:
        ValueError: If updates would be preconditioned twice, or before a clip norm that adapts.
    """
    preconditioner = _preconditioner(experiment, side)
    optimizer, aggregate = experiment.server.make(), experiment.aggregate.averaging()
    tensors = getattr(task, "round_tensors", None)  # of a `ShiftsOverRounds`
    given = {"optimizer": optimizer, "tensors": tensors, **aggregate}
    clips = getattr(experiment.bound, "clip_norm", None)
    if clips is None:
        return FederatedAveraging(preconditioner=preconditioner, **given)
    return clips.averaging(experiment.bound.make(), preconditioner, **given)


def _preconditioner(
    experiment: FederatedExperiment, side: SideInformation | None
) -> Preconditioner:
    """Return what preconditions updates: what is known beforehand, or learnt from past releases.

    Raises:
        ValueError: If the updates would be preconditioned twice.
    """
    guided = experiment.guide.choose(None).preconditioner
    if guided is not None and isinstance(experiment.noise, CorrelatedNoise):
        raise ValueError(
            f"guide {experiment.guide.kind!r} changes what rounds are preconditioned by, and noise "
            f"{experiment.noise.kind!r} takes back what earlier rounds added; use noise "
            "'gaussian', or precondition by side information, which stays as it is"
        )
    known = experiment.precondition.on_updates(side)
    if guided is not None and known is not None:
        raise ValueError(
            f"guide {experiment.guide.kind!r} preconditions updates, and so does precondition "
            f"{experiment.precondition.kind!r}; choose one, or precondition 'local'"
        )
    return guided or known or NoPreconditioner()


def _user_plan(experiment: FederatedExperiment, task: Task) -> Plan:
    """Return the promise, with its noise calibrated if the experiment asks for that.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    bound = experiment.bound.make()
    clips = getattr(experiment.bound, "clip_norm", None)
    if clips is not None:
        bound = clips.bound(bound)
    # Without noise a bound may be so high that it never binds, and its grid would be coarse.
    if getattr(experiment.noise, "exact_sum", False) is not False:
        bound = Rounded(bound=bound)
    return make_plan(
        experiment,
        sampler=experiment.sampling.sampler(len(task.roster), experiment.rounds),
        bound=bound,
        num_rounds=experiment.rounds,
        max_examples_per_user=experiment.local.max_examples_per_user,
        past_of_sums=experiment.server.past_of_sums,
        roster_sha256=task.roster_sha256,
    )


#: What a plan and an optimiser call the options that set them; a plan speaks of users.
EXAMPLE_FIELD_NAMES = {
    "num_rounds": "steps",
    "expected_cohort_size": "batch-size",
    "cohort": "batch",
    "users": "examples",
    "beta1": "momentum",
    "server momentum": "momentum",
    "server learning rate": "learning-rate",
    "server adaptivity": "adaptivity",
}


def make_example_components(experiment: Experiment, task: CentralTask) -> Components:
    """Return the components of an experiment on a task.

    Raises:
        ValueError: If the options do not fit together, or not the task.
    """
    own = experiment.own()
    if own is not None:
        if task.owned is not None:
            raise ValueError(
                f"method {experiment.method!r} bounds single examples, and of {task.name} an owner "
                f"has up to {task.owned.most}: its ε would be of one of them alone; use method "
                "'averaging', whose ε is of an owner, or a training set of one example an owner"
            )
        return own_components(experiment, task, own)
    assert isinstance(experiment, CentralExperiment)
    task = warmed(task, experiment.start, experiment.warm_start_epochs, experiment.warm_start_rate)
    planned = experiment.num_steps(task.num_train)
    chosen = experiment.guide.choose(
        Surroundings(
            task=task,
            batch_size=experiment.batch_size,
            num_steps=planned,
            statistics=experiment.statistics,
        )
    )
    optimizer = experiment.optimizer.make()
    return Components(
        task=task,
        plan=_example_plan(experiment, task, planned, promises=chosen.promises),
        algorithm=FederatedAveraging(
            optimizer=scheduled(optimizer, experiment.schedule, planned),
            preconditioner=chosen.preconditioner or NoPreconditioner(),
            **experiment.aggregate.averaging(),
        ),
        trainer=CentralSum(
            gradients=task.train,
            num_examples=task.num_train,
            blank=None if task.owned is None else task.owned.blank,
            num_groups=num_groups(experiment.batch_size, experiment.micro_batch),
        ),
        side_information=chosen.side_information,
        start=experiment.start.make,
    )


def _example_plan(
    experiment: CentralExperiment, task: CentralTask, planned: int, *, promises: bool
) -> Plan:
    unit: Unit = "example"
    sampler = experiment.sampling.sampler(task.num_train, experiment.batch_size, planned)
    if task.owned is not None:
        unit, sampler = "owner", task.owned.sampler(sampler)
    bound = experiment.bound.make()
    if getattr(experiment.noise, "exact_sum", None):
        bound = rounded(bound, task)
    plan = make_plan(
        experiment,
        promises=promises,
        sampler=sampler,
        bound=bound,
        micro_batch=experiment.micro_batch,
        past_of_sums=experiment.optimizer.past_of_sums,
        num_rounds=planned,
        roster_sha256=task.roster_sha256,
        unit=unit,
    )
    if promises:
        return plan
    # The preconditioner sees clean gradients: there is no guarantee, whatever noise is added.
    mechanism = plan.live_mechanism
    unprotected = Unprotected(stddev=mechanism.stddev)
    return replace(plan, mechanism=replace(mechanism, privatizer=unprotected))
