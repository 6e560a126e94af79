"""DP-AGD: gradient descent with a private line search and a budget that adapts (Lee and Kifer)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fedpriv.experiments.averaging import trainer_on
from fedpriv.experiments.experiment import Components, Experiment, TaskFactory, Unit, register
from fedpriv.experiments.options import check_effect
from fedpriv.experiments.tasks import TagPredictionTask
from fedpriv.mechanisms import Bound, Capped, Clip, Rounded, SideInformation
from fedpriv.mechanisms.bounds import CappedTogether
from fedpriv.parts import Between, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from fedpriv.privacy.accounting import rho_bs16, rho_of_epsilon
from fedpriv.privacy.epsilon import default_delta
from fedpriv.privacy.plan import FilterPlan
from fedpriv.training.algorithm import TRAIN
from fedpriv.training.dp_agd import (
    LOSSES,
    AdaptiveDescent,
    CentralLosses,
    ExampleLosses,
    KnowsLossesAlong,
    LossesAlong,
    Prices,
    StepSizes,
)
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.per_example.example_sum import CentralSum, gradients_on
from fedpriv.training.work import Trainers

_MOST_STEP_SIZES = 64


@dataclass(frozen=True, kw_only=True)
class _Descent(Experiment):
    """Base of descent over users and over examples.

    Attributes:
        conversion: Of ε to ρ: over all Rényi orders, or Bun and Steinke's, as published code.
        prices: Of an iteration: by iterations and gradient-share, or the published code's.
        iterations: Iterations without a rejection that the budget is split by; 60 in published
            code.
        gradient_share: Prices split: what of an iteration's price the gradient has.
        gradient_clip: C_grad, the longest gradient.
        loss_cap: C_obj, the largest loss.
        growth: γ, by which a gradient's price grows with a rejection.
        estimates: Of a rejected gradient: averaged with the next one, or discarded.
        selection: How a step size is chosen.
        largest_step: α_max at the beginning.
        num_steps: Step sizes besides zero, at most 64.
        adapt_every: Accepted steps between adaptations of α_max; 0 never.
        regulariser: λ of λ/2 ‖w‖², public.
    """

    method: ClassVar[str] = "agd"

    conversion: Literal["tight", "plain"] = "tight"
    prices: Literal["split", "paper"] = "split"
    iterations: PositiveInt = 30
    gradient_share: Between = 0.5
    gradient_clip: PositiveFloat = 3.0
    loss_cap: PositiveFloat = 3.0
    growth: PositiveFloat = 0.1
    estimates: Literal["average", "discard"] = "average"
    selection: Literal["permute-and-flip", "exponential"] = "exponential"
    largest_step: PositiveFloat = 2.0
    num_steps: PositiveInt = 20
    adapt_every: NonNegativeInt = 10
    regulariser: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        """Check every option, and that each has an effect."""
        super().__post_init__()
        check_effect(self, "gradient_share", "prices", "split")

    @abstractmethod
    def gradient_bound(self, task: Any) -> Bound:
        """Return the bound of a gradient."""

    @abstractmethod
    def loss_bound(self, number: int) -> Capped:
        """Return the bound of the losses at that number of step sizes."""

    def make_components(self, task: Any) -> Components:
        """Return the components of the descent; see `Experiment.make_components`."""
        if self.num_steps > _MOST_STEP_SIZES:
            raise ValueError(
                f"num-steps {self.num_steps} is above {_MOST_STEP_SIZES}: each one is a pass over "
                "all data"
            )
        if self.target_epsilon is None:
            raise ValueError("method 'agd' needs target-epsilon: the ε that its filter keeps")
        number = len(task.roster)
        delta = default_delta(number) if self.delta is None else self.delta
        convert = rho_of_epsilon if self.conversion == "tight" else rho_bs16
        rho = convert(self.target_epsilon, delta)
        if self.prices == "paper":
            prices = Prices.of_paper(
                epsilon=self.target_epsilon, delta=delta, splits=self.iterations
            )
        else:
            prices = Prices.split(
                rho=rho, iterations=self.iterations, gradient_share=self.gradient_share
            )
        sizes = StepSizes(
            first=self.largest_step, num_positive=self.num_steps, every=self.adapt_every
        )
        return Components(
            task=task,
            plan=FilterPlan(
                num_users=number,
                rho=rho,
                relation=self.neighbours(),
                delta=delta,
                roster_sha256=task.roster_sha256,
                unit=self.unit,
                max_examples_per_user=self.most_examples or None,
            ),
            algorithm=AdaptiveDescent(
                num_users=number,
                gradient=self.gradient_bound(task),
                losses=self.loss_bound(sizes.number),
                prices=prices,
                growth=self.growth,
                estimates=self.estimates,
                form=self.selection,
                step_sizes=sizes,
                regulariser=self.regulariser,
                relation=self.neighbours(),
            ),
            trainer=self.make_trainer(task),
            start=self.start.make,
        )


@register
@dataclass(frozen=True, kw_only=True)
class FederatedDescent(_Descent):
    """DP-AGD over users: noisy gradients whose price adapts, a noisy choice of step size.

    Attributes:
        max_examples_per_user: Cap of a user's work.
    """

    task: TaskFactory = field(default=TagPredictionTask(), repr=False)
    max_examples_per_user: PositiveInt = 256

    @property
    def most_examples(self) -> int:
        """Most examples that a user trains on."""
        return self.max_examples_per_user

    def gradient_bound(self, task: Any) -> Bound:
        """Return the bound of a user's mean gradient, on a grid."""
        return Rounded(bound=Clip(l2_clip_norm=self.gradient_clip))

    def loss_bound(self, number: int) -> Capped:
        """Return the bound of a user's mean losses."""
        return Capped(cap=self.loss_cap, num_coordinates=number)

    def make_trainer(
        self, task: Any, side: SideInformation | None = None, device: str | None = None
    ) -> Trainers:
        """Return users' gradients and losses; see `Experiment.make_trainer`."""
        most = self.max_examples_per_user
        schedule = LocalSgd(learning_rate=1.0, batch_size=most, max_examples_per_user=most)
        gradients: Any = trainer_on(device, task, schedule, {})
        if not isinstance(task, KnowsLossesAlong):
            raise ValueError(_no_losses(task))
        return {
            TRAIN: gradients,
            LOSSES: LossesAlong(task=task, max_examples=most),
        }


