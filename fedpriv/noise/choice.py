"""One of several perturbed models, chosen by its mistakes: the exponential mechanism.

References: Chaudhuri, Monteleoni and Sarwate (2011), Algorithm 3; Wu et al. (2017), Algorithm 3;
McSherry and Talwar (2007).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from fedpriv import tree
from fedpriv.noise.memoryless import MadeAgain
from fedpriv.noise.noisy_min import ExactDraws, chosen
from fedpriv.noise.output import Sphere
from fedpriv.noise.privatizer import Cost, Memory
from fedpriv.ranges import positive_float
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.tree import Params, Tree

MISTAKES = "mistakes"
"""The tensor of a total that says how many mistakes each candidate makes, whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What leaves of a choice.

    Attributes:
        index: Which candidate.
        params: Its perturbed params, float32.
    """

    index: int
    params: Params = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateChoice(MadeAgain):
    """Perturbs each candidate, and releases one with P(i) ∝ exp(-ε χ_i), χ_i its mistakes.

    One user who is there or not raises or lowers all counts of mistakes together, by at most 1; a
    replaced one moves them either way, and is two: of its ε this is the literature's exp(-ε χ/2).

    Attributes:
        epsilon: ε of the whole, for one user who is there or not.

    Guarantees:
        * An answer is ε-DP (δ = 0), if every candidate was trained on users of its own and went
          through `perturbed` with how far one of them moves it, and mistakes were counted on users
          that no candidate was trained on: each user has a part in one ε only (parallel
          composition). The choice is of whole numbers and uniform bits, drawn exactly; noise is as
          far private as floating point is real arithmetic.
    """

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive_float("epsilon", self.epsilon))

    @property
    def name(self) -> str:
        """Its name."""
        return "private-choice"

    @property
    def cost(self) -> Cost:
        """Pure ε."""
        return Cost(kind="pure", value=self.epsilon)

    def perturbed(self, total: PartialSum, *, sensitivity: float, key: Key) -> Params:
        """Return a candidate with noise on it, float32.

        Args:
            total: Its training's result.
            sensitivity: Δ, how far one of its own users who is there or not moves it.
            key: Secret, of this candidate alone.
        """
        noise = Sphere(epsilon=self.epsilon)
        drawn, _ = noise.draw({}, template=total.total, sensitivity=sensitivity, key=key)
        return noise.release(total, drawn, 1.0)

    def draw(
        self, memory: Memory, *, template: Tree, sensitivity: float, key: Key
    ) -> tuple[ExactDraws, Memory]:
        """Return where the bits of the choice come from."""
        return ExactDraws(key), memory

    def release(self, total: PartialSum, drawn: ExactDraws, share: float) -> Chosen:
        """Return the candidate that was chosen; the others are given up.

        Args:
            total: What `candidates` made of perturbed candidates and their mistakes.
            drawn: From `draw`.
            share: Not looked at: nothing is divided.
        """
        tensors = tree.to_dense(total.total)
        mistakes = [int(count) for count in tensors[MISTAKES]]
        index = chosen(mistakes, Fraction(self.epsilon), "exponential", drawn)
        start = f"{index}/"
        return Chosen(
            index=index,
            params={
                name.removeprefix(start): array.astype(np.float32)
                for name, array in tensors.items()
                if name.startswith(start)
            },
        )


def candidates(perturbed: list[Params], mistakes: list[int], num_users: int) -> PartialSum:
    """Return perturbed candidates and their mistakes as the total that a choice is made of."""
    total = {f"{n}/{name}": array for n, one in enumerate(perturbed) for name, array in one.items()}
    return PartialSum(total={**total, MISTAKES: np.array(mistakes, np.int64)}, num_users=num_users)
