"""Methods other than averaging, each with its plan, algorithm and client work: DP-AGD, bolt-on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from fedpriv.experiments.options import Part, option, place
from fedpriv.ranges import Range

if TYPE_CHECKING:
    from fedpriv.training.permutation_sgd import StepSchedule


class OwnMethod(Protocol):
    """A method with an experiment's options."""

    def plan(self, task: Any) -> Any:
        """Return the promise.

        Raises:
            ValueError: If the options do not fit together, or not the task.
        """
        ...

    def algorithm(self, task: Any) -> Any:
        """Return what asks and steps; errors are those of `plan`."""
        ...

    def works(self, task: Any, device: str = "cpu") -> Any:
        """Return what users do, or the sums over examples, by name.

        Raises:
            ValueError: If the task lacks what the method asks of it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
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

    def own(self) -> OwnMethod | None:
        """Return the method."""
        return _Descent(options=self, promise=self, of=_Examples())


@dataclass(frozen=True, kw_only=True)
class AgdOfUsers(AgdOfExamples):
    """Gradient descent over all users' mean losses, with a private line search."""

    max_examples_per_user: int = option(256, "Cap of a user's work.", Range.AT_LEAST_ONE)

    def own(self) -> OwnMethod | None:
        """Return the method."""
        return _Descent(options=self, promise=self, of=_Users(most=self.max_examples_per_user))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Descent:
    """An `OwnMethod`."""

    options: AgdOfExamples
    promise: Any
    of: _Examples | _Users

    def plan(self, task: Any) -> Any:
        """Return a filter of the ρ that the target amounts to."""
        from fedpriv.privacy.plan import AdaptivePlan

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

        return self.promise.neighbours()

    def _rho(self, number: int) -> float:
        from fedpriv.privacy.accounting import rho_bs16, rho_of_epsilon

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Part):
    """η_t = η, at most 2/β; of a strongly convex loss at most 1/β."""

    kind: ClassVar[str] = "constant"

    step_rate: float = option(0.1, "η.", Range.ABOVE_ZERO)

    def make(self) -> StepSchedule:
        """Return the schedule."""
        return _schedule("constant", rate=self.step_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decreasing(Part):
    """η_t = 2 / (β (t + m^c))."""

    kind: ClassVar[str] = "decreasing"

    step_exponent: float = option(0.5, "c, in [0, 1).", Range.FRACTION)

    def make(self) -> StepSchedule:
        """Return the schedule."""
        return _schedule("decreasing", exponent=self.step_exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareRoot(Part):
    """η_t = 2 / (β (√t + m^c))."""

    kind: ClassVar[str] = "square-root"

    step_exponent: float = option(0.5, "c, in [0, 1).", Range.FRACTION)

    def make(self) -> StepSchedule:
        """Return the schedule."""
        return _schedule("square-root", exponent=self.step_exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class StronglyConvex(Part):
    """η_t = min(1/β, 1/γt)."""

    kind: ClassVar[str] = "strongly-convex"

    def make(self) -> StepSchedule:
        """Return the schedule."""
        return _schedule("strongly-convex")


@dataclass(frozen=True, slots=True, kw_only=True)
class SphereNoise(Part):
    """Noise of uniform direction and Gamma length: pure ε, δ = 0."""

    kind: ClassVar[str] = "sphere"

    target_epsilon: float | None = option(None, "ε of the release.", Range.ABOVE_ZERO)

    def mechanism(self, sampler: Any, bound: Any, promise: Any) -> Any:
        """Return the mechanism whose ε under the promise's relation is the target.

        Raises:
            ValueError: If there is no target; or a δ, which is not needed.
        """
        from fedpriv.mechanisms.perturbation import Sphere
        from fedpriv.privacy.epsilon import format_delta
        from fedpriv.privacy.event import Relation
        from fedpriv.privacy.mechanism import Mechanism

        if self.target_epsilon is None:
            raise ValueError("output-noise 'sphere' needs target-epsilon")
        if promise.delta is not None:
            raise ValueError(
                f"delta {format_delta(promise.delta)}: output-noise 'sphere' is of pure ε; leave "
                "delta out, or use output-noise 'gaussian'"
            )
        # A replaced user is two that are there or not.
        each = 1.0 if promise.neighbours() is Relation.ADD_REMOVE else 0.5
        noise = Sphere(epsilon=each * self.target_epsilon)
        return Mechanism(sampler=sampler, bound=bound, privatizer=noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianOutput(Part):
    """Gaussian noise, of the least standard deviation that keeps ε at δ."""

    kind: ClassVar[str] = "gaussian"

    noise_multiplier: float | None = option(
        None, "Stddev over sensitivity; none to calibrate.", Range.ABOVE_ZERO
    )
    target_epsilon: float | None = option(None, "ε of the release.", Range.ABOVE_ZERO)

    def mechanism(self, sampler: Any, bound: Any, promise: Any) -> Any:
        """Return the mechanism.

        Raises:
            ValueError: If neither or both of the options are given.
        """
        from fedpriv.mechanisms.perturbation import OutputGaussian
        from fedpriv.privacy.accounting import calibrate
        from fedpriv.privacy.epsilon import default_delta
        from fedpriv.privacy.event import Event
        from fedpriv.privacy.mechanism import Mechanism

        sigma = self.noise_multiplier
        if (sigma is None) == (self.target_epsilon is None):
            raise ValueError("output-noise 'gaussian' needs target-epsilon or noise-multiplier")
        if sigma is None:
            assert self.target_epsilon is not None
            sigma = calibrate(
                lambda found: Event(kind="gaussian", noise_multiplier=found),
                1,
                target_epsilon=self.target_epsilon,
                delta=default_delta(sampler.num_users) if promise.delta is None else promise.delta,
                relation=promise.neighbours(),
            )
        return Mechanism(
            sampler=sampler, bound=bound, privatizer=OutputGaussian(noise_multiplier=sigma)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOutputNoise(Part):
    """The result as it is: not private."""

    kind: ClassVar[str] = "none"

    def mechanism(self, sampler: Any, bound: Any, promise: Any) -> Any:
        """Return the mechanism."""
        from fedpriv.mechanisms.perturbation import Unperturbed
        from fedpriv.privacy.mechanism import Mechanism

        return Mechanism(sampler=sampler, bound=bound, privatizer=Unperturbed())


@dataclass(frozen=True, kw_only=True)
class BoltOnOfExamples:
    """Permutation SGD on a convex loss without noise; its result is perturbed once."""

    passes: int = option(1, "k, passes over all of them.", Range.AT_LEAST_ONE)
    batch_size: int = option(50, "b; what does not fill a last batch sits out.", Range.AT_LEAST_ONE)
    regulariser: float = option(0.0, "λ of λ/2 ‖w‖².", Range.AT_LEAST_ZERO)
    radius: float | None = option(
        None, "R of the ball that params are projected onto; none for no ball.", Range.ABOVE_ZERO
    )
    average: bool = option(False, "Release the mean of all iterates, and not the last.")
    step_schedule: Constant | Decreasing | SquareRoot | StronglyConvex = place(
        Constant(), "Step sizes of permutation SGD."
    )
    output_noise: SphereNoise | GaussianOutput | NoOutputNoise = place(
        SphereNoise(), "What is added to the result."
    )

    def own(self) -> OwnMethod | None:
        """Return the method."""
        return _Central(
            options=self,
            promise=self,
            schedule=self.step_schedule.make(),
            noise=self.output_noise,
        )


@dataclass(frozen=True, kw_only=True)
class BoltOnOfUsers:
    """Users in random order, a batch at a time, without noise; the result is perturbed once."""

    passes: int = option(1, "k, passes over all users.", Range.AT_LEAST_ONE)
    users_per_update: int = option(
        50, "b; users who do not fill a last update sit out.", Range.AT_LEAST_ONE
    )
    regulariser: float = option(0.0, "λ of λ/2 ‖w‖², the server's.", Range.AT_LEAST_ZERO)
    radius: float | None = option(
        None, "R of the ball that params are projected onto; none for no ball.", Range.ABOVE_ZERO
    )
    local_steps: int = option(
        1, "K full gradient steps of a user; above 1 with a constant rate.", Range.AT_LEAST_ONE
    )
    server_rate: float = option(1.0, "s in (0, 1], of a batch's mean update.", Range.ABOVE_ZERO)
    longest_start: float = option(
        100.0, "The longest start that Δ has room for rounding of, in l2; 0 of one at zero.",
        Range.AT_LEAST_ZERO,
    )  # fmt: skip
    max_examples_per_user: int = option(256, "Cap of a user's work.", Range.AT_LEAST_ONE)
    step_schedule: Constant | Decreasing | SquareRoot | StronglyConvex = place(
        Constant(), "Step sizes of permutation SGD."
    )
    output_noise: SphereNoise | GaussianOutput | NoOutputNoise = place(
        SphereNoise(), "What is added to the result."
    )

    def own(self) -> OwnMethod | None:
        """Return the method."""
        return _Federated(
            options=self,
            promise=self,
            schedule=self.step_schedule.make(),
            noise=self.output_noise,
        )


def _schedule(name: Any, **fields: Any) -> StepSchedule:
    from fedpriv.training.permutation_sgd import StepSchedule

    return StepSchedule(name=name, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promising:
    """What both forms share: one charge for one perturbed result."""

    promise: Any
    schedule: StepSchedule
    noise: Any

    def of_plan(self, task: Any, sensitivity: float, **rest: Any) -> Any:
        from fedpriv.mechanisms.bounds import Displaced
        from fedpriv.privacy.plan import Plan
        from fedpriv.privacy.sampling import Everybody

        everybody = Everybody(num_users=len(task.roster))
        mechanism = self.noise.mechanism(everybody, Displaced(l2_bound=sensitivity), self.promise)
        return Plan(
            mechanism=mechanism,
            num_rounds=1,
            relation=self.promise.neighbours(),
            delta=self.promise.delta,
            roster_sha256=task.roster_sha256,
            **rest,
        )

    def passes(self, options: BoltOnOfExamples | BoltOnOfUsers, **rest: Any) -> Any:
        from fedpriv.training.permutation_sgd import Passes

        return Passes(
            passes=options.passes,
            schedule=self.schedule,
            radius=options.radius,
            **rest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Central(_Promising):
    """An `OwnMethod` over the examples of one training set."""

    options: BoltOnOfExamples

    def plan(self, task: Any) -> Any:
        """Return the promise of one release."""
        from fedpriv.training.permutation_sgd import LONGEST_START

        sgd = self._sgd(task)
        moved = sgd.passes.sensitivity(sgd.constants, task.num_train, start=LONGEST_START)
        return self.of_plan(task, moved, unit="example")

    def algorithm(self, task: Any) -> Any:
        """Return what asks once."""
        from fedpriv.training.bolt_on import BoltOn
        from fedpriv.training.permutation_sgd import LONGEST_START

        return BoltOn(longest_start=LONGEST_START)

    def works(self, task: Any, device: str = "cpu") -> Any:
        """Return the whole training."""
        return self._sgd(task)

    def _sgd(self, task: Any) -> Any:
        make = getattr(task.train, "permutation_sgd", None)
        if make is None:
            raise ValueError(
                "method 'bolt-on' is of convex losses whose constants are known, and those of "
                f"{type(task.train).__name__} are not; use a linear model, or method 'averaging'"
            )
        passes = self.passes(
            self.options, batch_size=self.options.batch_size, average=self.options.average
        )
        return make(passes, regulariser=self.options.regulariser)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Federated(_Promising):
    """An `OwnMethod` over users."""

    options: BoltOnOfUsers

    def plan(self, task: Any) -> Any:
        """Return the promise of one release."""
        moved = self._schedule().sensitivity(self._constants(task), len(task.roster))
        capped = self.options.max_examples_per_user
        return self.of_plan(task, moved, max_examples_per_user=capped)

    def algorithm(self, task: Any) -> Any:
        """Return what trains, and releases once."""
        from fedpriv.training.bolt_on import BoltOnUsers

        return BoltOnUsers(schedule=self._schedule(), constants=self._constants(task))

    def works(self, task: Any, device: str = "cpu") -> Any:
        """Return users' full gradient steps."""
        from fedpriv.training.bolt_on import RATE, RatedTrainer
        from fedpriv.training.local.trainer import Schedule
        from fedpriv.training.work import TRAIN, UserByUser

        self._constants(task)
        most, rate = self.options.max_examples_per_user, self.schedule.rate or 1.0
        steps = self.options.local_steps
        local = Schedule(learning_rate=rate, batch_size=most, epochs=steps, max_examples=most)
        made = (
            task.trainer(local, {}) if device == "cpu" else task.trainer(local, {}, device=device)
        )
        rated = RatedTrainer(trainer=made, rate=rate, local_steps=steps)
        return {TRAIN: UserByUser(trainer=rated, brought=RATE)}

    def _schedule(self) -> Any:
        from fedpriv.training.bolt_on import UserSchedule

        return UserSchedule(
            passes=self.passes(self.options, batch_size=self.options.users_per_update),
            local_steps=self.options.local_steps,
            server_rate=self.options.server_rate,
            longest_start=self.options.longest_start,
        )

    def _constants(self, task: Any) -> Any:
        from fedpriv.training.bolt_on import KnowsConstants

        if not isinstance(task, KnowsConstants):
            raise ValueError(
                "method 'bolt-on' is of convex losses whose constants are known, and those of "
                f"{type(task).__name__} are not: give it constants(regulariser=...), or use method "
                "'averaging' or 'agd'"
            )
        return task.constants(regulariser=self.options.regulariser)