@register
@dataclass(frozen=True, kw_only=True)
class CentralDescent(_Descent):
    """DP-AGD over the examples of one training set."""

    unit: ClassVar[Unit] = "example"

    def gradient_bound(self, task: Any) -> Bound:
        """Return the bound of an example's gradient; on a grid where those are exact."""
        bound = Clip(l2_clip_norm=self.gradient_clip)
        return Rounded(bound=bound) if task.train.exact else bound

    def loss_bound(self, number: int) -> Capped:
        """Return the bound of an example's losses."""
        return CappedTogether(cap=self.loss_cap, num_coordinates=number)

    def make_trainer(
        self, task: Any, side: SideInformation | None = None, device: str | None = None
    ) -> Trainers:
        """Return sums of gradients and losses; see `Experiment.make_trainer`."""
        train = gradients_on(device, task.train, rounded=task.train.exact)
        if not isinstance(train, ExampleLosses):
            raise ValueError(_no_losses(train))
        train.check_losses()
        return {
            TRAIN: CentralSum(gradients=train, num_examples=task.num_train),
            LOSSES: CentralLosses(losses=train),
        }


def _no_losses(owner: object) -> str:
    return (
        f"method 'agd' evaluates losses along a line, which {type(owner).__name__} does not; give "
        "it losses_along, or use method 'averaging'"
    )
