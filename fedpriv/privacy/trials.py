"""Private selection: the cost of keeping the best of a random number of trials.

Running several settings on private data and keeping the best one costs more than the one that is
kept. If how many are run is drawn from a fixed law and kept secret, it costs little more than one
(Papernot and Steinke 2022, arXiv:2110.03620): Theorem 2 for a truncated negative binomial, Theorem
6 for a Poisson number. Both turn the Rényi curve of one trial into that of the whole study.

>>> import itertools
>>> law = Trials(mean=10.0)
>>> [(number, f"{prob:.4f}") for number, prob in itertools.islice(law.probabilities(), 2)]
[(1, '0.1000'), (2, '0.0900')]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.libraries import library
from fedpriv.ranges import finite_float, json_object, positive_float

MOST_TRIALS = 1e5
"""Largest mean."""
_SHAPES = (0.01, 1000.0)
_BITS = 128
_DIGITS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The distribution of the number of trials; public, unlike the number that is drawn.

    Attributes:
        mean: Expected number of trials, above 1 and at most 100,000.
        shape: η of the truncated negative binomial, from 0.01 to 1000: 1 is the geometric law,
            smaller values spread wider and cost less for the same mean; infinity is the Poisson
            law, under which it may happen that nothing is run.

    Guarantees:
        * If one trial has the Rényi curve ρ, drawing the number of trials from this law, running
          each independently and keeping nothing but the best, by an order that does not look at how
          many there were, has the curve `selected(orders, ρ)`.

    Raises:
        ValueError: If a number is out of range.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        mean = finite_float("trials", self.mean)
        if not 1.0 < mean <= MOST_TRIALS:
            raise ValueError(
                f"trials {mean:g} is not above 1 and at most {MOST_TRIALS:g}: it is the mean of a "
                "random number; give one such as 10, or leave it out where one run is all"
            )
        given: Any = self.shape
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise ValueError(f"shape {self.shape!r} is not a number; give one such as 1")
        shape = float(self.shape)
        if shape != math.inf:
            low, high = _SHAPES
            if not low <= positive_float("shape", shape) <= high:
                raise ValueError(
                    f"shape {shape:g} is not between {low:g} and {high:g}; give one such as 1 "
                    "(geometric), or inf (Poisson)"
                )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "shape", shape)

    @property
    def name(self) -> str:
        """The law in words."""
        if self.is_poisson:
            return f"Poisson, mean {self.mean:g}"
        return f"truncated negative binomial, mean {self.mean:g}, shape {self.shape:g}"

    @property
    def is_poisson(self) -> bool:
        """Whether it is the Poisson law, under which there may be no trial at all."""
        return self.shape == math.inf

    @property
    def gamma(self) -> float:
        """γ in (0, 1) of the truncated negative binomial: mean = η (1 - γ) / (γ (1 - γ^η)).

        Raises:
            ValueError: Of the Poisson law, which has none.
        """
        if self.is_poisson:
            raise ValueError("a Poisson number of trials has no γ")
        low, high = -800.0, -1e-18  # log γ: the mean falls as it grows
        for _ in range(200):
            middle = (low + high) / 2
            mean = self.shape * math.expm1(-middle) / -math.expm1(self.shape * middle)
            low, high = (middle, high) if mean > self.mean else (low, middle)
        return math.exp((low + high) / 2)

    def number(self, bits: Callable[[int], int]) -> int:
        """Return a number of trials; draw it once in a study, and keep it secret.

        The law is summed up in 60 digits and compared with a number of 128 bits, so that what is
        drawn is off by less than 10^-38 in probability.

        Args:
            bits: Returns a uniform whole number of so many bits, such as `secrets.randbits`.

        Raises:
            ValueError: Of the Poisson law, under which a study might run nothing.
        """
        with localcontext() as context:
            context.prec = _DIGITS
            uniform = Decimal(bits(_BITS)) / Decimal(2**_BITS)
            total, number = Decimal(0), 0
            for number, prob in self.probabilities():
                total += prob
                if uniform < total:
                    return number
        return number  # what rounding in the 60th digit leaves

    def probabilities(self) -> Iterator[tuple[int, Decimal]]:
        """Yield numbers of trials from 1 and their probabilities, as far as these matter.

        Raises:
            ValueError: Of the Poisson law, which is priced and never drawn.
        """
        number, gamma, shape = 1, Decimal(self.gamma), Decimal(self.shape)
        with localcontext() as context:
            context.prec = _DIGITS
            prob = shape * (1 - gamma) / ((-shape * gamma.ln()).exp() - 1)
        while prob > Decimal("1e-55") or number < self.mean:
            yield number, prob
            with localcontext() as context:
                context.prec = _DIGITS
                prob = prob * (1 - gamma) * (number + shape) / (number + 1)
            number += 1

    def selected(
        self, orders: NDArray[np.float64], rdp: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the Rényi curve of the study from that of one trial.

        Args:
            orders: Rényi orders, above 1 and increasing, shape (num_orders,).
            rdp: Of one trial at these, same shape; infinite where it is not known.

        Raises:
            ValueError: If an order is not above 1, or they do not increase.
        """
        if np.any(orders <= 1.0) or np.any(np.diff(orders) <= 0.0):
            raise ValueError("Rényi orders must be above 1 and increase")
        paid = rdp + math.log(self.mean) / (orders - 1.0)
        if self.is_poisson:
            return paid + self.mean * self._exceeding(orders, rdp)
        gained = np.min((1.0 - 1.0 / orders) * rdp - math.log(self.gamma) / orders)
        # A Rényi divergence grows with its order: a lower order costs no more than a higher one.
        whole = paid + (1.0 + self.shape) * gained
        return np.minimum.accumulate(whole[::-1])[::-1]

    def _exceeding(
        self, orders: NDArray[np.float64], rdp: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return δ of one trial at ε = log(1 + 1/(order - 1)), of each order."""
        compute_delta = library("dp_accounting.rdp.rdp_privacy_accountant").compute_delta
        found = [
            compute_delta(orders.tolist(), rdp.tolist(), math.log1p(1.0 / (order - 1.0)))[0]
            for order in orders
        ]
        return np.asarray(found)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; the shape of the Poisson law is a word.

        >>> Trials(mean=5, shape=0.5).to_json()
        {'mean': 5.0, 'shape': 0.5}
        """
        return {"mean": self.mean, "shape": "poisson" if self.is_poisson else self.shape}

    @classmethod
    def from_json(cls, value: Any) -> Trials:
        """Return what `to_json` wrote.

        Raises:
            ValueError: If it is something else.
        """
        given = json_object(value)
        if given is None or set(given) != {"mean", "shape"}:
            raise ValueError(f"{value!r} is no law of trials; expected a mean and a shape")
        shape = given["shape"]
        return cls(mean=given["mean"], shape=math.inf if shape == "poisson" else shape)
