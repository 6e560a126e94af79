"""Private selection: report noisy min, and the exponential mechanism among perturbed models.

`NoisyMin` releases of several sums the index of one that is nearly the least, and nothing else.

Each contribution lies within [0, C], so that one user more raises every sum, by at most C: scores
are monotone, and noise of scale C/ε' suffices, where sums that may move either way need twice that.
Two forms, both sampled exactly, from whole numbers and unbiased bits alone:

====================  ==============================  ==========================================
form                  equals                          costs
====================  ==============================  ==========================================
permute-and-flip      argmin of Ω - Exp(mean C/ε')    ε'-DP
exponential           argmin of Ω - Gumbel(C/ε'), or  ε'-bounded range, hence ε'²/8-zCDP, where
                      P(j) ∝ exp(-ε' Ω_j / C)         ε'-DP alone gives ε'²/2
====================  ==============================  ==========================================

With the sign of the noise turned (argmin of Ω + Exp, as one published code has it) one candidate's
probability moves by e^((n-1) ε') among n of them.

References: Dwork and Roth (2014), Section 3.3; McKenna and Sheldon (2020), Algorithm 1; Ding et al.
(2021), that permute-and-flip is report noisy max with exponential noise; Durfee and Rogers (2019)
and Cesar and Rogers (2021), Lemma 3.2, on bounded range. For `PrivateChoice`, one of several
perturbed models chosen by its mistakes: Chaudhuri, Monteleoni and Sarwate (2011), Algorithm 3;
McSherry and Talwar (2007); as remembered Wu et al. (2017), whose talk names private tuning alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Literal

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Capped, OutputSensitivity
from fedpriv.mechanisms.event import Event
from fedpriv.mechanisms.perturbation import Sphere
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.parts import PositiveFloat
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, most_each
from fedpriv.tree import Params, Tree

Form = Literal["permute-and-flip", "exponential"]

#: Words that are drawn from a key at a time.
_WORDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyMin(Privatizer):
    """Releases the index of a nearly least coordinate of a sum of capped vectors.

    The bound is a `fedpriv.mechanisms.bounds.Capped`: every coordinate of a contribution is a
    whole multiple of the granularity, from 0 to 2^24/√n of them where there are n coordinates.

    Attributes:
        epsilon: ε' of an answer, for one user who is there or not.
        form: How the index is drawn.
        offset: What is public of each score, such as a regulariser: added to the sums; None for
            nothing. In the units of the sum.

    Guarantees:
        * The index is ε'-DP (and with form "exponential" ε'²/8-zCDP), of real arithmetic: no
          floating point comes between the whole numbers of the sum and the bits that decide.

    Raises:
        ValueError: If ε' is not positive, or the form is unknown.
    """

    epsilon: PositiveFloat
    form: Form = "permute-and-flip"
    offset: tuple[float, ...] | None = None

    name = "noisy-min"
    on_grid = True
    takes = (Capped,)

    @property
    def event(self) -> Event:
        """ε' of a pure answer, or the ρ of its bounded range."""
        if self.form == "exponential":
            return Event(kind="zcdp", rho=self.epsilon**2 / 8.0)
        return Event(kind="pure", epsilon=self.epsilon)

    def draws(
        self, *, template: Tree, sensitivity: float, key: Key, granularity: float | None = None
    ) -> Iterator[ExactDraws]:
        """Yield where its bits come from: how many are needed hangs on the sum."""
        yield ExactDraws(key)

    def release(self, total: PartialSum, drawn: ExactDraws, share: float) -> int:
        """Return the index.

        Raises:
            ValueError: If the sum lies on no grid: it was not bounded by `Capped`.
        """
        scores, cap = _scores(total, self.offset)
        return choose(scores, Fraction(self.epsilon) / cap, self.form, drawn)


def _scores(total: PartialSum, offset: tuple[float, ...] | None) -> tuple[list[int], int]:
    """Return the sums in whole granularities, and how many of them one contribution has at most."""
    if total.granularity is None:
        raise ValueError("a noisy minimum is of whole numbers; bound contributions by Capped")
    (sums,) = tree.to_dense(total.total).values()
    scores = [int(number) for number in sums.reshape(-1)]
    if offset is not None:
        if len(offset) != len(scores) or not all(map(math.isfinite, offset)):
            raise ValueError(f"an offset of {offset!r} does not fit {len(scores)} sums")
        moved = (round(Fraction(own) / Fraction(total.granularity)) for own in offset)
        scores = [score + own for score, own in zip(scores, moved, strict=True)]
    return scores, most_each(len(scores))


