"""What every experiment promises, federated or centralised, and the components made of it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, TypeVar

from fedpriv.checkpoints import aggregates
from fedpriv.experiments.options import Option, as_fields, check_ranges, checked, kebab
from fedpriv.mechanisms import Bound, Clip, Normalise, Unbounded
from fedpriv.mechanisms.preconditioner import Preconditioner
from fedpriv.mechanisms.preconditioners import Delayed, PastReleases
from fedpriv.noise.gaussian import Unprotected
from fedpriv.noise.privatizer import Privatizer
from fedpriv.privacy.event import Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan, privatizer_of
from fedpriv.privacy.sampling import Sampler
from fedpriv.ranges import Range
from fedpriv.transform import Transform, identity

_FIXED = frozenset({"name", "description", "task", "backends", "statistics", "refine"})
_RANGES = {
    "l2_clip_norm": Range.ABOVE_ZERO,
    "normalise_regulariser": Range.AT_LEAST_ZERO,
    "noise_multiplier": Range.AT_LEAST_ZERO,
    "target_epsilon": Range.ABOVE_ZERO,
    "delta": Range.BETWEEN,
    "decay": Range.FRACTION,
    "regulariser": Range.ABOVE_ZERO,
    "delay_plain": Range.AT_LEAST_ONE,
    "delay_preconditioned": Range.AT_LEAST_ONE,
    "clip_ratio": Range.ABOVE_ZERO,
    "rate_ratio": Range.ABOVE_ZERO,
    "ema_decay": Range.FRACTION,
    "eval_every": Range.AT_LEAST_ONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOptions:
    """The options that decide a run's promise, and options as such.

    Attributes:
        name: What `fedpriv run` calls it.
        description: One line for lists and reports.
        refine: Makes the components that run of those that the options describe, for a privatizer,
            sampler, bound or preconditioner of one's own; None leaves them. It cannot replace the
            task and its trainer: workers and nodes make those for themselves.
        bound: "clip", "normalise" or "none".
        l2_clip_norm: C.
        normalise_regulariser: r of C Δ/(r + ‖Δ‖).
        noise: "gaussian" or "none".
        noise_multiplier: stddev of the noise on the sum over its sensitivity, which is C; None
            to calibrate.
        target_epsilon: Calibrates the noise, and stops a run before it would be exceeded.
        delta: None for n^-1.1.
        relation: "add-remove" or "replace-one".
        sampling: "poisson" or "fixed".
        decay: β of every moment a preconditioner keeps.
        regulariser: ε_s of a preconditioner's A = √v + ε_s.
        delay_plain: Plain rounds of guide "delayed" (DP²).
        delay_preconditioned: Its preconditioned rounds.
        clip_ratio: C of its preconditioned rounds over C of the plain ones.
        rate_ratio: Their learning rates' ratio.
        aggregate: "none" or "ema".
        ema_decay: Weight of the past in the EMA of checkpoints.
        seed: Of the simulation.
        eval_every: Rounds between evaluations; the last round is always evaluated.

    Raises:
        ValueError: For a value that is not one of its option's or out of its range, or options
            that do not fit.
    """

    name: str
    description: str
    refine: Callable[[Any], Any] | None = field(default=None, repr=False)

    bound: Literal["clip", "normalise", "none"] = "clip"
    l2_clip_norm: float = 1.0
    normalise_regulariser: float = 0.0

    noise: Literal["gaussian", "none"] = "gaussian"
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float | None = None
    relation: Literal["add-remove", "replace-one"] = "add-remove"
    sampling: Literal["poisson", "fixed"] = "poisson"

    decay: float = 0.9
    regulariser: float = 1e-3
    delay_plain: int = 10
    delay_preconditioned: int = 10
    clip_ratio: float = 1.0
    rate_ratio: float = 1.0

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
        check_ranges(self, _RANGES)
        if self.noise == "gaussian" and self.bound == "none":
            raise ValueError(
                "noise 'gaussian' without a bound protects no one; use bound 'clip' or "
                "'normalise', or noise 'none'"
            )

    def options(self) -> dict[str, Option]:
        """Return every option by its kebab-case name."""
        return {
            kebab(item.name): getattr(self, item.name)
            for item in fields(self)
            if item.name not in _FIXED
        }

    def field_names(self) -> dict[str, str]:
        """Return options by what they are called within: by fields, of this and of a plan.

        A plan's fields that no option sets, and those of a kind that is not in them, are left out.
        """
        own = {item.name: kebab(item.name) for item in fields(self) if item.name not in _FIXED}
        return {name: typed for name, typed in own.items() if name != typed} | {
            "l2_bound": "l2-clip-norm"
        }

    def with_options(self, options: Mapping[str, Option]) -> Self:
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


_Components = TypeVar("_Components")


def refined(experiment: BaseOptions, made: _Components) -> _Components:
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


def plain_bound(experiment: BaseOptions) -> Bound:
    """Return the public bound, before anything is preconditioned or rounded."""
    if experiment.bound == "clip":
        return Clip(l2_clip_norm=experiment.l2_clip_norm)
    if experiment.bound == "normalise":
        return Normalise(
            l2_clip_norm=experiment.l2_clip_norm, regulariser=experiment.normalise_regulariser
        )
    return Unbounded()


def make_plan(
    experiment: BaseOptions, *, sampler: Sampler, bound: Bound, micro_batch: int = 1, **rest: Any
) -> Plan:
    """Return the promise, with its noise calibrated where the experiment asks for that.

    Args:
        experiment: Says how much noise.
        sampler: Who is drawn.
        bound: What bounds each; the mechanism holds this very object.
        micro_batch: As `Mechanism.micro_batch`.
        **rest: Every other field of a plan but the mechanism, the relation and δ.

    Raises:
        ValueError: If neither a noise multiplier nor a target ε is given, or the plan refuses.
    """
    sigma, target = experiment.noise_multiplier, experiment.target_epsilon
    if experiment.noise == "none":
        privatizer: Privatizer = Unprotected()
    elif sigma is None and target is None:
        raise ValueError("give noise-multiplier or target-epsilon, or say noise 'none'")
    else:
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
    if experiment.noise == "none" or target is None:
        return plan
    return plan.calibrated(target) if sigma is None else replace(plan, target_epsilon=target)


def release_preconditioner(experiment: BaseOptions, kind: str) -> Preconditioner:
    """Return a preconditioner that learns from past releases: "delayed" or "past-releases".

    Raises:
        ValueError: If it is another one, or its options are out of range.
    """
    if kind == "delayed":
        return Delayed(
            plain=experiment.delay_plain,
            preconditioned=experiment.delay_preconditioned,
            decay=experiment.decay,
            regulariser=experiment.regulariser,
            clip_ratio=experiment.clip_ratio,
            rate_ratio=experiment.rate_ratio,
        )
    if kind == "past-releases":
        return PastReleases(decay=experiment.decay, regulariser=experiment.regulariser)
    raise ValueError(f"guide {kind!r} does not learn from releases; use delayed or past-releases")


def make_aggregate(experiment: BaseOptions) -> Transform:
    """Return the checkpoint aggregate."""
    return aggregates.ema(experiment.ema_decay) if experiment.aggregate == "ema" else identity()
