"""DP-AGD: private gradient descent with a line search and an adaptive budget per iteration.

An iteration asks for a noisy gradient of everybody, cheaply, and then, among step sizes along it
of which one is zero, for the one with the least objective (`fedpriv.mechanisms.selection`). Where
that is zero the direction is held to be too noisy: the price of a gradient grows by a factor 1 + γ,
the *same* sum is noised once more for the difference alone, the two estimates are averaged, and the
choice is asked again. When what is left of ρ does not pay for the next answer the run ends, and
what was under way is not applied. Charges follow releases; a zCDP filter of a preset total makes
that free (`fedpriv.privacy.plan`).

Averaging estimates of prices ρ₁ and ρ₂ with weights ρ₁ and ρ₂ gives the estimate of price ρ₁ + ρ₂:
Var = C² / 2(ρ₁ + ρ₂). The average is of all estimates of an iteration so far.

Reference: Lee and Kifer, "Concentrated Differentially Private Gradient Descent with Adaptive
per-Iteration Privacy Budget" (2018), of which a summary was read. Where the published code departs
from it (the noise's sign in the choice, an index that is off by one, gradients that are paid
twice), this follows the summary.

`StepSizes` are the candidates of the line search; `LossesAlong` (of users) and `CentralLosses` (of
single examples) compute their private losses; `AdaptiveDescent` is the algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound, Capped
from fedpriv.mechanisms.event import Relation
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.mechanisms.selection import Form, NoisyMin
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import AnyPlan, FilterPlan
from fedpriv.privacy.sampling import Everybody
from fedpriv.ranges import Range, finite_float, positive_float, positive_int, set_checked
from fedpriv.rng import Key
from fedpriv.training.algorithm import Algorithm, ArrayState, Context, Door, Held, Line, SumRequest
from fedpriv.training.bounded_sum import RowStack, Stack
from fedpriv.training.work import Attempt, Examples, Trainer, Users, UserTrainer, as_positions
from fedpriv.tree import Params, Tree

LOSSES = "losses"
"""The name of the work that sums losses, and of the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """Zero and `num_positive` equally spaced step sizes up to a largest one that follows choices.

    Every `every` iterations the largest becomes `growth` times the largest that was chosen in
    them, and at most `first`.

    Attributes:
        first: The largest step size at the beginning, α_max.
        num_positive: How many there are besides zero.
        every: Iterations between adaptations; 0 never adapts.
        growth: Room above the largest that was chosen.

    Source: that there are such sizes, zero among them, is of Lee and Kifer (2018). How many, how
    large and how they adapt is of the published code.
    """

    first: float = 2.0
    num_positive: int = 20
    every: int = 10
    growth: float = 1.1

    def __post_init__(self) -> None:
        set_checked(self, positive_float, "first", "growth")
        set_checked(self, positive_int, "num_positive")

    @property
    def number(self) -> int:
        """|Φ|, zero included."""
        return self.num_positive + 1

    def upto(self, largest: float) -> np.ndarray:
        """Return the candidates, float32, zero first."""
        return np.linspace(0.0, largest, self.number).astype(np.float32)

    def adapted(self, largest: float, top: float) -> float:
        """Return the next largest step size, by the present one and the largest that was chosen.

        After a choice of zero it stays: a largest step of zero would never move again.
        """
        return min(self.growth * top, self.first) if top > 0.0 else largest


def line_of(context: Context) -> Line:
    """Return the line of a round on which losses are evaluated.

    Raises:
        ValueError: If the request brings none.
    """
    if context.line is None:
        raise ValueError(f"work {LOSSES!r} needs a line: a direction and step sizes")
    return context.line


def move_along(params: Params, direction: Params, size: float) -> Params:
    """Return params + size · direction, float32."""
    return {
        name: (array + float(size) * direction[name].astype(np.float64)).astype(np.float32)
        for name, array in params.items()
    }


def _no_losses(request: SumRequest) -> Params:
    """Return a zero for each step size of a request's line."""
    return {LOSSES: np.zeros(len(line_of(request.context).sizes), np.float32)}


