"""What experiments of either unit are made into: components, and the promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.experiments.experiment import Experiment
from fedpriv.experiments.parts.methods.own import OwnMethod
from fedpriv.experiments.parts.separated import limit_of
from fedpriv.experiments.parts.start import PublicOnly, Start
from fedpriv.experiments.settings import Settings
from fedpriv.mechanisms import Bound, SideInformation
from fedpriv.privacy.event import Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import AnyPlan, Plan
from fedpriv.privacy.sampling import Sampler
from fedpriv.privacy.trials import Trials
from fedpriv.rng import Key
from fedpriv.training.algorithm import Algorithm
from fedpriv.training.evaluate import check_measurable
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
        plan = experiment.part("noise").calibrated(plan)
    return replace(made, plan=plan)


def own_method(experiment: Experiment) -> OwnMethod | None:
    """Return the experiment's method with its options; None for averaging, which is of parts."""
    promise = experiment.part("plan")
    return experiment.part("method").own(promise, experiment.part)


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
        start=experiment.part("start").make,
    )


def make_plan(
    experiment: Experiment,
    *,
    sampler: Sampler,
    bound: Bound,
    num_rounds: int,
    micro_batch: int = 1,
    promises: bool = True,
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
        **rest: Every other field of a plan but the mechanism, the rounds, the relation and δ.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    noise, rows = experiment.part("noise"), {}
    limit = limit_of(sampler, num_rounds)
    if limit is not None:  # which only noise with a memory asks for
        rows = {"limit": limit, "momentum": _momentum(experiment)}
    mechanism = Mechanism(
        sampler=sampler,
        bound=bound,
        privatizer=noise.privatizer(calibrates=promises, **rows),
        micro_batch=micro_batch,
    )
    plan = Plan(
        mechanism=mechanism,
        num_rounds=num_rounds,
        relation=Relation.of(experiment.relation),
        delta=experiment.delta,
        **rest,
    )
    return noise.calibrated(plan) if promises else plan


def _momentum(experiment: Experiment) -> float:
    """Return β of an optimiser whose steps are along sums of the past, else 0."""
    of_users = experiment.has_part("server-optimizer")
    part = experiment.part("server-optimizer" if of_users else "optimizer")
    return getattr(part, "past_of_sums", 0.0)
