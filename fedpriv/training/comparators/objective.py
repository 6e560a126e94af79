"""Objective perturbation of linear models: a random linear term, a minimum, a little noise on it.

The literature's ε is of the exact minimum, which no computer finds. Here it is of a point where the
gradient was measured to be short (approximate minima perturbation), with room for the rounding of
that measurement; where none is found nothing is released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import linalg

from fedpriv.mechanisms.bounds import Bound, Displaced
from fedpriv.mechanisms.perturbation import ObjectiveNoise
from fedpriv.privacy.plan import AnyPlan, Plan
from fedpriv.ranges import positive_float
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import Algorithm, ArrayState, Door, Query, RawSums
from fedpriv.training.permutation_sgd import Constants, PermutationSgd
from fedpriv.tree import Params

TERM = "linear term "
"""What the work's params call b, before the name of each param."""
_UNIT = 2.0**-53
_STEPS = 200
# Half the width over which a residual's slope is measured.
_SLOPE = 1e-4
#: Losses whose gradient is -c y x, c >= 0: an example's is along one ray, whatever the params are.
_OF_MARGINS = ("logistic", "Huber SVM", "modified Huber")


def least_tolerance(num_examples: int) -> float:
    """Return a τ above what the gradient of so many examples is rounded by, 3 m² 2^-53 or 1e-6."""
    return max(1e-6, 3.0 * num_examples**2 * _UNIT)


