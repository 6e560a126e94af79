"""Noise of uniform direction and Gamma length in every row of a run over disjoint batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv import tree
from fedpriv.noise.gaussian import NoisedMean
from fedpriv.noise.output import Sphere
from fedpriv.noise.participation import Participation
from fedpriv.noise.privatizer import AfterCrash, Cost, Memory
from fedpriv.ranges import positive_float, positive_int
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params, Tree

_ROW = "row"


@dataclass(frozen=True, slots=True, kw_only=True)
class SphereRows:
    """`Sphere` noise on the sum of each of many batches, of which everybody is in a few.

    Attributes:
        epsilon: ε of the whole run, for one user who is there or not.
        passes: In how many batches one user is at most.

    Guarantees:
        * A row is ε/passes-DP, with noise of a density proportional to
          exp(-(ε/passes) ‖κ‖₂ / Δ); all of them are ε-DP if nobody is in more than `passes`,
          which a sampler has to see to: only `Partition` (`fedpriv.privacy.sampling`) takes the
          cost. As far as floating point is real arithmetic.

    Reference: Song, Chaudhuri and Sarwate (2013), Section 2, for the noise.
    """

    epsilon: float
    passes: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive_float("epsilon", self.epsilon))
        object.__setattr__(self, "passes", positive_int("passes", self.passes))

    @property
    def name(self) -> str:
        """Its name."""
        return "sphere-rows"

    @property
    def cost(self) -> Cost:
        """Pure ε, charged once for the run."""
        limit = Participation(most=self.passes)
        return Cost(kind="pure", value=self.epsilon, whole_run=True, participation=limit)

    @property
    def after_crash(self) -> AfterCrash:
        """A batch that a crash cut off is lost."""
        return "burn"

    def init(self, template: Tree, key: Key) -> Memory:
        """Return that no row was drawn."""
        return {_ROW: np.zeros(1, np.int64)}

    def draw(
        self, memory: Memory, *, template: Tree, sensitivity: float, key: Key
    ) -> tuple[Params, Memory]:
        """Return the next row's noise, float64, by the run's key and its number."""
        row = int(memory[_ROW][0]) + 1
        one = Sphere(epsilon=self.epsilon / self.passes)
        noise, _ = one.draw(
            {}, template=template, sensitivity=sensitivity, key=key.fold("sphere").fold(row)
        )
        return noise, {_ROW: np.array([row], np.int64)}

    def release(self, total: PartialSum, drawn: Params, share: float) -> NoisedMean:
        """Return the noised mean, float32.

        The noise is narrowed with the sum and not before: what float32 noise added to a sum leaves
        behind has a grid that tells which sum it was. On a sum of whole numbers it is rounded to
        the sum's own grid.
        """
        sums, update, squared = tree.to_dense(total.real()), {}, 0.0
        for name, array in sums.items():
            noise, step = drawn[name], total.granularity
            noise = noise if step is None else np.rint(noise / step) * step
            update[name] = ((array + noise) * share).astype(np.float32)
            squared += float(np.sum(np.square(update[name], dtype=np.float64)))
        return NoisedMean(update=update, squared_norm=squared)
