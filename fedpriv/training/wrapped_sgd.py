"""Permutation SGD by user-supplied code: its inputs, and checks of its result.

Only its result is seen here. That it goes through the rows in the order, the steps and the batches
it was given, and takes plain gradient steps on the loss whose constants were stated, is taken on
trust; that it ends no further away than any such training can is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv import tree
from fedpriv.sums import PartialSum
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.convex_losses import Constants
from fedpriv.training.permutation_sgd import Passes, shortened, updates_of
from fedpriv.training.work import Attempt, Users, Work

# What a result may be longer than its path, for the rounding on the way.
_ROUNDING = 1.0 + 2.0**-30
_WHOLE = 512  # terms of an update's sums that `Passes.sensitivity` leaves room for


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The order, the steps and the start of one training. None of it depends on any row.

        for positions, rate in walk:
            w -= rate * sum(gradients(rows[positions])) / walk.batch_size

    Attributes:
        start: Where training starts, float64 copies.
        rates: η of every update, over all passes; it is not to be written to, nor are the orders.
        batch_size: b, by which every batch's sum is divided, a shorter last one's too.
        radius: R of the ball that params are projected onto after every step; None for none.
        inputs: r, to which rows are shortened (`shortened`).
        orders: Row numbers, one order a pass.
        seed: For a library that draws its order itself: below 2^31, the same when it is replayed.
    """

    start: dict[str, np.ndarray] = field(repr=False)
    rates: np.ndarray = field(repr=False)
    batch_size: int
    radius: float | None
    inputs: float
    orders: tuple[np.ndarray, ...] = field(repr=False)
    seed: int = field(repr=False)

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        """Yield the row numbers and the step size of each update."""
        return updates_of(self.orders, self.rates, self.batch_size)

    def shortened(self, rows: Any) -> Any:
        """Return rows within ‖x‖₂ <= r, as `shortened`."""
        return shortened(rows, self.inputs)


Train = Callable[[Walk], Mapping[str, np.ndarray]]
"""A whole training: from a walk to the params that it ends with, float64 by name."""


def reach(rates: np.ndarray, constants: Constants, start: float) -> float:
    """Return the largest norm that a training of these steps can end with.

    Args:
        rates: η of every update.
        constants: Of the loss.
        start: ‖w₀‖.
    """
    norm = start
    for rate in rates.tolist():
        norm = (1.0 - rate * constants.convexity) * norm + rate * constants.lipschitz
    return norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped(Work):
    """A whole training by user-supplied code, whose "sum" is the params that it ends with.

    Attributes:
        train: The training.
        constants: Of its loss.
        passes: Number of passes, batches and step sizes that it is asked for.
        num_examples: m, rows there are.
    """

    train: Train = field(repr=False)
    constants: Constants
    passes: Passes
    num_examples: int

    def sensitivity(self, num_params: int, start: float) -> float:
        """Return Δ of the result, for a row that is there or not, with room for rounding.

        Args:
            num_params: d, over all tensors.
            start: ‖w₀‖₂.
        """
        terms = max(_WHOLE, num_params)
        return self.passes.sensitivity(
            self.constants,
            self.num_examples,
            relative_rounding=2.0**-53 * terms,
            start=start,
        )

    def answer(self, request: SumRequest, attempt: Attempt, users: Users) -> PartialSum:
        """Return the params, trained from those given in an order that the key draws.

        Raises:
            ValueError: If the result has other names, shapes or dtypes than the start, is not
                finite, or is longer than a training of these constants can make it.
        """
        key = attempt.key
        start = {name: array.astype(np.float64) for name, array in request.params.items()}
        rates = self.passes.rates(self.constants, self.num_examples)
        orders = self.passes.orders(self.num_examples, key.fold("order"))
        walk = Walk(
            start={name: array.copy() for name, array in start.items()},
            rates=_read_only(rates),
            batch_size=self.passes.batch_size,
            radius=self.passes.radius,
            inputs=self.constants.inputs,
            orders=tuple(map(_read_only, orders)),
            seed=int(key.fold("seed").words(1)[0] >> np.uint64(33)),
        )
        given = tree.to_dense(tree.check_like(start, self.train(walk)))
        found = {name: array.copy() for name, array in given.items()}
        for name, array in found.items():
            if array.dtype != np.float64:
                raise ValueError(
                    f"the training returned {name!r} in {array.dtype}: train in float64 from "
                    "walk.start, whose rounding Δ leaves room for"
                )
        most = reach(rates, self.constants, tree.l2_norm(start))
        if self.passes.radius is not None:
            most = min(most, max(self.passes.radius, tree.l2_norm(start)))
        if not tree.l2_norm(found) <= most * _ROUNDING:
            raise ValueError(
                "the training ended further away than any training of these constants, steps and "
                "ball can; nothing is released: shorten its rows (walk.shortened), divide by "
                "walk.batch_size, and check its loss and its steps"
            )
        return PartialSum(total=found, num_users=self.num_examples)


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a copy that says so if it is written to: it decides nothing here in any case."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy
