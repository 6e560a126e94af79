"""Any model with gradients on public examples, by Adam."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedpriv import optimizers
from fedpriv.rng import Key
from fedpriv.training.evaluate import Metrics
from fedpriv.tree import Params

BATCH_SIZE = 32
# One of so many public examples is kept back to choose settings by.
_ONE_IN = 5


class Gradient(Protocol):
    """The mean gradient of examples at these positions."""

    def __call__(self, params: Params, index: np.ndarray, key: Key) -> Params:
        """Return it, float32."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientLearner:
    """A `fedpriv.training.in_public.learning.PublicLearner` of anything that has gradients.

    Attributes:
        num_examples: How many examples it learns from.
        begun: The params before.
        gradient: Of their loss.
        key: Orders the examples, and is folded for what a model draws.
        measured: From params to metrics on examples held out.
        rates: The learning rates that are worth a try.
        batch_size: Examples of a step.
    """

    num_examples: int
    begun: Params = field(repr=False)
    gradient: Gradient = field(repr=False)
    key: Key
    measured: Callable[[Params], Metrics | None] = field(repr=False)
    rates: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    batch_size: int = BATCH_SIZE

    def init(self) -> Params:
        """Return the params before."""
        return self.begun

    def passes(self, learning_rate: float) -> Iterator[Params]:
        """Yield the params after each pass."""
        optimizer = optimizers.adam(learning_rate)
        params = {name: array.copy() for name, array in self.begun.items()}
        state, number = optimizer.init(params), 0
        while True:
            order = self.key.fold(number).generator().permutation(self.num_examples)
            for first in range(0, self.num_examples, self.batch_size):
                batch = np.sort(order[first : first + self.batch_size])
                found = self.gradient(params, batch, self.key.fold(number).fold(first))
                step, state = optimizer.next({n: -g for n, g in found.items()}, state)
                params = {name: params[name] + step[name] for name in params}
            number += 1
            yield params

    def measure(self, params: Params) -> Metrics | None:
        """Return metrics on examples held out."""
        return self.measured(params)


def apart(num_examples: int, key: Key) -> tuple[np.ndarray, np.ndarray]:
    """Return positions to learn from, and those of a fifth that is kept back; sorted.

    Which they are depends on the key and on how many examples there are.
    """
    order = key.fold("kept back").generator().permutation(num_examples)
    cut = max(1, num_examples // _ONE_IN)
    return np.sort(order[cut:]), np.sort(order[:cut])


def learner_of(
    num_examples: int,
    *,
    choosing: bool,
    key: Key,
    begun: Params,
    gradient: Gradient,
    measure: Callable[[Params, np.ndarray], Metrics | None],
) -> GradientLearner | None:
    """Return what learns from public examples that have positions; None of fewer than two.

    Args:
        num_examples: How many there are.
        choosing: Whether a fifth is kept back and measured on; else nothing is measured.
        key: Keeps some back, orders the others, and is folded for what a model draws.
        begun: The params before.
        gradient: Of the loss of examples at some of these positions.
        measure: From params and positions to metrics.
    """
    if num_examples < 2:
        return None
    learnt, seen = np.arange(num_examples), np.arange(0)
    if choosing:
        learnt, seen = apart(num_examples, key)

    def of_learnt(params: Params, index: np.ndarray, key: Key) -> Params:
        return gradient(params, learnt[index], key)

    return GradientLearner(
        num_examples=len(learnt),
        begun=begun,
        gradient=of_learnt,
        key=key.fold("in public"),
        measured=lambda params: measure(params, seen) if len(seen) else None,
    )
