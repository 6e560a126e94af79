"""Noisy gradient descent whose length is fixed beforehand: one algorithm under several plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy import linalg, optimize

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound, OutputSensitivity
from fedpriv.mechanisms.event import Event, Relation
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.privacy.accounting import calibrate, rho_of
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import AnyPlan, FilterPlan, Plan
from fedpriv.privacy.sampling import Everybody, Partition, PoissonSampler
from fedpriv.ranges import Range, finite_float, positive_float, positive_int, probability
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import Algorithm, ArrayState, Context, Door, RawSums, SumRequest
from fedpriv.training.convex_losses import Constants
from fedpriv.training.permutation_sgd import Passes, PermutationSgd
from fedpriv.training.step_schedules import ConstantStep
from fedpriv.training.work import Attempt, Users, Work
from simulations.linear_models.perturbation import ObjectiveNoise, SphereRows


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyDescent(Algorithm):
    """w ← Π(w - η_t (g + λw)), of a noised mean gradient g, for a number of steps.

    Attributes:
        steps: How many.
        rate: η of the first step.
        schedule: "constant", or "inverse-root": η_t = η/√t.
        regulariser: λ of λ/2 ‖w‖², public.
        radius: R of the ball onto which Π projects; None for none.
        mechanism: Of every answer; None for the plan's.
    """

    steps: int
    rate: float
    schedule: Literal["constant", "inverse-root"] = "constant"
    regulariser: float = 0.0
    radius: float | None = None
    mechanism: Mechanism | None = None

    def __post_init__(self) -> None:
        positive_int("steps", self.steps)
        positive_float("rate", self.rate)
        finite_float("regulariser", self.regulariser, Range.AT_LEAST_ZERO)
        if self.schedule not in ("constant", "inverse-root"):
            raise ValueError(
                f"schedule {self.schedule!r} is unknown; give 'constant' or 'inverse-root'"
            )
        if self.radius is not None:
            positive_float("radius", self.radius)

    def check_plan(self, plan: AnyPlan) -> None:
        """Refuse a filter without a mechanism of one's own, and one that pays for fewer steps.

        Raises:
            ValueError: If that is so.
        """
        if not isinstance(plan, FilterPlan):
            return
        if self.mechanism is None:
            raise ValueError("a filter has no mechanism of its own; give the descent one")
        rho = rho_of(self.mechanism.event, plan.relation) * self.steps
        if rho > plan.rho * (1.0 + 1e-9):
            raise ValueError(
                f"{self.steps} steps cost ρ = {rho:g}, above the {plan.rho:g} of the plan; take "
                "fewer, or add more noise"
            )

    def step(self, state: ArrayState, door: Door) -> ArrayState | None:
        """Return the state after one more step; None after the last."""
        if state.round_num == self.steps:
            return None
        answer = door.ask(SumRequest(params=state.params, mechanism=self.mechanism))
        number = state.round_num + 1
        rate = self.rate / (math.sqrt(number) if self.schedule == "inverse-root" else 1.0)
        kept = 1.0 - rate * self.regulariser
        # An answer is of updates, which are gradients with their sign turned.
        params = {
            name: kept * array.astype(np.float64) + rate * answer[name]
            for name, array in state.params.items()
        }
        if self.radius is not None and (norm := tree.l2_norm(params)) > self.radius:
            params = {name: array * (self.radius / norm) for name, array in params.items()}
        return state.after({name: array.astype(np.float32) for name, array in params.items()})


_UNIT = 2.0**-53
_STEPS = 200
#: Share of ε for the noise on the minimum that was found.
_OUTSIDE = 0.01
# Half the width over which a residual's slope is measured.
_SLOPE = 1e-4
#: Losses whose gradient is -c y x, c >= 0: an example's is along one ray, whatever the params are.
_OF_MARGINS = ("logistic", "Huber SVM", "modified Huber")


def gradient_rounding(
    constants: Constants,
    strength: float,
    *,
    num_examples: int,
    num_params: int,
    far: float,
    term: float,
) -> float:
    """Return a bound on how far the gradient of F at w is rounded in float64.

    Args:
        constants: Of the loss.
        strength: Λ.
        num_examples: m.
        num_params: d, the bias included.
        far: ‖w‖.
        term: ‖b‖.
    """
    each = num_examples * constants.lipschitz + constants.smoothness * num_params * far
    found = num_examples * (each + 8.0 * constants.lipschitz)
    return _UNIT * (found + 4.0 * (strength * far + term))


def least_tolerance(
    constants: Constants,
    strength: float,
    noise: ObjectiveNoise,
    *,
    num_examples: int,
    num_params: int,
) -> float:
    """Return a τ above what the gradient is rounded by at the minimum, and at least 1e-6.

    The minimum is at most (2‖b‖ + √(2Λm ℓ(0)))/Λ from 0, by F(w) <= F(0), where ℓ(0) <= 1. Of ‖b‖
    it takes a length that is beyond ten standard deviations of the noise. All of it is public.
    """
    inside = noise.inside
    term = num_params / inside if noise.form == "sphere" else inside * math.sqrt(num_params)
    term *= constants.lipschitz * (1.0 + 10.0 / math.sqrt(num_params))
    far = (2.0 * term + math.sqrt(2.0 * strength * num_examples)) / strength
    rounded = gradient_rounding(
        constants, strength, num_examples=num_examples, num_params=num_params, far=far, term=term
    )
    return max(1e-6, 3.0 * num_examples**2 * _UNIT, 1.1 * rounded)


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
        if noise != self.noise or not isinstance(bound, OutputSensitivity):
            raise ValueError(
                f"objective perturbation adds {self.noise} to a minimum of known sensitivity "
                f"(OutputSensitivity); this plan bounds by {type(bound).__name__} and adds {noise}"
            )
        if bound.l2_bound < self.displacement:
            raise ValueError(
                f"l2_bound {bound.l2_bound:g} is below 2τ/Λ = {self.displacement:g}; raise it, or "
                "lower the tolerance"
            )

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
            return raw.sum(SumRequest(params=state.params, context=Context(extra=term)))

        return state.after(door.run(SumRequest(params=state.params), program))


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbedMinimum(Work):
    """Client work whose "sum" is the minimum of a perturbed objective.

    Attributes:
        sgd: Has the examples, the residual of their loss, and its constants; its passes are not
            looked at.
        strength: Λ.
        tolerance: τ.
    """

    sgd: PermutationSgd = field(repr=False)
    strength: float
    tolerance: float

    def answer(self, request: SumRequest, attempt: Attempt, users: Users) -> PartialSum:
        """Return the minimum, float64, as a function of the examples and of b alone.

        The request's params are where the search starts, and its context has b by the names of the
        params; its users are all of the training set. Bound and key are not looked at.

        Raises:
            ValueError: If it is not all of them, or the gradient did not become as short as τ.
        """
        sgd, params = self.sgd, request.params
        if len(users.ids) != len(sgd.y):
            raise ValueError(
                f"{len(users.ids)} examples were asked for; the objective is of all {len(sgd.y)}"
            )
        names = (sgd.name, "bias")
        term = [request.context.extra[name] for name in names]
        start = np.concatenate([params[n].astype(np.float64).reshape(-1) for n in names])
        found = self.minimum(start, np.concatenate([t.reshape(-1) for t in term]))
        cut = params[sgd.name].size
        total = {
            sgd.name: found[:cut].reshape(params[sgd.name].shape),
            "bias": found[cut:].reshape(params["bias"].shape),
        }
        return PartialSum(total=total, num_users=len(users.ids), num_failed=0)

    def minimum(self, start: np.ndarray, term: np.ndarray) -> np.ndarray:
        """Return w of ‖∇F(w)‖ <= τ, float64 (d + 1,), by Newton's method.

        Args:
            start: Where it begins, (d + 1,).
            term: b.

        Raises:
            ValueError: If none was found in 200 steps.
        """
        rows: Any = self.sgd.rows
        rows = rows if isinstance(rows, np.ndarray) else rows.toarray()
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

    def _residual(self, logits: np.ndarray) -> np.ndarray:
        return self.sgd.residual(logits[:, np.newaxis], self.sgd.y)[:, 0]

    def _is_short(self, gradient: np.ndarray, point: np.ndarray, term: np.ndarray) -> bool:
        """Return whether ‖∇F‖ <= τ, with room for what it was rounded by."""
        rounded = gradient_rounding(
            self.sgd.constants,
            self.strength,
            num_examples=len(self.sgd.y),
            num_params=len(point),
            far=float(np.linalg.norm(point)),
            term=float(np.linalg.norm(term)),
        )
        return float(np.linalg.norm(gradient)) + rounded <= self.tolerance

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A plan and the algorithm that asks.

    Attributes:
        plan: What is guaranteed.
        algorithm: What asks.
    """

    plan: Plan | FilterPlan
    algorithm: NoisyDescent | ObjectivePerturbation


