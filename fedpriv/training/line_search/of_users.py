"""A user's mean loss at every step size along a direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedpriv.rng import Key
from fedpriv.training.line_search.candidates import LOSSES, taken_apart
from fedpriv.training.local.trainer import Examples
from fedpriv.training.work import UserByUser
from fedpriv.tree import Params, Tree


@runtime_checkable
class KnowsLossesAlong(Protocol):
    """A task that evaluates a user's examples at several points on a line."""

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], examples: Any
    ) -> np.ndarray:
        """Return the mean loss over the examples at params + size · direction, float64 (sizes,).

        Losses are at least 0.

        Args:
            params: float32, not changed.
            direction: float32, of the same names and shapes.
            sizes: Step sizes.
            examples: Of one user, at least one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossesAlong:
    """Asks a task for one user's losses. Capped afterwards, by the mechanism's bound.

    Attributes:
        task: Knows losses.
        max_examples: A user with more is evaluated on a random subset of so many.
    """

    task: KnowsLossesAlong = field(repr=False)
    max_examples: int

    #: Nothing of it ever changes, so threads may share it as far as they may share the task.
    @property
    def thread_safe(self) -> bool:
        """True: it keeps nothing."""
        return True

    def train(self, params: Params, examples: Examples, key: Key) -> Tree:
        """Return the losses under the name of the sums; of a user without examples zeros."""
        own, direction, sizes = taken_apart(params)
        if len(examples) > self.max_examples:
            chosen = key.generator().permutation(len(examples))[: self.max_examples]
            examples = examples.take(chosen)
        if not len(examples):
            return {LOSSES: np.zeros(len(sizes), np.float32)}
        with np.errstate(over="ignore", invalid="ignore"):  # refused whole by the bound
            found = self.task.losses_along(own, direction, [float(s) for s in sizes], examples)
            return {LOSSES: np.asarray(found, np.float32)}


def losses_work(task: KnowsLossesAlong, max_examples: int, number: int) -> UserByUser:
    """Return the work that sums users' losses at so many step sizes."""
    return UserByUser(
        trainer=LossesAlong(task=task, max_examples=max_examples),
        shapes={LOSSES: np.zeros(number, np.float32)},
    )