@runtime_checkable
class KnowsLossesAlong(Protocol):
    """A task that evaluates a user's examples at several points on a line.

    One of which several threads may ask for different users at once says `thread_safe = True`.
    """

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], examples: Any
    ) -> np.ndarray:
        """Return the mean loss over the examples at params + size · direction, float64 (sizes,).

        Losses are at least 0.

        Args:
            params: float32, not changed.
            direction: float32, of the same names and shapes.
            sizes: Step sizes.
            examples: Of one user, at least one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossesAlong(UserTrainer):
    """Client work: one user's losses at several step sizes, capped afterwards by the bound.

    Attributes:
        task: Knows losses.
        max_examples: A user with more is evaluated on a random subset of so many.
    """

    task: KnowsLossesAlong = field(repr=False)
    max_examples: int

    @property
    def thread_safe(self) -> bool:  # type: ignore[override]
        """Whether its task says so: a module's parameters are written for every step size."""
        return getattr(self.task, "thread_safe", False)

    def template(self, request: SumRequest) -> Params:
        """Return one number for each step size."""
        return _no_losses(request)

    def train(self, params: Params, context: Context, examples: Examples, key: Key) -> Tree:
        """Return the losses under the name of the sums; of a user without examples zeros."""
        line = line_of(context)
        if len(examples) > self.max_examples:
            chosen = key.generator().permutation(len(examples))[: self.max_examples]
            examples = examples.take(chosen)
        if not len(examples):
            return {LOSSES: np.zeros(len(line.sizes), np.float32)}
        sizes = [float(size) for size in line.sizes]
        with np.errstate(over="ignore", invalid="ignore"):  # refused whole by the bound
            found = self.task.losses_along(params, line.direction, sizes, examples)
            return {LOSSES: np.asarray(found, np.float32)}


# Losses of so many examples and step sizes are held at a time.
_CHUNK = 1 << 13


