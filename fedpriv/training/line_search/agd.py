"""DP-AGD: gradient descent that decides how much privacy each step is worth.

An iteration asks for a noisy gradient of everybody, cheaply, and then, among step sizes along it
of which one is zero, for the one with the least objective (`fedpriv.mechanisms.selection`). Where
that is zero the direction is held to be too noisy: the price of a gradient grows by a factor 1 + γ,
the *same* sum is noised once more for the difference alone, the two estimates are averaged, and the
choice is asked again. When what is left of ρ does not pay for the next answer the run ends, and
what was under way is not applied. Charges follow releases; a zCDP filter of a preset total makes
that free (`fedpriv.privacy.plans.adaptive`).

Averaging estimates of prices ρ₁ and ρ₂ with weights ρ₁ and ρ₂ gives the estimate of price ρ₁ + ρ₂:
Var = C² / 2(ρ₁ + ρ₂). The average is of all estimates of an iteration so far.

References: Lee and Kifer, "Concentrated Differentially Private Gradient Descent with Adaptive
per-Iteration Privacy Budget" (2018), Algorithms 1 and 2. Where its code departs (the noise's sign
in the choice, an index that is off by one, gradients that are paid twice), this follows the text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedpriv.mechanisms.bounds import Bound, Capped
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.selection import Form, NoisyMin
from fedpriv.privacy.event import Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plans.adaptive import AdaptivePlan, AnyPlan
from fedpriv.privacy.sampling import Everybody
from fedpriv.ranges import Range, finite_float, positive_float, positive_int
from fedpriv.training.algorithm import ArrayState, Door, Held, Query
from fedpriv.training.line_search.candidates import LOSSES, StepSizes, along, moved, unit
from fedpriv.tree import Params

GRADIENT = "gradient"

#: What a report shows of every iteration, under these names.
STEP_SIZE, RHO_GRADIENT, REJECTIONS = "step_size", "rho_gradient", "rejections"

_LARGEST, _CHOSEN = "largest_step", "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What the two answers of an iteration cost.

    Attributes:
        gradient: ρ of the first gradient; it grows, and never shrinks.
        selection: ρ of every choice of a step size.
    """

    gradient: float
    selection: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradient", positive_float("gradient", self.gradient))
        object.__setattr__(self, "selection", positive_float("selection", self.selection))

    @classmethod
    def of_paper(cls, *, epsilon: float, delta: float, splits: float = 60.0) -> Prices:
        """Return the paper's: ε/(2 splits) for a choice, and as much for a Gaussian by (ε, δ).

        The choice is then dearer than the gradient by 2 ln(1.25/δ), 37 times at δ = 1e-8.
        """
        each = positive_float("epsilon", epsilon) / (2.0 * positive_float("splits", splits))
        return cls(gradient=each**2 / (4.0 * math.log(1.25 / delta)), selection=0.5 * each**2)

    @classmethod
    def split(cls, *, rho: float, iterations: float, gradient_share: float = 0.5) -> Prices:
        """Return prices of which so many iterations without a rejection cost ρ."""
        finite_float("gradient_share", gradient_share, Range.BETWEEN)
        each = positive_float("rho", rho) / positive_float("iterations", iterations)
        return cls(gradient=gradient_share * each, selection=(1.0 - gradient_share) * each)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveDescent:
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
        """Refuse a plan that is no filter, or of another relation.

        Raises:
            ValueError: If that is so, or it does not pay for one iteration.
        """
        if not isinstance(plan, AdaptivePlan):
            raise ValueError("adaptive descent decides its prices on the way; give an AdaptivePlan")
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
            memory={_CHOSEN: self._kept(())},
            numbers={
                RHO_GRADIENT: self.prices.gradient,
                _LARGEST: self.step_sizes.first,
                STEP_SIZE: 0.0,
                REJECTIONS: 0.0,
            },
        )

    def result(self, state: ArrayState) -> Params:
        """Return the params."""
        return state.params

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after one more accepted step; None where ρ does not pay for it."""
        price, largest = state.numbers[RHO_GRADIENT], state.numbers[_LARGEST]
        if not _pays(door, price + self.prices.selection):
            return None
        sizes = self.step_sizes.upto(largest)
        query = Query(params=state.params, mechanism=self._noised(price), name=GRADIENT)
        with door.hold(query) as held:
            estimate = _double(held.answer.update)
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
        before = state.memory[_CHOSEN]
        chosen = (*before[before >= 0.0].tolist(), size)
        largest, kept = self.step_sizes.adapted(largest, chosen)
        return state.after(
            moved(state.params, direction, size),
            memory={_CHOSEN: self._kept(kept)},
            numbers={
                RHO_GRADIENT: price,
                _LARGEST: largest,
                STEP_SIZE: size,
                REJECTIONS: float(rejections),
            },
        )

    def decided(self, numbers: Mapping[str, float]) -> Mapping[str, float]:
        """Return the step size, the gradient's price and how often a direction was rejected."""
        return {name: numbers[name] for name in (STEP_SIZE, RHO_GRADIENT, REJECTIONS)}

    def _kept(self, chosen: Sequence[float]) -> np.ndarray:
        """Return step sizes since the last adaptation in an array of one size, as files want it."""
        kept = np.full(max(self.step_sizes.every, 1), -1.0)
        newest = list(chosen)[-len(kept) :]
        kept[: len(newest)] = newest
        return kept

    def _noised(self, rho: float) -> Mechanism:
        return Mechanism(
            sampler=Everybody(num_users=self.num_users),
            bound=self.gradient,
            privatizer=self._gaussian(rho),
        )

    def _gaussian(self, rho: float) -> Gaussian:
        return Gaussian(noise_multiplier=self.relation.moved / math.sqrt(2.0 * rho))

    def _choice(
        self, params: Params, direction: Params, sizes: np.ndarray, rejections: int
    ) -> Query:
        return Query(
            params=along(params, direction, sizes),
            work=LOSSES,
            mechanism=self._selection(self._offset(params, direction, sizes)),
            name=f"{LOSSES} {rejections + 1}",
        )

    def _selection(self, offset: tuple[float, ...] | None) -> Mechanism:
        factor = 8.0 if self.form == "exponential" else 2.0
        epsilon = math.sqrt(factor * self.prices.selection) / self.relation.moved
        return Mechanism(
            sampler=Everybody(num_users=self.num_users),
            bound=self.losses,
            privatizer=NoisyMin(epsilon=epsilon, form=self.form, offset=offset),
        )

    def _another(self, held: Held, estimate: Params, price: float, more: float) -> Params:
        """Return the estimate after one more answer of the held sum, of a price of its own."""
        again = _double(held.release(self._gaussian(more)).update)
        if self.estimates == "discard":
            return again
        whole = price + more
        return {n: (price * a + more * again[n]) / whole for n, a in estimate.items()}

    def _direction(self, params: Params, estimate: Params) -> Params:
        direction = unit(estimate)
        if self.regulariser:
            direction = {n: a - self.regulariser * params[n] for n, a in direction.items()}
        return {name: array.astype(np.float32) for name, array in direction.items()}

    def _offset(
        self, params: Params, direction: Params, sizes: np.ndarray
    ) -> tuple[float, ...] | None:
        if not self.regulariser:
            return None
        weight = 0.5 * self.regulariser * self.num_users
        tried = (moved(params, direction, size) for size in sizes)
        return tuple(
            weight * sum(float(np.vdot(a, a.astype(np.float64))) for a in own.values())
            for own in tried
        )


def _pays(door: Door, rho: float) -> bool:
    # The filter has the last word: what is refused there ends the run as well.
    return rho <= door.rho_left * (1.0 + 1e-9)


def _double(update: Params) -> Params:
    return {name: np.asarray(array, np.float64) for name, array in update.items()}
