"""DP-AGD: gradient descent that decides how much privacy each step is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedpriv.experiments.composing.options import option
from fedpriv.experiments.parts.methods.own import OwnMethod
from fedpriv.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class AgdOfExamples:
    """Gradient descent over all examples, with a private line search and a budget that adapts."""

    target_epsilon: float | None = option(
        None, "ε of the whole run, whatever is spent of it.", Range.ABOVE_ZERO
    )
    conversion: Literal["tight", "plain"] = option(
        "tight", "Of ε to ρ: over all Rényi orders, or Bun and Steinke's, as the paper has it."
    )
    prices: Literal["split", "paper"] = option(
        "split", "Of an iteration: by iterations and gradient-share, or the paper's by iterations."
    )
    iterations: int = option(
        30, "Iterations without a rejection that the budget is split by; 60 in the paper.",
        Range.AT_LEAST_ONE,
    )  # fmt: skip
    gradient_share: float = option(
        0.5, "Prices split: what of an iteration's price the gradient has.", Range.BETWEEN
    )
    gradient_clip: float = option(3.0, "C_grad, the longest gradient.", Range.ABOVE_ZERO)
    loss_cap: float = option(3.0, "C_obj, the largest loss.", Range.ABOVE_ZERO)
    growth: float = option(
        0.1, "γ, by which a gradient's price grows with a rejection.", Range.ABOVE_ZERO
    )
    estimates: Literal["average", "discard"] = option(
        "average", "Of a rejected gradient: averaged with the next one, or discarded."
    )
    selection: Literal["permute-and-flip", "exponential"] = option(
        "exponential", "How a step size is chosen."
    )
    largest_step: float = option(2.0, "α_max at the beginning.", Range.ABOVE_ZERO)
    num_steps: int = option(20, "Step sizes besides zero, at most 64.", Range.AT_LEAST_ONE)
    adapt_every: int = option(
        10, "Accepted steps between adaptations of α_max; 0 never.", Range.AT_LEAST_ZERO
    )
    regulariser: float = option(0.0, "λ of λ/2 ‖w‖², public.", Range.AT_LEAST_ZERO)

    def own(self, promise: Any, parts: Any) -> OwnMethod | None:
        """Return the method."""
        return _Descent(options=self, promise=promise, of=_Examples())


@dataclass(frozen=True, slots=True, kw_only=True)
class AgdOfUsers(AgdOfExamples):
    """Gradient descent over all users' mean losses, with a private line search."""

    max_examples_per_user: int = option(256, "Cap of a user's work.", Range.AT_LEAST_ONE)

    def own(self, promise: Any, parts: Any) -> OwnMethod | None:
        """Return the method."""
        return _Descent(options=self, promise=promise, of=_Users(most=self.max_examples_per_user))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Descent:
    """An `OwnMethod`."""

    options: AgdOfExamples
    promise: Any
    of: _Examples | _Users

    def plan(self, task: Any) -> Any:
        """Return a filter of the ρ that the target amounts to."""
        from fedpriv.privacy.adaptive_plan import AdaptivePlan

        number = len(task.roster)
        return AdaptivePlan(
            num_users=number,
            rho=self._rho(number),
            relation=self._relation(),
            delta=self._delta(number),
            roster_sha256=task.roster_sha256,
            **self.of.of_plan(),
        )

    def algorithm(self, task: Any) -> Any:
        """Return the descent."""
        from fedpriv.training.dp_agd import AdaptiveDescent, Prices, StepSizes

        chosen, number = self.options, len(task.roster)
        if chosen.prices == "paper":
            assert chosen.target_epsilon is not None
            prices = Prices.of_paper(
                epsilon=chosen.target_epsilon,
                delta=self._delta(number),
                splits=chosen.iterations,
            )
        else:
            prices = Prices.split(
                rho=self._rho(number),
                iterations=chosen.iterations,
                gradient_share=chosen.gradient_share,
            )
        sizes = StepSizes(
            first=chosen.largest_step,
            num_positive=_few(chosen.num_steps),
            every=chosen.adapt_every,
        )
        return AdaptiveDescent(
            num_users=number,
            gradient=self.of.gradient_bound(task, chosen.gradient_clip),
            losses=self.of.loss_bound(chosen.loss_cap, sizes.number),
            prices=prices,
            growth=chosen.growth,
            estimates=chosen.estimates,
            form=chosen.selection,
            step_sizes=sizes,
            regulariser=chosen.regulariser,
            relation=self._relation(),
        )

    def works(self, task: Any, device: str = "cpu") -> Any:
        """Return the gradients' work and the losses'."""
        from fedpriv.training.dp_agd import LOSSES
        from fedpriv.training.work import TRAIN

        number = _few(self.options.num_steps) + 1
        return {
            TRAIN: self.of.gradients(task, device),
            LOSSES: self.of.losses(task, number),
        }

    def _delta(self, number: int) -> float:
        from fedpriv.privacy.epsilon import default_delta

        return default_delta(number) if self.promise.delta is None else self.promise.delta

    def _relation(self) -> Any:
        from fedpriv.privacy.event import Relation

        return Relation.of(self.promise.relation)

    def _rho(self, number: int) -> float:
        from fedpriv.privacy.zcdp import rho_bs16, rho_of_epsilon

        target = self.options.target_epsilon
        if target is None:
            raise ValueError("method 'agd' needs target-epsilon: the ε that its filter keeps")
        convert = rho_of_epsilon if self.options.conversion == "tight" else rho_bs16
        return convert(target, self._delta(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Examples:
    """Over the examples of one training set."""

    def of_plan(self) -> dict[str, Any]:
        return {"unit": "example"}

    def gradient_bound(self, task: Any, clip_norm: float) -> Any:
        from fedpriv.mechanisms import Clip, RoundedSum
        from fedpriv.training.per_example.example_sum import SumsApart

        bound = Clip(l2_clip_norm=clip_norm)
        if not isinstance(task.train, SumsApart):
            return bound
        return RoundedSum(bound=bound, float_error=task.train.float_error())

    def loss_bound(self, cap: float, number: int) -> Any:
        from fedpriv.mechanisms.bounds import CappedTogether

        return CappedTogether(cap=cap, num_coordinates=number)

    def gradients(self, task: Any, device: str) -> Any:
        from fedpriv.training.per_example.example_sum import CentralSum

        return CentralSum(gradients=task.train, num_examples=task.num_train)

    def losses(self, task: Any, number: int) -> Any:
        from fedpriv.training.dp_agd import CentralLosses, ChecksLosses, ExampleLosses

        if not isinstance(task.train, ExampleLosses):
            raise ValueError(
                f"method 'agd' evaluates losses along a line, which {type(task.train).__name__} "
                "does not; give it losses_along, or use method 'averaging'"
            )
        if isinstance(task.train, ChecksLosses):
            task.train.check_losses()
        return CentralLosses(losses=task.train, number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Users:
    """Over users' mean losses."""

    most: int

    def of_plan(self) -> dict[str, Any]:
        return {"max_examples_per_user": self.most}

    def gradient_bound(self, task: Any, clip_norm: float) -> Any:
        from fedpriv.mechanisms import Clip, Rounded

        return Rounded(bound=Clip(l2_clip_norm=clip_norm))

    def loss_bound(self, cap: float, number: int) -> Any:
        from fedpriv.mechanisms import Capped

        return Capped(cap=cap, num_coordinates=number)

    def gradients(self, task: Any, device: str) -> Any:
        from fedpriv.training.local.trainer import Schedule

        schedule = Schedule(learning_rate=1.0, batch_size=self.most, max_examples=self.most)
        if device == "cpu":
            return task.trainer(schedule, {})
        return task.trainer(schedule, {}, device=device)

    def losses(self, task: Any, number: int) -> Any:
        from fedpriv.training.dp_agd import KnowsLossesAlong, losses_work

        if not isinstance(task, KnowsLossesAlong):
            raise ValueError(
                f"method 'agd' evaluates users' losses along a line, which {type(task).__name__} "
                "does not; give it losses_along, or use method 'averaging'"
            )
        return losses_work(task, self.most, number)


def _few(number: int) -> int:
    if number > 64:
        raise ValueError(f"num-steps {number} is above 64: each one is a pass over all data")
    return number