def full_descent(*, num_examples: int, steps: int, rate: float) -> Passes:
    """Return gradient descent over all examples, for output perturbation (Zhang et al. 2017).

    It is permutation SGD with b = m and k steps, so that bolt-on releases it: an example that is
    there or not moves the end by at most kηL₀/m where the loss is convex and η <= 2/β, and by
    (1 - (1 - ηγ)^k) L₀/(γm) where it is γ-strongly convex too and η <= 1/β; twice as far if it is
    replaced. Experiments of the literature (Lee and Kifer 2018) add noise for 3Lkη/m.
    """
    positive_int("steps", steps)
    return Passes(
        passes=steps,
        batch_size=num_examples,
        schedule=ConstantStep(rate=rate),
        reshuffled=False,
    )


def objective_perturbation(
    *,
    num_examples: int,
    num_params: int,
    epsilon: float,
    delta: float | None,
    constants: Constants,
    regulariser: float = 0.0,
    most_shift: float = 0.5,
) -> Method:
    """Return approximate minima perturbation (Iyengar et al. 2019), of add-remove neighbours.

    Its ε is log(1 + β/Λ) for the change of volume, a share for the noise on what was found, and the
    rest for the term inside. Λ = λm is public; where log(1 + β/Λ) is above a share of ε it is
    raised to where it is that share, as Chaudhuri et al. (2011), Algorithm 2, do.

    Args:
        num_examples: m.
        num_params: d, the bias included.
        epsilon: ε of the release.
        delta: δ of a Gaussian term; None for pure ε.
        constants: Of the loss alone; one of margins.
        regulariser: λ of the *mean* loss + λ/2 ‖w‖², at least.
        most_shift: Share of ε that log(1 + β/Λ) may be.

    Raises:
        ValueError: If shares leave nothing for the term.
    """
    target = positive_float("epsilon", epsilon)
    if not 0.0 < most_shift + _OUTSIDE < 1.0:
        raise ValueError(
            f"most_shift {most_shift:g} and {_OUTSIDE:g} outside leave nothing of ε for the term "
            "inside; together they are below 1"
        )
    needed = constants.smoothness / math.expm1(most_shift * target)
    strength = max(regulariser * num_examples, needed * (1.0 + 2.0**-30))
    besides = (shift := shift_of(constants, strength)) + _OUTSIDE * target
    if delta is None:
        inside = target - besides
    else:
        inside = calibrate(
            lambda sigma: Event(kind="objective-gaussian", noise_multiplier=sigma, shift=besides),
            1,
            target_epsilon=target,
            delta=delta,
            relation=Relation.ADD_REMOVE,
        )
    noise = ObjectiveNoise(
        form="sphere" if delta is None else "gaussian",
        inside=inside,
        shift=shift,
        outside=_OUTSIDE * target,
    )
    tolerance = least_tolerance(
        constants, strength, noise, num_examples=num_examples, num_params=num_params
    )
    algorithm = ObjectivePerturbation(
        constants=constants, strength=strength, tolerance=tolerance, noise=noise
    )
    mechanism = Mechanism(
        sampler=Everybody(num_users=num_examples),
        bound=OutputSensitivity(l2_bound=algorithm.displacement),
        privatizer=algorithm.noise,
    )
    return Method(
        plan=Plan(mechanism=mechanism, num_rounds=1, delta=delta, unit="example"),
        algorithm=algorithm,
    )


