"""Noise of the comparators alone: on the sum of every batch, and within an objective.

`SphereRows` puts the noise of output perturbation on the sum of each of many disjoint batches.

*Objective perturbation* (`ObjectiveNoise`): a random linear term within an objective that is
minimised, and a little noise on its minimum. What is released is where
F(w) = Σ ℓ_i(w) + Λ/2 ‖w‖² + ⟨b, w⟩ has its minimum, found as far as ‖∇F‖ <= τ, plus noise for the
rest. The exact minimum w* is a bijection of b, so that its density under a data set D is that of
b = -(Σ∇ℓ_i(w*) + Λw*) times the determinant of Σ∇²ℓ_i(w*) + Λ. An example more, of gradient g and
curvature h x xᵀ at w*, with ‖g‖ <= L and h‖x‖² <= β, changes

* the determinant by a factor of 1 + h xᵀ(·)⁻¹x, from 1 to 1 + β/Λ: the shift is log(1 + β/Λ), and
  only one of the two directions pays it;
* the density of b by that of b and b - g, under which b itself has its own law. Of density
  exp(-ε₁‖b‖/L) that is a factor of at most exp(ε₁). Of Gaussian b its logarithm is
  (c² - 2cz)/2σ² with g = c times a unit vector, and z/σ normal. Of a linear model whose loss
  falls with its margin that vector is x or -x by the label, whatever w* is, so that z is a fixed
  coordinate and c ∈ [0, L]; convex in c, it is largest at an end: the loss of a Gaussian mechanism
  of sensitivity L, or 0.

Where it was found, w̃, is at most τ/Λ from w*, whatever the data; given w*, a neighbour's is at most
2τ/Λ from it, and noise for that costs a further ε₂ (Iyengar et al. 2019).

Reference: Chaudhuri, Monteleoni and Sarwate (2011), Theorem 9, for ε and an exact minimum; Kifer,
Smith and Thakurta (2012) for Gaussian terms, whose proof Redberg, Koskela and Wang (2023), Theorem
3.1, mend for linear models, with twice the δ: they let the sign of g vary. Iyengar et al., "Towards
Practical Differentially Private Convex Optimization" (2019), Algorithm 1, for what is not an exact
minimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.perturbation import OutputGaussian, Perturbing, Sphere
from fedpriv.mechanisms.privatizer import Participation, Privatizer
from fedpriv.parts import PositiveFloat, PositiveInt
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class SphereRows(Privatizer):
    """`Sphere` noise on the sum of each of many batches, of which everybody is in a few.

    Attributes:
        epsilon: ε of the whole run, for one user who is there or not.
        passes: In how many batches one user is at most.

    Guarantees:
        * A row is ε/passes-DP, with noise of a density proportional to
          exp(-(ε/passes) ‖κ‖₂ / Δ); all of them are ε-DP if no one is in more than `passes`,
          which a sampler has to see to: only `Partition` (`fedpriv.privacy.sampling`) takes
          it. As far as floating point is real arithmetic.

    Reference: Song, Chaudhuri and Sarwate (2013), Section 2, for the noise.
    """

    epsilon: PositiveFloat
    passes: PositiveInt = 1

    name = "sphere-rows"
    after_crash = "discard"

    @property
    def event(self) -> Event:
        """Pure ε, charged once for the run."""
        return Event(kind="pure", epsilon=self.epsilon)

    @property
    def participation(self) -> Participation:
        """As often as there are passes."""
        return Participation(most=self.passes)

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[Params]:
        """Yield the rows' noise, float64, each by the run's key and its number."""
        one = Sphere(epsilon=self.epsilon / self.passes)
        for row in count(1):
            own = key.fold("sphere").fold(row)
            yield from one.draws(template=template, sensitivity=sensitivity, key=own)

    def release(self, total: PartialSum, drawn: Params, share: float) -> Params:
        """Return the noised mean, float32.

        The noise is narrowed with the sum and not before: what float32 noise added to a sum leaves
        behind has a grid that reveals which sum it was. On a sum of whole numbers it is rounded to
        the sum's own grid.
        """
        update = dict[str, np.ndarray]()
        for name, array in tree.to_dense(total.real()).items():
            noise, step = drawn[name], total.granularity
            noise = noise if step is None else np.rint(noise / step) * step
            update[name] = ((array + noise) * share).astype(np.float32)
        return update


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveNoise(Perturbing):
    """Noise of a perturbed objective; an algorithm adds the linear term to its objective.

    Attributes:
        form: Of the part inside: "sphere" (uniform direction and Gamma length) or "gaussian".
        inside: ε₁ of a sphere; of a Gaussian σ, its standard deviation over L.
        shift: log(1 + β/Λ).
        outside: ε₂, of the noise on what was found.

    Guarantees:
        * A release is (ε₁ + shift + ε₂)-DP for an example that is there or not; of a Gaussian its
          loss is at most max(0, G) + shift + ε₂, where G is that of a Gaussian mechanism of σ. As
          far as floating point is real arithmetic, and if the algorithm's check of the plan held.
    """

    form: Literal["sphere", "gaussian"]
    inside: PositiveFloat
    shift: PositiveFloat
    outside: PositiveFloat

    @property
    def name(self) -> str:  # type: ignore[override]
        """Of its form."""
        return f"objective-{self.form}"

    @property
    def event(self) -> Event:
        """Pure ε, or that of a Gaussian and a shift."""
        besides = self.shift + self.outside
        if self.form == "sphere":
            return Event(kind="pure", epsilon=self.inside + besides)
        return Event(kind="objective-gaussian", noise_multiplier=self.inside, shift=besides)

    def linear_term(self, *, template: Tree, lipschitz: float, key: Key) -> Params:
        """Return b, float64, which must not leave.

        Args:
            template: Names and shapes of the params.
            lipschitz: L, of one example's gradient.
            key: Secret, and the same when the release is replayed.
        """
        noise = (
            Sphere(epsilon=self.inside)
            if self.form == "sphere"
            else OutputGaussian(noise_multiplier=self.inside)
        )
        return next(noise.draws(template=template, sensitivity=lipschitz, key=key))

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[Params]:
        """Yield the noise on what was found, float64."""
        outside = Sphere(epsilon=self.outside)
        return outside.draws(template=template, sensitivity=sensitivity, key=key)
