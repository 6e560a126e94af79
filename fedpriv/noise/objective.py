"""Noise within an objective that is minimised: a random linear term, and a little on its minimum.

What is released is where F(w) = Σ ℓ_i(w) + Λ/2 ‖w‖² + ⟨b, w⟩ has its minimum, found as far as
‖∇F‖ <= τ, plus noise for the rest. The exact minimum w* is a bijection of b, so that its density
under a data set D is that of b = -(Σ∇ℓ_i(w*) + Λw*) times the determinant of Σ∇²ℓ_i(w*) + Λ. An
example more, of gradient g and curvature h x xᵀ at w*, with ‖g‖ <= L and h‖x‖² <= β, changes

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

from dataclasses import dataclass
from typing import Literal

from fedpriv.noise.memoryless import MadeAgain
from fedpriv.noise.output import OutputGaussian, Sphere
from fedpriv.noise.privatizer import Cost, Memory
from fedpriv.ranges import positive_float
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveNoise(MadeAgain):
    """The noise of a perturbed objective; an algorithm puts the part inside into it.

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
    inside: float
    shift: float
    outside: float

    def __post_init__(self) -> None:
        if self.form not in ("sphere", "gaussian"):
            raise ValueError(f"form {self.form!r} is unknown; give 'sphere' or 'gaussian'")
        for name in ("inside", "shift", "outside"):
            object.__setattr__(self, name, positive_float(name, getattr(self, name)))

    @property
    def name(self) -> str:
        """Its name."""
        return f"objective-{self.form}"

    @property
    def cost(self) -> Cost:
        """Pure ε, or that of a Gaussian and a shift."""
        besides = self.shift + self.outside
        if self.form == "sphere":
            return Cost(kind="pure", value=self.inside + besides)
        return Cost(kind="objective-gaussian", value=self.inside, shift=besides)

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
        return noise.draw({}, template=template, sensitivity=lipschitz, key=key)[0]

    def draw(
        self, memory: Memory, *, template: Tree, sensitivity: float, key: Key
    ) -> tuple[Params, Memory]:
        """Return the noise on what was found, float64."""
        outside = Sphere(epsilon=self.outside)
        return outside.draw(memory, template=template, sensitivity=sensitivity, key=key)

    def release(self, total: PartialSum, drawn: Params, share: float) -> Params:
        """Return what was found with the noise on it, float32."""
        return Sphere(epsilon=self.outside).release(total, drawn, share)