def fixed_steps(
    *,
    num_examples: int,
    rho: float,
    delta: float,
    bound: Bound,
    steps: int,
    **descent: Any,
) -> Method:
    """Return noisy full gradient descent of T steps that share ρ equally.

    Args:
        num_examples: m.
        rho: Of the whole run, as of adaptive descent under the same filter.
        delta: At which it is stated as an ε.
        bound: Of an example's gradient.
        steps: T.
        descent: Further fields of `NoisyDescent`; `rate` at least.
    """
    sigma = math.sqrt(positive_int("steps", steps) / (2.0 * positive_float("rho", rho)))
    mechanism = Mechanism(
        sampler=Everybody(num_users=num_examples),
        bound=bound,
        privatizer=Gaussian(noise_multiplier=sigma),
    )
    return Method(
        plan=FilterPlan(num_users=num_examples, rho=rho, delta=delta, unit="example"),
        algorithm=NoisyDescent(steps=steps, mechanism=mechanism, **descent),
    )


def scs13(
    *,
    num_examples: int,
    epsilon: float,
    bound: Bound,
    batch_size: int,
    passes: int = 1,
    **descent: Any,
) -> Method:
    """Return SCS13: every batch of disjoint ones is noised for ε/k, and costs are not added up.

    The paper, as remembered, has one pass with steps η/√t; of k passes each has ε/k.

    Args:
        num_examples: m.
        epsilon: ε of the whole run, add-remove, δ = 0.
        bound: Of an example's gradient: L₂ of its length, which the paper gets from ‖x‖ <= 1.
        batch_size: b.
        passes: k.
        descent: Further fields of `NoisyDescent`; `rate` at least.
    """
    sampler = Partition(num_users=num_examples, size=batch_size, passes=passes)
    mechanism = Mechanism(
        sampler=sampler, bound=bound, privatizer=SphereRows(epsilon=epsilon, passes=passes)
    )
    plan = Plan(mechanism=mechanism, num_rounds=sampler.num_batches, unit="example")
    return Method(plan=plan, algorithm=_descent(sampler.num_batches, descent))


