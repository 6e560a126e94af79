"""What is known of a loss as a function of the params: how steep, how smooth, how convex.

Of inputs within ‖x‖₂ <= r, the bias's constant input included, and per example:

===========  ===================  ================  =============================================
loss         L₀ (data term)       β (data term)     source
===========  ===================  ================  =============================================
logistic     r                    r²/4              |∂| <= 1, |∂²| <= 1/4
Huber SVM    r                    r²/2h             quadratic within h of the corner
softmax      √2 r                 r²/2              ‖p - y‖₂ <= √2; Böhning (1992), ‖diag p - pp'‖
one-vs-all   √k r                 r²/4              k logistic losses at once, each its own row
mod. Huber   4 r                  2 r²              (1 - z)² for z > -1, and -4z below
===========  ===================  ================  =============================================

A regulariser λ/2 ‖w‖² adds λ to β and makes the sum λ-strongly convex. It adds λR to the Lipschitz
constant on a ball of radius R, which is what the literature's L = L₀ + λR is; but it is the *same*
in two neighbouring runs and cancels in the step in which they differ, so that their distance is
made of L₀ alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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


def logistic(*, regulariser: float = 0.0, inputs: float = 1.0) -> Constants:
    """Return the constants of logistic regression."""
    return _regularised("logistic", inputs, inputs**2 / 4.0, regulariser, inputs)


def huber_svm(*, width: float = 0.1, regulariser: float = 0.0, inputs: float = 1.0) -> Constants:
    """Return the constants of a support vector machine with a Huber hinge of width h."""
    width = positive_float("width", width)
    return _regularised("Huber SVM", inputs, inputs**2 / (2.0 * width), regulariser, inputs)


def softmax(*, regulariser: float = 0.0, inputs: float = 1.0) -> Constants:
    """Return the constants of softmax regression, over all classes together."""
    return _regularised("softmax", math.sqrt(2.0) * inputs, inputs**2 / 2.0, regulariser, inputs)


def one_vs_all(num_classes: int, *, regulariser: float = 0.0, inputs: float = 1.0) -> Constants:
    """Return the constants of k logistic regressions on the same inputs, seen as one vector."""
    steep = math.sqrt(num_classes) * inputs
    return _regularised("one-vs-all", steep, inputs**2 / 4.0, regulariser, inputs)


def modified_huber(*, regulariser: float = 0.0, inputs: float = 1.0) -> Constants:
    """Return the constants of scikit-learn's modified Huber loss: 4 steep, of curvature 2."""
    return _regularised("modified Huber", 4.0 * inputs, 2.0 * inputs**2, regulariser, inputs)


def jointly(constants: Constants, number: int) -> Constants:
    """Return the constants of so many models of one loss on the same inputs, seen as one vector.

    Each of them moves by at most L₀ in a step, whatever the others' orders are.
    """
    steep = math.sqrt(number) * constants.lipschitz
    return replace(constants, name=f"{number} times {constants.name}", lipschitz=steep)


#: Why nothing bounds what a loss does, by its name in libraries.
UNBOUNDED = {
    "hinge": "has a corner (it is not smooth); use a Huber SVM or 'modified_huber'",
    "perceptron": "has a corner (it is not smooth); use a Huber SVM or 'modified_huber'",
    "squared_hinge": "is ever steeper (it is not Lipschitz); use 'modified_huber'",
    "squared_error": "is ever steeper (it is not Lipschitz); use a logistic or Huber loss",
    "epsilon_insensitive": "has corners (it is not smooth)",
    "squared_epsilon_insensitive": "is ever steeper (it is not Lipschitz)",
    "huber": "is of regression, and its targets are not bounded here; use 'modified_huber'",
}


def named(
    name: str,
    *,
    regulariser: float = 0.0,
    inputs: float = 1.0,
    width: float = 0.1,
    num_classes: int = 2,
) -> Constants:
    """Return the constants of a loss by its name.

    Args:
        name: "logistic" (or "log_loss"), "huber-svm", "modified_huber", "softmax" or "one-vs-all".
        regulariser: λ of λ/2 ‖w‖².
        inputs: r, to which inputs are shortened.
        width: h, of "huber-svm".
        num_classes: k, of "one-vs-all".

    Raises:
        ValueError: If nothing bounds it, such as hinge, or the name is unknown.
    """
    given = {"regulariser": regulariser, "inputs": inputs}
    match name:
        case "logistic" | "log_loss":
            return logistic(**given)
        case "huber-svm":
            return huber_svm(width=width, **given)
        case "modified_huber":
            return modified_huber(**given)
        case "softmax":
            return softmax(**given)
        case "one-vs-all":
            return one_vs_all(num_classes, **given)
    known = "'logistic', 'huber-svm', 'modified_huber', 'softmax' or 'one-vs-all'"
    if name in UNBOUNDED:
        raise ValueError(f"loss {name!r} {UNBOUNDED[name]}: nothing says how far it moves a result")
    raise ValueError(f"loss {name!r} is unknown; give {known}, or Constants of your own")


def _regularised(
    name: str, lipschitz: float, smoothness: float, regulariser: float, inputs: float
) -> Constants:
    weight = finite_float("regulariser", regulariser, Range.AT_LEAST_ZERO)
    return Constants(
        name=name,
        lipschitz=lipschitz,
        smoothness=smoothness + weight,
        convexity=weight,
        inputs=inputs,
    )
