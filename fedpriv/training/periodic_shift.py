"""A data distribution that shifts periodically: sentences of questions against those of answers.

In each round every drawn user trains on a part of its sentences: those of questions stay with a
probability that the round's number decides, those of answers with the rest of it. The schedule is
public and looks at no data. It is told to users as a tensor next to the params, so that every
backend, and a run that goes on after a crash, does the same in a round of that number.

Periodic shift is that of Shejwalkar et al., "Recycling Scraps" (2025), whose abstract names it;
blocks and the smooth mixture follow Zhu et al., "Diurnal or Nocturnal?" (ICLR 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedpriv.datasets.stackexchange.sentence_store import KINDS
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.work import LocalTrainer, UserByUser, UserData
from fedpriv.tree import Params

SHARE = "share_of_questions"
"""What the tensor is called, float32 `(1,)`."""

ShiftKind = Literal["none", "blocks", "smooth"]
_QUESTION, _ANSWER = KINDS.index("question"), KINDS.index("answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A schedule over rounds.

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

    def tensors(self, round_num: int) -> Params:
        """Return what users are told in a round."""
        return {SHARE: np.array([self.share(round_num)], np.float32)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedUsers:
    """A `fedpriv.training.work.Work`: users train on the part of their sentences that a round has.

    Guarantees:
        * As of `UserByUser`: a user moves the sum by at most the bound, whatever is left of its
          sentences. Which are left depends on the round and on the user's key, and on no other
          user.

    Attributes:
        trainer: What a user does with the sentences that are left.
    """

    trainer: LocalTrainer

    @property
    def thread_safe(self) -> bool:
        """As the trainer's."""
        return UserByUser(trainer=self.trainer).thread_safe

    def template(self, params: Params) -> Params:
        """Return the params without what users are told."""
        return {name: array for name, array in params.items() if name != SHARE}

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        data: UserData | None,
        user_ids: Sequence[str],
        key: Key,
    ) -> PartialSum:
        """Return the sum of the users' bounded updates."""
        if data is None:
            raise ValueError("data None: a trainer of users needs their examples")
        if SHARE not in params:
            raise ValueError(f"a round tells no {SHARE!r}; leave shift at none with this algorithm")
        return UserByUser(trainer=self.trainer).partial_sum(
            params=self.template(params),
            bound=bound,
            data=_Mixed(data=data, share=float(params[SHARE][0]), key=key),
            user_ids=user_ids,
            key=key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixed:
    """The part of users' sentences that a round has, as `UserData`."""

    data: UserData = field(repr=False)
    share: float
    key: Key

    def examples(self, user_id: str) -> Any:
        own = self.data.examples(user_id)
        kept = np.full(len(own), 0.5)  # of a kind that the source does not say
        kept[own.kinds == _QUESTION] = self.share
        kept[own.kinds == _ANSWER] = 1.0 - self.share
        drawn = self.key.fold(user_id).fold("mixture").generator().random(len(own))
        return own.take(np.flatnonzero(drawn < kept))

    def num_examples(self, user_id: str) -> int:
        return self.data.num_examples(user_id)
