"""What experiments of either unit are made into: components, the promise, bounds and aggregates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedpriv.checkpoints import aggregates
from fedpriv.experiments.parts import shared
from fedpriv.mechanisms import Bound, Clip, Normalise, SideInformation, Unbounded
from fedpriv.mechanisms.preconditioner import Preconditioner
from fedpriv.mechanisms.preconditioners import Delayed, PastReleases
from fedpriv.noise.gaussian import Unprotected
from fedpriv.noise.privatizer import Privatizer
from fedpriv.privacy.event import Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AnyPlan
from fedpriv.privacy.plans.named import privatizer_of
from fedpriv.privacy.plans.plan import Plan
from fedpriv.privacy.sampling import Sampler
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.transform import Transform, identity

if TYPE_CHECKING:
    from fedpriv.experiments.experiment import Experiment


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

    Raises:
        ValueError: If the plan was made for another number of users than the task's roster has:
            cohorts would be drawn with another probability than its ε is of.
    """

    task: Any
    plan: AnyPlan
    algorithm: FederatedAveraging
    trainer: Any
    side_information: SideInformation | None

    def __post_init__(self) -> None:
        self.plan.check_roster(self.task.roster)


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


def plain_bound(experiment: Experiment) -> Bound:
    """Return the public bound, before anything is preconditioned or rounded."""
    match experiment.part("bound"):
        case shared.Clipped(l2_clip_norm=norm):
            return Clip(l2_clip_norm=norm)
        case shared.Normalised(l2_clip_norm=norm, normalise_regulariser=regulariser):
            return Normalise(l2_clip_norm=norm, regulariser=regulariser)
        case shared.Nothing():
            return Unbounded()
        case other:
            raise TypeError(f"{other!r} is not a bound of any kind")


def make_plan(
    experiment: Experiment,
    *,
    sampler: Sampler,
    bound: Bound,
    micro_batch: int = 1,
    calibrate: bool = True,
    **rest: Any,
) -> Plan:
    """Return the promise, with its noise calibrated where the experiment asks for that.

    Args:
        experiment: Says how much noise.
        sampler: Who is drawn.
        bound: What bounds each; the mechanism holds this very object.
        micro_batch: As `Mechanism.micro_batch`.
        calibrate: Whether to mind a target ε.
        **rest: Every other field of a plan but the mechanism, the relation and δ.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    sigma = target = None
    match experiment.part("noise"):
        case shared.Nothing():
            privatizer: Privatizer = Unprotected()
        case noise:
            sigma, target = noise.noise_multiplier, noise.target_epsilon
            if sigma is None and target is None:
                raise ValueError("give noise-multiplier or target-epsilon, or say noise 'none'")
            target = target if calibrate else None
            privatizer = privatizer_of("gaussian", 1.0 if sigma is None else sigma)
    mechanism = Mechanism(
        sampler=sampler, bound=bound, privatizer=privatizer, micro_batch=micro_batch
    )
    plan = Plan(
        mechanism=mechanism,
        relation=Relation.of(experiment.relation),
        delta=experiment.delta,
        **rest,
    )
    if target is None:
        return plan
    return plan.calibrated(target) if sigma is None else replace(plan, target_epsilon=target)


def release_preconditioner(guide: Any) -> Preconditioner | None:
    """Return the preconditioner of a guide that learns from past releases, None for others."""
    match guide:
        case shared.DelayedGuide():
            return Delayed(
                plain=guide.delay_plain,
                preconditioned=guide.delay_preconditioned,
                decay=guide.decay,
                regulariser=guide.regulariser,
                clip_ratio=guide.clip_ratio,
                rate_ratio=guide.rate_ratio,
            )
        case shared.PastReleasesGuide(decay=decay, regulariser=regulariser):
            return PastReleases(decay=decay, regulariser=regulariser)
        case _:
            return None


def make_aggregate(experiment: Experiment) -> Transform:
    """Return the checkpoint aggregate."""
    match experiment.part("aggregate"):
        case shared.Average(ema_decay=decay):
            return aggregates.ema(decay)
        case shared.Nothing():
            return identity()
        case other:
            raise TypeError(f"{other!r} is not an aggregate of any kind")