def choose(scores: Sequence[int], rate: Fraction, form: Form, draws: ExactDraws) -> int:
    """Return an index j with the probability of a form, where P(heads) is exp(-rate (Ω_j - min Ω)).

    Args:
        scores: Ω, whole numbers.
        rate: ε' over the largest whole number that one contribution adds.
        form: "permute-and-flip" goes through the candidates in random order, "exponential" draws
            one more each time; the first that its Bernoulli draw accepts is it.
        draws: Uniform bits.
    """
    least = min(scores)
    order = list(range(len(scores)))
    while True:
        place = draws.below(len(order))
        index = order[place]
        if draws.heads(rate * (scores[index] - least)):
            return index
        if form == "permute-and-flip":
            order[place] = order[-1]
            order.pop()


class ExactDraws:
    """Exact draws from a key's uniform words. Used once.

    Reference: Canonne, Kamath and Steinke (2020), Algorithm 1, for exp(-x) of a rational x.
    """

    __slots__ = ("_words",)

    def __init__(self, key: Key) -> None:
        blocks = (key.words(_WORDS, stream) for stream in count())
        self._words = (int(word) for words in blocks for word in words[::-1])

    def below(self, number: int) -> int:
        """Return a uniform whole number from 0 to number - 1."""
        size = -(-number.bit_length() // 64)
        spare = 64 * size - (number - 1).bit_length()
        while True:
            value = 0
            for _ in range(size):
                value = value << 64 | next(self._words)
            value >>= spare
            if value < number:
                return value

    def heads(self, exponent: Fraction) -> bool:
        """Return True with probability exp(-exponent), of an exponent of at least 0."""
        while exponent > 1:
            if not self._heads_below_one(Fraction(1)):
                return False
            exponent -= 1
        return self._heads_below_one(exponent)

    def _heads_below_one(self, exponent: Fraction) -> bool:
        # The number of successes in a row of draws x/1, x/2, x/3, ... is even with exp(-x).
        drawn = 1
        while self.below(exponent.denominator * drawn) < exponent.numerator:
            drawn += 1
        return drawn % 2 == 1


MISTAKES = "mistakes"
"""The tensor of a total that says how many mistakes each candidate makes, whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateChoice(Privatizer):
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

    epsilon: PositiveFloat

    name = "private-choice"
    after_crash = "replay"
    takes = (OutputSensitivity,)

    @property
    def event(self) -> Event:
        """Pure ε."""
        return Event(kind="pure", epsilon=self.epsilon)

    def perturbed(self, total: PartialSum, *, sensitivity: float, key: Key) -> Params:
        """Return a candidate with noise on it, float32.

        Args:
            total: Its training's result.
            sensitivity: Δ, how far one of its own users who is there or not moves it.
            key: Secret, of this candidate alone.
        """
        noise = Sphere(epsilon=self.epsilon)
        (drawn,) = noise.draws(template=total.total, sensitivity=sensitivity, key=key)
        return noise.release(total, drawn, 1.0)

    def draws(self, *, template: Tree, sensitivity: float, key: Key) -> Iterator[ExactDraws]:
        """Yield where the bits of the choice come from."""
        yield ExactDraws(key)

    def release(self, total: PartialSum, drawn: ExactDraws, share: float) -> tuple[int, Params]:
        """Return which candidate was chosen, and its params, float32; the others are given up.

        Args:
            total: What `candidates` made of perturbed candidates and their mistakes.
            drawn: From `draws`.
            share: Not looked at: nothing is divided.
        """
        tensors = tree.to_dense(total.total)
        mistakes = [int(count) for count in tensors[MISTAKES]]
        index = choose(mistakes, Fraction(self.epsilon), "exponential", drawn)
        start = f"{index}/"
        return index, {
            name.removeprefix(start): array.astype(np.float32)
            for name, array in tensors.items()
            if name.startswith(start)
        }


def candidates(perturbed: list[Params], mistakes: list[int], num_users: int) -> PartialSum:
    """Return perturbed candidates and their mistakes as the total that a choice is made of."""
    total = {f"{n}/{name}": array for n, one in enumerate(perturbed) for name, array in one.items()}
    return PartialSum(total={**total, MISTAKES: np.array(mistakes, np.int64)}, num_users=num_users)
