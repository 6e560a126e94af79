"""What is known of a convex loss: how steep, how smooth and how convex it is."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.ranges import Range, finite_float, positive_float


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Of a loss with its regulariser.

    Attributes:
        name: Of the loss.
        lipschitz: L₀, of one example's data term.
        smoothness: β, of the data term and the regulariser together.
        convexity: γ, of the regulariser; 0 where there is none.
        inputs: r, to which inputs are shortened, their constant 1 for a bias included.
    """

    name: str
    lipschitz: float
    smoothness: float
    convexity: float = 0.0
    inputs: float = 1.0

    def __post_init__(self) -> None:
        positive_float("lipschitz", self.lipschitz)
        positive_float("smoothness", self.smoothness)
        finite_float("convexity", self.convexity, Range.AT_LEAST_ZERO)
        positive_float("inputs", self.inputs)
        if self.convexity > self.smoothness:
            raise ValueError(
                f"convexity {self.convexity:g} is above smoothness {self.smoothness:g}; no loss "
                "is so"
            )

    def lipschitz_within(self, radius: float) -> float:
        """Return the literature's L = L₀ + λR: of the whole loss on a ball of radius R."""
        return self.lipschitz + self.convexity * radius