def shift_of(constants: Constants, strength: float) -> float:
    """Return log(1 + β/Λ), rounded up."""
    return math.log1p(constants.smoothness / strength) * (1.0 + 2.0**-40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePerturbation(Algorithm):
    """Asks once for the perturbed minimum of Σ ℓ_i(w) + Λ/2 ‖w‖² + ⟨b, w⟩.

    Attributes:
        constants: Of the loss, without a regulariser.
        strength: Λ, of the *sum*: m times the λ of a mean. Public, and of no row.
        tolerance: τ, how long the gradient may be where the minimum is said to be.
        noise: Inside and outside.
    """

    constants: Constants
    strength: float
    tolerance: float
    noise: ObjectiveNoise

    def __post_init__(self) -> None:
        positive_float("strength", self.strength)
        positive_float("tolerance", self.tolerance)
        if self.constants.convexity:
            raise ValueError(
                f"convexity {self.constants.convexity:g}: give the constants of the loss alone; "
                "strength is its regulariser"
            )
        if self.constants.name not in _OF_MARGINS:
            raise ValueError(
                f"loss {self.constants.name!r}: an example's gradient is not along one line, on "
                f"which the guarantee rests; use one of {', '.join(_OF_MARGINS)}"
            )
        least = shift_of(self.constants, self.strength)
        if self.noise.shift < least:
            raise ValueError(
                f"shift {self.noise.shift:g} is below log(1 + β/Λ) = {least:g}; raise it, or Λ"
            )

    @property
    def displacement(self) -> float:
        """2τ/Λ, how far a neighbour moves what is found, once the exact minimum is known."""
        return 2.0 * self.tolerance / self.strength * (1.0 + 2.0**-40)

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a plan that pays for anything else than one perturbed minimum.

        Raises:
            ValueError: If that is so, or its noise is another, or of a smaller τ/Λ.
        """
        if not isinstance(plan, Plan) or plan.num_rounds != 1:
            raise ValueError("objective perturbation releases once; give a Plan of one round")
        mechanism = plan.live_mechanism
        noise, bound = mechanism.privatizer, mechanism.bound
        if noise != self.noise or not isinstance(bound, Displaced):
            raise ValueError(
                f"objective perturbation adds {self.noise} to a Displaced minimum; this plan "
                f"bounds by {type(bound).__name__} and adds {noise}"
            )
        if bound.l2_bound < self.displacement:
            raise ValueError(
                f"l2_bound {bound.l2_bound:g} is below 2τ/Λ = {self.displacement:g}; raise it, or "
                "lower the tolerance"
            )

    def init(self, params: Params) -> ArrayState:
        """Return the state before training."""
        return ArrayState(params=params)

    def result(self, state: ArrayState) -> Params:
        """Return the params: of a run that has released, the perturbed ones."""
        return state.params

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after the release; None after that.

        Raises:
            ValueError: As of `PerturbedMinimum`; what was charged stays spent.
        """
        if state.round_num:
            return None

        def program(raw: RawSums) -> PartialSum:
            template = {name: array.astype(np.float64) for name, array in state.params.items()}
            term = self.noise.linear_term(
                template=template, lipschitz=self.constants.lipschitz, key=raw.key("objective")
            )
            return raw.sum({**state.params, **{TERM + n: a for n, a in term.items()}})

        return state.after(door.run(Query(params=state.params), program))


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbedMinimum:
    """Where a perturbed objective has its minimum, as its "sum". A `Work`.

    Attributes:
        sgd: Has the examples, the residual of their loss, and its constants; its passes are not
            looked at. An input with its constant 1 is shortened as there.
        strength: Λ.
        tolerance: τ.
    """

    sgd: PermutationSgd = field(repr=False)
    strength: float
    tolerance: float

    def template(self, params: Params) -> Params:
        """Return the params' own shapes."""
        return {name: array for name, array in params.items() if not name.startswith(TERM)}

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        data: object = None,
        user_ids: Sequence[str],
        key: Key,
    ) -> PartialSum:
        """Return the minimum, float64, as a function of the examples and of b alone.

        Args:
            params: Where the search starts, and b by `TERM` and the names of the params.
            bound: Not looked at: it says how far the result moves.
            data: Not looked at.
            user_ids: All of the training set.
            key: Not used.

        Raises:
            ValueError: If it is not all of them, or the gradient did not become as short as τ.
        """
        sgd = self.sgd
        if len(user_ids) != len(sgd.y):
            raise ValueError(
                f"{len(user_ids)} examples were asked for, and the objective is of all {len(sgd.y)}"
            )
        names, term = (sgd.name, "bias"), [params[TERM + n] for n in (sgd.name, "bias")]
        start = np.concatenate([params[n].astype(np.float64).reshape(-1) for n in names])
        found = self.minimum(start, np.concatenate([t.reshape(-1) for t in term]))
        cut = params[sgd.name].size
        total = {
            sgd.name: found[:cut].reshape(params[sgd.name].shape),
            "bias": found[cut:].reshape(params["bias"].shape),
        }
        return PartialSum(total=total, num_users=len(user_ids), num_failed=0)

    def minimum(self, start: np.ndarray, term: np.ndarray) -> np.ndarray:
        """Return w of ‖∇F(w)‖ <= τ, float64 (d + 1,), by Newton's method.

        Args:
            start: Where it begins, (d + 1,).
            term: b.

        Raises:
            ValueError: If none was found in 200 steps.
        """
        rows = self.rows()
        point = start.astype(np.float64)
        for _ in range(_STEPS):
            logits = rows @ point
            gradient = rows.T @ self._residual(logits) + self.strength * point + term
            if self._is_short(gradient, point, term):
                return point
            slopes = self._residual(logits + _SLOPE) - self._residual(logits - _SLOPE)
            curved = np.maximum(slopes / (2.0 * _SLOPE), 0.0)
            hessian = rows.T @ (rows * curved[:, np.newaxis])
            hessian[np.diag_indices_from(hessian)] += self.strength
            way = -linalg.solve(hessian, gradient, assume_a="pos")
            point = point + self._length(rows, logits, point, way, term) * way
        raise ValueError(
            f"the gradient did not become as short as {self.tolerance:g} in {_STEPS} steps, and "
            "nothing is released; raise the tolerance or the strength"
        )

    def rows(self) -> np.ndarray:
        """Return shortened inputs with their constant, float64 (m, d + 1); absent ones are zero."""
        x, scales = self.sgd.rows()
        dense = np.asarray(x if isinstance(x, np.ndarray) else x.toarray(), np.float64)
        return np.column_stack([dense, np.ones(len(dense))]) * scales[:, np.newaxis]

    def _residual(self, logits: np.ndarray) -> np.ndarray:
        return self.sgd.residual(logits[:, np.newaxis], self.sgd.y)[:, 0]

    def _is_short(self, gradient: np.ndarray, point: np.ndarray, term: np.ndarray) -> bool:
        """Return whether ‖∇F‖ <= τ, with room for what it was rounded by."""
        number, width = len(self.sgd.y), len(point)
        constants, far = self.sgd.constants, float(np.linalg.norm(point))
        each = number * constants.lipschitz + constants.smoothness * width * far
        rounding = number * (each + 8.0 * constants.lipschitz)
        rounding += 4.0 * (self.strength * far + float(np.linalg.norm(term)))
        return float(np.linalg.norm(gradient)) + _UNIT * rounding <= self.tolerance

    def _length(
        self,
        rows: np.ndarray,
        logits: np.ndarray,
        point: np.ndarray,
        way: np.ndarray,
        term: np.ndarray,
    ) -> float:
        """Return how far to go along a way down: where the slope is half of the first, or less."""
        along, grown = rows @ way, self.strength * float(way @ way)
        still = float((self.strength * point + term) @ way)

        def slope(length: float) -> float:
            pulled = float(self._residual(logits + length * along) @ along)
            return pulled + still + length * grown

        return _where_flat(slope)


def _where_flat(slope: Callable[[float], float]) -> float:
    """Return where a rising slope, below 0 at 0, is at most half as steep; 1 if it is there."""
    steep, low, high = abs(slope(0.0)), 0.0, 1.0
    for _ in range(60):
        here = slope(high)
        if abs(here) <= 0.5 * steep:
            return high
        if here > 0.0:
            break
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        here = slope(middle)
        if abs(here) <= 0.5 * steep:
            return middle
        low, high = (low, middle) if here > 0.0 else (middle, high)
    return high