def strong_composition_sigma(
    *, epsilon: float, delta: float, sampling_prob: float, steps: int
) -> float:
    """Return the σ of every step that the proof of BST14 asks for.

    Each of T steps may cost ε₁, the solution of T ε₁ (e^ε₁ - 1) + √(2T ln(1/δ₁)) ε₁ = ε with
    δ₁ = δ/T (strong composition); sampling with probability q makes that of an answer of
    ε₂ = min(1, ε₁/2q), and the classic Gaussian mechanism of it has σ = √(2 ln(1.25/δ₁))/ε₂.

    References: Bassily, Smith and Thakurta (2014), Section 2; Dwork, Rothblum and Vadhan (2010)
    for the composition. All of it is remembered. Solved for ε₁ and for a given number of
    steps, as Wu et al. (2017) compare with it; their neighbours differ by a replaced example.
    """
    each = probability("delta", delta) / positive_int("steps", steps)
    spread = math.sqrt(2.0 * steps * math.log(1.0 / each))
    target = positive_float("epsilon", epsilon)
    share: Any = optimize.brentq(
        lambda own: steps * own * math.expm1(own) + spread * own - target, 0.0, target / spread
    )
    amplified = min(1.0, share / (2.0 * sampling_prob))
    return math.sqrt(2.0 * math.log(1.25 / each)) / amplified


