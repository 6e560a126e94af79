"""The comparators: what each promises, and the algorithm that keeps it.

==================  =================  ========================================================
method              guarantee          noise
==================  =================  ========================================================
output perturbation ε, or (ε, δ)       once, by how far full gradient descent moves
objective pert.     ε, or (ε, δ)       in the objective, and a little on its approximate minimum
fixed steps         ρ-zCDP             Gaussian on every full gradient
SCS13               ε                  Gamma-length on every batch, each example once a pass
BST14               (ε, δ)             Gaussian on every Poisson batch
==================  =================  ========================================================

References: Zhang, Zheng, Mou and Wang, "Efficient Private ERM for Smooth Objectives" (2017),
Algorithm 1; Song, Chaudhuri and Sarwate, "Stochastic gradient descent with differentially private
updates" (2013); Bassily, Smith and Thakurta, "Private empirical risk minimization: efficient
algorithms and tight error bounds" (2014), Algorithm 1; of objective perturbation, as of
`fedpriv.mechanisms.perturbation`. Left out: DP-SVRG, PrivGene, and BST14's
localisation for strongly convex losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from fedpriv.mechanisms.bounds import Bound, Displaced
from fedpriv.mechanisms.gaussian import Gaussian
from fedpriv.mechanisms.perturbation import ObjectiveNoise, SphereRows
from fedpriv.privacy.adaptive_plan import AdaptivePlan
from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.event import Event, Relation
from fedpriv.privacy.mechanism import Mechanism
from fedpriv.privacy.plan import Plan
from fedpriv.privacy.sampling import Everybody, Partition, PoissonSampler
from fedpriv.ranges import positive_float, positive_int
from fedpriv.training.comparators.descent import NoisyDescent
from fedpriv.training.comparators.objective import (
    ObjectivePerturbation,
    least_tolerance,
    shift_of,
)
from fedpriv.training.permutation_sgd import Constants, Passes, StepSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A promise and the algorithm that keeps it.

    Attributes:
        plan: The promise.
        algorithm: What asks.
    """

    plan: Plan | AdaptivePlan
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
        schedule=StepSchedule(rate=rate),
        reshuffled=False,
    )


def objective_perturbation(
    *,
    num_examples: int,
    epsilon: float,
    delta: float | None,
    constants: Constants,
    regulariser: float = 0.0,
    most_shift: float = 0.5,
    outside: float = 0.01,
    tolerance: float | None = None,
) -> Method:
    """Return approximate minima perturbation (Iyengar et al. 2019), of add-remove neighbours.

    Its ε is log(1 + β/Λ) for the change of volume, a share for the noise on what was found, and the
    rest for the term inside. Λ = λm is public; where log(1 + β/Λ) is above a share of ε it is
    raised to where it is that share, as Chaudhuri et al. (2011), Algorithm 2, do.

    Args:
        num_examples: m.
        epsilon: ε of the release.
        delta: δ of a Gaussian term; None for pure ε.
        constants: Of the loss alone; one of margins.
        regulariser: λ of the *mean* loss + λ/2 ‖w‖², at least.
        most_shift: Share of ε that log(1 + β/Λ) may be.
        outside: Share of ε for the noise on what was found.
        tolerance: τ; None takes `least_tolerance`.

    Raises:
        ValueError: If shares leave nothing for the term.
    """
    target = positive_float("epsilon", epsilon)
    if not 0.0 < most_shift + outside < 1.0:
        raise ValueError(
            f"most_shift {most_shift:g} and outside {outside:g} leave nothing of ε for the term "
            "inside; together they are below 1"
        )
    needed = constants.smoothness / math.expm1(most_shift * target)
    strength = max(regulariser * num_examples, needed * (1.0 + 2.0**-30))
    besides = (shift := shift_of(constants, strength)) + outside * target
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
    algorithm = ObjectivePerturbation(
        constants=constants,
        strength=strength,
        tolerance=least_tolerance(num_examples) if tolerance is None else tolerance,
        noise=ObjectiveNoise(
            form="sphere" if delta is None else "gaussian",
            inside=inside,
            shift=shift,
            outside=outside * target,
        ),
    )
    mechanism = Mechanism(
        sampler=Everybody(num_users=num_examples),
        bound=Displaced(l2_bound=algorithm.displacement),
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
    relation: Relation = Relation.ADD_REMOVE,
    **descent: Any,
) -> Method:
    """Return noisy full gradient descent of T steps that share ρ equally.

    Args:
        num_examples: m.
        rho: Of the whole run, as of adaptive descent under the same filter.
        delta: At which it is stated as an ε.
        bound: Of an example's gradient.
        steps: T.
        relation: Of the plan.
        descent: Further fields of `NoisyDescent`; `rate` at least.
    """
    sigma = relation.moved * math.sqrt(
        positive_int("steps", steps) / (2.0 * positive_float("rho", rho))
    )
    mechanism = Mechanism(
        sampler=Everybody(num_users=num_examples),
        bound=bound,
        privatizer=Gaussian(noise_multiplier=sigma),
    )
    return Method(
        plan=AdaptivePlan(
            num_users=num_examples, rho=rho, delta=delta, relation=relation, unit="example"
        ),
        algorithm=NoisyDescent(steps=steps, mechanism=mechanism, **descent),
    )


def scs13(
    *,
    num_examples: int,
    epsilon: float,
    bound: Bound,
    batch_size: int,
    passes: int = 1,
    relation: Relation = Relation.ADD_REMOVE,
    **descent: Any,
) -> Method:
    """Return SCS13: every batch of disjoint ones is noised for ε/k, and costs are not added up.

    The paper has one pass; of k passes each has ε/k. Its steps are η/√t.

    Args:
        num_examples: m.
        epsilon: ε of the whole run under `relation`, δ = 0.
        bound: Of an example's gradient: L₂ of its length, which the paper gets from ‖x‖ <= 1.
        batch_size: b.
        passes: k.
        relation: Of the plan; a replaced example is two that are there or not.
        descent: Further fields of `NoisyDescent`; `rate` at least.
    """
    each = epsilon / relation.moved
    sampler = Partition(num_users=num_examples, size=batch_size, passes=passes)
    mechanism = Mechanism(
        sampler=sampler, bound=bound, privatizer=SphereRows(epsilon=each, passes=passes)
    )
    plan = Plan(
        mechanism=mechanism, num_rounds=sampler.num_batches, relation=relation, unit="example"
    )
    return Method(plan=plan, algorithm=_descent(sampler.num_batches, descent))


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
    **descent: Any,
) -> Method:
    """Return BST14 with a given number of passes: projected SGD with steps 2R/(G√t).

    G² = L² + dσ²L²/b² bounds the mean square of a noised mean gradient. The published algorithm has
    m² steps of one example and a σ of strong composition; here the number of passes is given, as in
    Wu et al. (2017), and σ is the least that today's accountant (PLD) allows, which favours it.

    Args:
        num_examples: m.
        epsilon: ε of the whole run, add/remove.
        delta: δ; there is no pure form.
        bound: Of an example's gradient, L.
        batch_size: b, expected.
        passes: k, expected.
        dimension: d, of the params.
        radius: R.
        descent: Further fields of `NoisyDescent`; `rate`, by which 2R/G is multiplied, is 1.
    """
    steps = max(1, math.ceil(passes * num_examples / batch_size - 1e-9))
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
