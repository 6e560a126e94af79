"""Canary users and canary examples: whose they are, and the real sums that add them.

Users are trained one by one and added by `UserByUser`, with its guard, its bound and its running
sum. Examples are those of a logistic regression, and added by the centralised path's `CentralSum`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from fedpriv.privacy.plan import Plan
from fedpriv.rng import Key
from fedpriv.training.per_example.example_sum import CentralSum, example_ids
from fedpriv.training.per_example.linear import LogisticGradients
from fedpriv.training.work import UserByUser, UserData, Work
from fedpriv.tree import Params, RowSparse, Tree

_LENGTH = 100.0
"""How long a canary's update is, over the bound: a bound that is not kept shows."""
_CANARY, _SIGN = "canary", "sign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """What a mechanism is run on.

    Attributes:
        roster: As many ids as the plan has users; the first ones are canaries.
        work: What sums the drawn ones.
        data: The users' records; None where the work holds them.
        params: From the sign of a round, 1 or -1, to what is asked with.
        coordinates: The tensor whose i-th element is canary i's.
        alternates: Whether updates change sign with the round.
    """

    roster: tuple[str, ...]
    work: Work
    data: UserData | None
    params: Callable[[float], Params]
    coordinates: str
    alternates: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """A `fedpriv.training.work.UserData` of users with one example: coordinate and direction."""

    pointed: Mapping[str, tuple[int, float]] = field(repr=False)

    def examples(self, user_id: str) -> tuple[int, float]:
        return self.pointed[user_id]

    def num_examples(self, user_id: str) -> int:
        return int(self.pointed[user_id][1] != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainer:
    """A `fedpriv.training.work.LocalTrainer`: an update along the user's own coordinate."""

    length: float

    def train(self, params: Params, examples: Any, key: Key) -> Tree:
        coordinate, direction = examples
        rows = np.array([coordinate] if direction else [], np.int64)
        value = self.length * direction * float(params[_SIGN][0])
        values = np.full((len(rows), 1), value, np.float32)
        return {_CANARY: RowSparse(rows=rows, values=values, num_rows=len(params[_CANARY]))}


def as_users(plan: Plan, directions: np.ndarray) -> Canaries:
    """Return canary users; in every second round their updates point the other way.

    Args:
        plan: The audited one.
        directions: float64 (n,), 1 or -1 of a user with records, 0 of one without.
    """
    number = len(directions)
    roster = tuple(f"canary-{place}" for place in range(plan.num_users))
    pointed = dict.fromkeys(roster[number:], (0, 0.0))
    pointed |= {roster[place]: (place, float(directions[place])) for place in range(number)}
    shapes = {_CANARY: np.zeros((number, 1), np.float32)}
    trainer = _Trainer(length=_LENGTH * plan.live_mechanism.l2_bound)
    return Canaries(
        roster=roster,
        work=UserByUser(trainer=trainer, shapes=shapes),
        data=_Records(pointed=pointed),
        params=lambda sign: {**shapes, _SIGN: np.array([sign], np.float32)},
        coordinates=_CANARY,
        alternates=True,
    )


def as_examples(plan: Plan, directions: np.ndarray) -> Canaries:
    """Return canary examples of a logistic regression whose weights are zero.

    An example's gradient lies along its own input, and a hundred-thousandth along the bias, which
    is not looked at.

    Args:
        plan: The audited one.
        directions: As `as_users`; -1 is an example of the other class.
    """
    number, num_examples = len(directions), plan.num_users
    scale = 2 * _LENGTH * max(plan.live_mechanism.l2_bound, 1000.0)
    present = np.flatnonzero(directions)
    x = sparse.csr_matrix(
        (np.full(len(present), scale, np.float32), (present, present)), (num_examples, number)
    )
    labels = np.zeros(num_examples, np.int64)
    labels[:number] = directions > 0
    shapes = {"weight": np.zeros(number, np.float32), "bias": np.zeros(1, np.float32)}
    return Canaries(
        roster=example_ids(num_examples),
        work=CentralSum(gradients=LogisticGradients(x, labels), num_examples=num_examples),
        data=None,
        params=lambda sign: shapes,
        coordinates="weight",
        alternates=False,
    )