def bst14(
    *,
    num_examples: int,
    epsilon: float,
    delta: float,
    bound: Bound,
    batch_size: float,
    passes: float,
    dimension: int,
    radius: float,
    composition: Literal["pld", "strong"] = "pld",
    **descent: Any,
) -> Method:
    """Return BST14 with a given number of passes: projected SGD with steps 2R/(G√t).

    G² = L² + dσ²L²/b² bounds the mean square of a noised mean gradient. The published algorithm, as
    remembered, has m² steps of one example; here the number of passes is given, as in Wu et al.
    (2017).

    Args:
        num_examples: m.
        epsilon: ε of the whole run, add/remove.
        delta: δ; there is no pure form.
        bound: Of an example's gradient, L.
        batch_size: b, expected.
        passes: k, expected.
        dimension: d, of the params.
        radius: R.
        composition: "strong" for the published σ (`strong_composition_sigma`), of which the plan
            states the ε that it truly has, below the target; "pld" for the least σ that PLD allows.
        descent: Further fields of `NoisyDescent`; `rate`, by which 2R/G is multiplied, is 1.
    """
    steps = max(1, math.ceil(passes * num_examples / batch_size - 1e-9))
    if composition == "strong":
        sigma = strong_composition_sigma(
            epsilon=epsilon, delta=delta, sampling_prob=batch_size / num_examples, steps=steps
        )
        plan = _plan(num_examples, delta, bound, batch_size, steps, sigma)
    else:
        plan = _poisson(num_examples, epsilon, delta, bound, batch_size, steps)
    mechanism = plan.live_mechanism
    noise = dimension * (mechanism.stddev / batch_size) ** 2
    steep = math.sqrt(mechanism.l2_bound**2 + noise)
    factor = descent.pop("rate", 1.0)
    chosen = {"schedule": "inverse-root", **descent}
    return Method(
        plan=plan,
        algorithm=NoisyDescent(
            steps=plan.num_rounds, rate=factor * 2.0 * radius / steep, radius=radius, **chosen
        ),
    )


def dp_sgd(
    *,
    num_examples: int,
    epsilon: float,
    delta: float,
    bound: Bound,
    batch_size: float,
    steps: int,
    noise_multiplier: float | None = None,
    **descent: Any,
) -> Method:
    """Return DP-SGD on Poisson batches, calibrated by PLD, or of a noise multiplier.

    With a noise multiplier the plan states whatever ε that truly has, and `epsilon` is not used.
    """
    if noise_multiplier is None:
        plan = _poisson(num_examples, epsilon, delta, bound, batch_size, steps)
    else:
        plan = _plan(num_examples, delta, bound, batch_size, steps, noise_multiplier)
    return Method(plan=plan, algorithm=_descent(steps, descent, schedule="constant"))


def _poisson(
    num_examples: int, epsilon: float, delta: float, bound: Bound, batch_size: float, steps: int
) -> Plan:
    return _plan(num_examples, delta, bound, batch_size, steps, 1.0).calibrated(epsilon)


def _plan(
    num_examples: int, delta: float, bound: Bound, batch_size: float, steps: int, sigma: float
) -> Plan:
    sampler = PoissonSampler(num_users=num_examples, expected_cohort_size=batch_size)
    return Plan(
        mechanism=Mechanism(
            sampler=sampler, bound=bound, privatizer=Gaussian(noise_multiplier=sigma)
        ),
        num_rounds=steps,
        delta=delta,
        unit="example",
    )


def _descent(
    steps: int,
    fields: dict[str, Any],
    schedule: Literal["constant", "inverse-root"] = "inverse-root",
) -> NoisyDescent:
    return NoisyDescent(**{"steps": steps, "schedule": schedule, **fields})
