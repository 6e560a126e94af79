"""Step sizes of permutation SGD, counted over all updates from 1.

================  ==============================  ============================================
schedule          η_t                             for
================  ==============================  ============================================
constant          η                               convex (η <= 2/β), strongly convex (η <= 1/β)
power             η / t^c                         the same; "invscaling" of scikit-learn
decreasing        2 / (β (t + m^c))               convex
square-root       2 / (β (√t + m^c))              convex
strongly-convex   min(1/β, 1/(γt))                strongly convex
================  ==============================  ============================================

Reference: Wu et al., "Bolt-on Differential Privacy for Scalable Stochastic Gradient Descent-based
Analytics" (2017), Algorithms 1 and 2, Corollaries 1 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedpriv.ranges import Range, finite_float, positive_float, positive_int
from fedpriv.training.permutation.constants import Constants

Name = Literal["constant", "power", "decreasing", "square-root", "strongly-convex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSchedule:
    """The step size of each update.

    Attributes:
        name: One of the table.
        rate: η of "constant" and "power".
        exponent: c of "power", "decreasing" and "square-root", in [0, 1).
    """

    name: Name = "constant"
    rate: float | None = None
    exponent: float = 0.5

    def __post_init__(self) -> None:
        if self.name not in get_args(Name):
            raise ValueError(
                f"schedule {self.name!r} is unknown; give 'constant', 'power', 'decreasing', "
                "'square-root' or 'strongly-convex'"
            )
        if (self.name in ("constant", "power")) != (self.rate is not None):
            raise ValueError(
                f"rate {self.rate!r}: schedules 'constant' and 'power' have one, and no other"
            )
        if self.rate is not None:
            object.__setattr__(self, "rate", positive_float("rate", self.rate))
        finite_float("exponent", self.exponent, Range.FRACTION)

    def rates(self, num_updates: int, *, constants: Constants, num_examples: int) -> np.ndarray:
        """Return η_1, η_2, ..., float64.

        Args:
            num_updates: How many, over all passes.
            constants: Of the loss.
            num_examples: m, or the number of users.

        Raises:
            ValueError: If an update would not be a contraction: a step longer than 2/β, or than
                1/β of a strongly convex loss; or if the schedule wants a loss of another kind.
        """
        count = positive_int("num_updates", num_updates)
        t = np.arange(1, count + 1, dtype=np.float64)
        beta, gamma = constants.smoothness, constants.convexity
        offset = float(num_examples) ** self.exponent
        match self.name:
            case "constant":
                assert self.rate is not None
                rates = np.full(count, self.rate)
            case "power":
                assert self.rate is not None
                rates = self.rate / t**self.exponent
            case "decreasing":
                rates = 2.0 / (beta * (t + offset))
            case "square-root":
                rates = 2.0 / (beta * (np.sqrt(t) + offset))
            case "strongly-convex":
                if gamma == 0.0:
                    raise ValueError(
                        "schedule 'strongly-convex' needs a regulariser; give one above 0, or "
                        "another schedule"
                    )
                rates = np.minimum(1.0 / beta, 1.0 / (gamma * t))
        limit = (2.0 if gamma == 0.0 else 1.0) / beta
        if float(rates.max()) > limit * (1.0 + 1e-12):
            said = "2/β" if gamma == 0.0 else "1/β"
            raise ValueError(
                f"a step of {float(rates.max()):g} is above {limit:g}, {said} of "
                f"{constants.name}: beyond it two runs need not stay close; lower the rate"
            )
        return rates
