"""A data distribution that shifts periodically: sentences of questions against those of answers.

In each round every drawn user trains on a part of its sentences: those of questions stay with a
probability that the round's number decides, those of answers with the rest of it. The schedule is
public and looks at no data. Users get it as a tensor next to the params, so that every backend, and
a run that goes on after a crash, does the same in a round of that number.

Periodic shift is that of Shejwalkar et al., "Recycling Scraps" (2025), whose abstract names it. The
smooth mixture follows Zhu et al., "Diurnal or Nocturnal?" (ICLR 2022); blocks are the older
block-cyclic pattern, which that paper replaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedpriv.datasets.stackexchange.sentence_store import KINDS
from fedpriv.rng import Key
from fedpriv.training.algorithm import Context
from fedpriv.tree import Params

SHARE = "share_of_questions"
"""Name of the tensor that brings the share to users, float32 `(1,)`."""

_QUESTION, _ANSWER = KINDS.index("question"), KINDS.index("answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A schedule over rounds: users train on the part of their sentences that a round has.

    Guarantees:
        * Which sentences those are depends on the round and on the user's key, and on no other
          user.

    Attributes:
        kind: "blocks" takes questions alone for the first half of a period, then answers alone;
            "smooth" the share (1 + cos(2 π t / period)) / 2 of questions, t from 0.
        period: Rounds of a period, at least 2.

    Raises:
        ValueError: If the period is shorter.
    """

    kind: Literal["blocks", "smooth"]
    period: int

    def __post_init__(self) -> None:
        if self.kind not in ("blocks", "smooth"):
            raise ValueError(f"shift {self.kind!r} is not known; use blocks or smooth")
        if self.period < 2:
            raise ValueError(f"shift-period {self.period} must be at least 2 rounds")

    def share(self, round_num: int) -> float:
        """Return the share of questions in a round, counted from 1.

        >>> [Shift(kind="blocks", period=4).share(n) for n in range(1, 6)]
        [1.0, 1.0, 0.0, 0.0, 1.0]
        >>> [round(Shift(kind="smooth", period=4).share(n), 3) for n in range(1, 6)]
        [1.0, 0.5, 0.0, 0.5, 1.0]
        """
        place = (round_num - 1) % self.period
        if self.kind == "blocks":
            return 1.0 if 2 * place < self.period else 0.0
        return (1.0 + math.cos(2.0 * math.pi * place / self.period)) / 2.0

    def extra(self, round_num: int) -> Params:
        """Return the public tensors that users get in a round."""
        return {SHARE: np.array([self.share(round_num)], np.float32)}

    def select(self, context: Context, examples: Any, key: Key) -> Any:
        """Return the sentences that a round of this share of questions has.

        Raises:
            ValueError: If the round's context brings no share.
        """
        if SHARE not in context.extra:
            raise ValueError(f"no {SHARE!r} is given; leave shift at none with this algorithm")
        share = float(context.extra[SHARE][0])
        kept = np.full(len(examples), 0.5)  # of a kind that the source does not say
        kept[examples.kinds == _QUESTION] = share
        kept[examples.kinds == _ANSWER] = 1.0 - share
        drawn = key.fold("mixture").generator().random(len(examples))
        return examples.take(np.flatnonzero(drawn < kept))
