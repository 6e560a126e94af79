"""Centralised training as federated rounds: an example is a user with one record and one step.

The roster is the list of examples, a cohort is a Poisson batch, an update is minus a gradient.
Bound, sum, noise, plan, accountant, server optimisers, ledger and report are those of the federated
path; only the stacks are made another way, since a vector a user would be a gradient an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedpriv.rng import Key
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.bounded_sum import Stack
from fedpriv.training.work import Attempt, Trainer, Users, as_positions
from fedpriv.tree import Params

#: Positions in a training set, int64 `(b,)`, or groups of them (a list, none empty).
Examples = np.ndarray | Sequence[np.ndarray]


class ExampleGradients(ABC):
    """A model on a training set, seen one example at a time.

    An example's update is minus its gradient, so that the server adds what it is given, as in a
    federated round with one local step of rate 1.

    One that can compute elsewhere may besides have `on_device(device)`, from a name such as
    "cuda:0" to the same model on the same examples there (`gradients_on`), and
    `on_synthetic(number)`, which returns the same model on so many synthetic examples.

    Attributes:
        exact: Whether no bit of an example's update depends on who else is in the batch. Sums of
            others are on no grid: an example would move them by more than its contribution.
    """

    __slots__ = ()

    exact: ClassVar[bool] = False

    @abstractmethod
    def stacks(self, params: Params, index: Examples, key: Key | None = None) -> Iterator[Stack]:
        """Yield -∇f_i(params) of examples, or the means of -∇f_i over groups, not bounded yet.

        Args:
            params: float32, not changed.
            index: Distinct positions in the training set, or groups of them (micro-batches); may
                be empty.
            key: For models that draw at random while they train, as dropout does.

        Raises:
            ValueError: If a group is empty.
        """

    @abstractmethod
    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over examples, float32: for public data, nothing bounded."""

    def check_losses(self) -> None:
        """Refuse losses of which one depends on another example; nothing to check by default.

        Raises:
            ValueError: If that is so. The training set is not read.
        """
        return


def gradients_on(
    device: str | None, gradients: ExampleGradients, *, rounded: bool = False
) -> ExampleGradients:
    """Return a model on its training set, computed on a device; as it is for None.

    Args:
        device: Such as "cpu" or "cuda:0".
        gradients: Of the model.
        rounded: Whether their sums are to be rounded to a grid.

    Raises:
        ValueError: If it computes nowhere else, there is no such device here, or its sums there are
            to be rounded and are not exact.
    """
    if device is None:
        return gradients
    move = getattr(gradients, "on_device", None)
    if move is None:
        raise ValueError(
            f"device {device!r}: {type(gradients).__name__} has no on_device(device) that returns "
            "it on another device; give it one, or leave the device out"
        )
    moved: ExampleGradients = move(device)
    if rounded and not moved.exact:
        raise ValueError(
            f"device {device!r}: updates of {type(gradients).__name__} depend on the batch there, "
            "in their last bits, and are to be rounded to a grid (exact-sum true, or method "
            "'agd'); leave one of the two out"
        )
    return moved


def example_ids(num_examples: int) -> tuple[str, ...]:
    """Return the roster of a training set: "0", "1", ... by position."""
    return tuple(map(str, range(num_examples)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralSum(Trainer):
    """Examples as users: a batch of one training set, or its micro-batches.

    Attributes:
        gradients: The model on the private training set.
        num_examples: In that set.
        num_groups: Micro-batches of a round, or None to bound every example alone.
        blank: bool (num_examples,), which examples contribute zero, drawn or not; None for none.

    Guarantees:
        * Alone: adding or removing one example moves the sum by at most the bound's l2_bound, to
          float64's rounding. Of a module the others' gradients move in their last bits, too
          (`fedpriv.training.per_example.module.ModuleGradients`).
        * In micro-batches: by at most twice that. Every example of the set has a place in one of
          the groups by an independent draw, whether it takes part or not, so that one that joins or
          leaves changes one group and no other. (Groups filled in the order of arrival would all
          shift.) A micro-batch with a gradient that is not finite contributes zero, as one.
    """

    gradients: ExampleGradients = field(repr=False)
    num_examples: int
    num_groups: int | None = None
    blank: np.ndarray | None = field(default=None, repr=False)

    def stacks(self, request: SumRequest, attempt: Attempt, users: Users) -> Iterator[Stack]:
        """Yield the updates of the drawn examples, or their means over micro-batches.

        Raises:
            ValueError: If the bound is on a grid, and the updates are not exact.
        """
        index, key = as_positions(users.ids), attempt.key
        if attempt.bound.granularity is not None and not self.gradients.exact:
            raise ValueError(
                f"updates of {type(self.gradients).__name__} depend on the batch in their last "
                "bits: their sum is on no grid (exact-sum false)"
            )
        if self.blank is not None:
            index = index[~self.blank[index]]
        examples = index if self.num_groups is None else self._groups(self.num_groups, index, key)
        yield from self.gradients.stacks(request.params, examples, key)

    def _groups(self, number: int, index: np.ndarray, key: Key) -> list[np.ndarray]:
        draws = key.fold("micro-batches").generator()
        group = draws.integers(number, size=self.num_examples)[index]
        return [index[group == place] for place in np.unique(group)]


def public_gradient(
    public: ExampleGradients, num_examples: int, batch_size: int | None
) -> Callable[[Params, Key], Params]:
    """Return the gradient of a random public batch, or of all public examples (None).

    The batch is a uniform subset without replacement: public data need no amplification.

    Raises:
        ValueError: If the batch is larger than the public set.
    """
    everything = np.arange(num_examples)
    if batch_size is not None and not 1 <= batch_size <= num_examples:
        raise ValueError(
            f"a public batch of {batch_size} cannot be drawn from {num_examples} public examples; "
            "lower public-batch"
        )

    def gradient(params: Params, key: Key) -> Params:
        if batch_size is None:
            return public.gradient(params, everything, key)
        index = key.generator().choice(num_examples, batch_size, replace=False, shuffle=False)
        return public.gradient(params, np.sort(index), key)

    return gradient


def warm_start(
    public: ExampleGradients,
    num_examples: int,
    params: Params,
    key: Key,
    *,
    epochs: int,
    learning_rate: float,
    batch_size: int = 20,
) -> Params:
    """Return params after epochs of plain SGD on public examples, shuffled again for each."""
    rate = np.float32(learning_rate)
    params = {name: array.copy() for name, array in params.items()}
    for epoch in range(epochs):
        order = key.fold(epoch).generator().permutation(num_examples)
        for first in range(0, num_examples, batch_size):
            batch = np.sort(order[first : first + batch_size])
            found = public.gradient(params, batch, key.fold(epoch).fold(first))
            for name, array in found.items():
                params[name] -= rate * array
    return params