@runtime_checkable
class ExampleLosses(Protocol):
    """A model on a training set that evaluates single examples at several points on a line."""

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], index: np.ndarray
    ) -> np.ndarray:
        """Return each example's loss at params + size · direction, float64 (examples, sizes).

        Losses are at least 0.

        Args:
            params: float32, not changed.
            direction: float32, of the same names and shapes.
            sizes: Step sizes.
            index: Positions in the training set.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralLosses(Trainer):
    """Losses of examples at several step sizes, many examples at a time.

    Attributes:
        losses: The model on the private training set.

    Guarantees:
        * Under `Capped` one example more raises each sum by at most the cap, and lowers none: each
          is capped, and rounded to the grid, alone. An example with a loss that is not finite adds
          nothing.
    """

    losses: ExampleLosses = field(repr=False)

    def template(self, request: SumRequest) -> Params:
        """Return one number for each step size."""
        return _no_losses(request)

    def stacks(self, request: SumRequest, attempt: Attempt, users: Users) -> Iterator[Stack]:
        """Yield examples' losses at the params moved along the line.

        Raises:
            ValueError: If the bound is of vectors as a whole.
        """
        line = line_of(request.context)
        if not isinstance(attempt.bound, Capped):
            raise ValueError(f"{attempt.bound!r} bounds vectors as a whole; losses want Capped")
        index, sizes = as_positions(users.ids), [float(size) for size in line.sizes]
        for start in range(0, len(index), _CHUNK):
            part = index[start : start + _CHUNK]
            with np.errstate(over="ignore", invalid="ignore"):
                found = self.losses.losses_along(request.params, line.direction, sizes, part)
            yield RowStack({LOSSES: found})


GRADIENT = "gradient"

#: What a report shows of every iteration, under these names.
STEP_SIZE, RHO_GRADIENT, REJECTIONS = "step_size", "rho_gradient", "rejections"

# The largest candidate, and the largest that was chosen since that was adapted.
_LARGEST, _TOP = "largest_step", "largest_chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in ρ of the two answers of an iteration.

    Attributes:
        gradient: ρ of the first gradient; it grows, and never shrinks.
        selection: ρ of every choice of a step size.
    """

    gradient: float
    selection: float

    def __post_init__(self) -> None:
        set_checked(self, positive_float, "gradient", "selection")

    @classmethod
    def of_paper(cls, *, epsilon: float, delta: float, splits: float = 60.0) -> Prices:
        """Return the published code's prices: ε/(2 splits) for a choice, the same for a Gaussian.

        The paper's summary states none. The choice is then dearer than the gradient by
        2 ln(1.25/δ), 37 times at δ = 1e-8.
        """
        each = positive_float("epsilon", epsilon) / (2.0 * positive_float("splits", splits))
        return cls(gradient=each**2 / (4.0 * math.log(1.25 / delta)), selection=0.5 * each**2)

    @classmethod
    def split(cls, *, rho: float, iterations: float, gradient_share: float = 0.5) -> Prices:
        """Return prices at which this many iterations without a rejection cost ρ."""
        finite_float("gradient_share", gradient_share, Range.BETWEEN)
        each = positive_float("rho", rho) / positive_float("iterations", iterations)
        return cls(gradient=gradient_share * each, selection=(1.0 - gradient_share) * each)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveDescent(Algorithm):
    """Gradient descent under a ρ filter, with a private line search.

    Attributes:
        num_users: Users on the roster (examples of the training set).
        gradient: Bounds each user's gradient, C_grad.
        losses: Caps each user's losses, C_obj.
        prices: Of the two answers.
        growth: γ, by which the gradient's price grows with a rejection.
        estimates: "average" of all of an iteration, or "discard" all but the last one, which then
            pays for itself in full.
        form: How a step size is chosen.
        step_sizes: Among which.
        regulariser: λ of λ/2 ‖w‖² per user, public: it joins the direction and the objective.
        relation: Of the plan.

    Guarantees:
        * Everything that leaves is a noised gradient, or an index; both are charged, and the
          charges never add up to more than the plan's ρ.
        * The gradient's raw sum is held within one iteration, in memory.
        * With a secure key ε is that of real arithmetic if both sums are of whole numbers
          (`mechanisms`, each `is_exact`). Of users they are: each one's clipped gradient and
          capped losses are rounded to a grid alone, a gradient's noise is rounded exactly, an index
          is drawn of whole numbers and bits. Of examples they are not: who else is in a chunk may
          turn the rounding of a loss (`CappedTogether`), and gradients are on a grid for linear
          models alone.
    """

    num_users: int
    gradient: Bound
    losses: Capped
    prices: Prices
    growth: float = 0.1
    estimates: Literal["average", "discard"] = "average"
    form: Form = "permute-and-flip"
    step_sizes: StepSizes = field(default_factory=StepSizes)
    regulariser: float = 0.0
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        positive_int("num_users", self.num_users)
        positive_float("growth", self.growth)
        finite_float("regulariser", self.regulariser, Range.AT_LEAST_ZERO)
        if self.estimates not in ("average", "discard"):
            raise ValueError(f"estimates {self.estimates!r}: give 'average' or 'discard'")
        if self.losses.num_coordinates != self.step_sizes.number:
            raise ValueError(
                f"losses are capped at {self.losses.num_coordinates} step sizes, and there are "
                f"{self.step_sizes.number}"
            )

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a plan that is not a ρ filter, or has another relation.

        Raises:
            ValueError: If that is so, or it does not pay for one iteration.
        """
        if not isinstance(plan, FilterPlan):
            raise ValueError("adaptive descent decides its prices on the way; give an FilterPlan")
        if plan.relation is not self.relation:
            raise ValueError(
                f"adaptive descent was made for {self.relation.value}, the plan is of "
                f"{plan.relation.value}; give both the same relation"
            )
        least = self.prices.gradient + self.prices.selection
        if least > plan.rho:
            raise ValueError(
                f"one iteration costs ρ = {least:g}, above the {plan.rho:g} of the plan; give more "
                "iterations to split it by, or a higher target"
            )

    def mechanisms(self) -> Sequence[Mechanism]:
        """Return that of a gradient and that of a choice, which are all there are."""
        return (self._noised(self.prices.gradient), self._selection(None))

    def check_start(self, loss: float) -> None:
        """Refuse a cap below the loss at the start: every candidate would then score alike.

        Raises:
            ValueError: If that is so.
        """
        if loss >= self.losses.cap:
            raise ValueError(
                f"loss-cap {self.losses.cap:g} is not above {loss:.3g}, the mean loss of public "
                "examples (without any, of the test set) at the start: most losses would be "
                "capped at every step size, and the choice among them be blind; raise it (ln k is "
                "the loss of k classes at zero)"
            )

    def init(self, params: Params) -> ArrayState:
        """Return the state before the first iteration."""
        return ArrayState(
            params=params,
            numbers={
                RHO_GRADIENT: self.prices.gradient,
                STEP_SIZE: 0.0,
                REJECTIONS: 0.0,
                _LARGEST: self.step_sizes.first,
                _TOP: 0.0,
            },
        )

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after one more accepted step; None where ρ does not pay for it."""
        price, largest = state.numbers[RHO_GRADIENT], state.numbers[_LARGEST]
        if not _pays(door, price + self.prices.selection):
            return None
        sizes = self.step_sizes.upto(largest)
        request = SumRequest(params=state.params, mechanism=self._noised(price), name=GRADIENT)
        with door.hold(request) as held:
            estimate = _double(held.answer)
            rejections = 0
            while True:
                direction = self._direction(state.params, estimate)
                index = door.ask(self._choice(state.params, direction, sizes, rejections))
                if index > 0:
                    break
                rejections += 1
                following = (1.0 + self.growth) * price
                more = following - price if self.estimates == "average" else following
                if not _pays(door, more + self.prices.selection):
                    return None
                estimate = self._another(held, estimate, price, more)
                price = following
        size = float(sizes[index])
        top, every = max(state.numbers[_TOP], size), self.step_sizes.every
        if every > 0 and (state.round_num + 1) % every == 0:
            largest, top = self.step_sizes.adapted(largest, top), 0.0
        return state.after(
            move_along(state.params, direction, size),
            numbers={
                RHO_GRADIENT: price,
                STEP_SIZE: size,
                REJECTIONS: float(rejections),
                _LARGEST: largest,
                _TOP: top,
            },
        )

    def decided(self, numbers: Mapping[str, float]) -> Mapping[str, float]:
        """Return the step size, the gradient's price and how often a direction was rejected."""
        return {name: numbers[name] for name in (STEP_SIZE, RHO_GRADIENT, REJECTIONS)}

    def _noised(self, rho: float) -> Mechanism:
        return self._mechanism(self.gradient, self._gaussian(rho))

    def _mechanism(self, bound: Bound, privatizer: Privatizer) -> Mechanism:
        everybody = Everybody(num_users=self.num_users)
        return Mechanism(sampler=everybody, bound=bound, privatizer=privatizer)

    def _gaussian(self, rho: float) -> Gaussian:
        return Gaussian(noise_multiplier=self.relation.moved / math.sqrt(2.0 * rho))

    def _choice(
        self, params: Params, direction: Params, sizes: np.ndarray, rejections: int
    ) -> SumRequest:
        return SumRequest(
            params=params,
            context=Context(line=Line(direction=direction, sizes=sizes)),
            work=LOSSES,
            mechanism=self._selection(self._offset(params, direction, sizes)),
            name=f"{LOSSES} {rejections + 1}",
        )

    def _selection(self, offset: tuple[float, ...] | None) -> Mechanism:
        factor = 8.0 if self.form == "exponential" else 2.0
        epsilon = math.sqrt(factor * self.prices.selection) / self.relation.moved
        choice = NoisyMin(epsilon=epsilon, form=self.form, offset=offset)
        return self._mechanism(self.losses, choice)

    def _another(self, held: Held, estimate: Params, price: float, more: float) -> Params:
        """Return the estimate after one more answer of the held sum, of a price of its own."""
        again = _double(held.release(self._gaussian(more)))
        if self.estimates == "discard":
            return again
        whole = price + more
        return {n: (price * a + more * again[n]) / whole for n, a in estimate.items()}

    def _direction(self, params: Params, estimate: Params) -> Params:
        """Return the direction of a step, float32; an estimate without a length counts as zero."""
        norm = tree.l2_norm(estimate) or 1.0
        decay = self.regulariser
        return {n: (a / norm - decay * params[n]).astype(np.float32) for n, a in estimate.items()}

    def _offset(
        self, params: Params, direction: Params, sizes: np.ndarray
    ) -> tuple[float, ...] | None:
        if not self.regulariser:
            return None
        weight = 0.5 * self.regulariser * self.num_users
        tried = (move_along(params, direction, size) for size in sizes)
        return tuple(
            weight * sum(float(np.vdot(a, a.astype(np.float64))) for a in own.values())
            for own in tried
        )


def _pays(door: Door, rho: float) -> bool:
    # The filter has the last word: what is refused there ends the run as well.
    return rho <= door.rho_left * (1.0 + 1e-9)


def _double(update: Params) -> Params:
    return {name: np.asarray(array, np.float64) for name, array in update.items()}
