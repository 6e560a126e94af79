"""What one user does: local SGD, exactly for as much work as the plan allows.

A `LocalTrainer` maps (params, one user's examples, a key) to an update, `local - global`. Its work
is capped (`max_examples`, `batch_size`, `epochs` are public), so neither time nor memory follows
the size of a user beyond the cap. It never clips and never adds noise: bounding is the
mechanism's, once, on the whole update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedpriv.data.examples import TagExamples
from fedpriv.rng import Key
from fedpriv.training.sparse_rows import SparseRows
from fedpriv.tree import Params, RowSparse, Tree


class LocalTrainer(Protocol):
    """Trains one user."""

    def train(self, params: Params, examples: Any, key: Key) -> Tree:
        """Return the user's raw update; `params` are not changed."""
        ...


class Examples(Protocol):
    """One user's examples: they can be counted and picked from."""

    def __len__(self) -> int: ...

    def take(self, index: np.ndarray) -> Any:
        """Return the examples at these positions, in this order."""
        ...


def _positive_int(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} {value!r} must be a whole number of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How much a user works: public, the same for every user.

    Attributes:
        learning_rate: Local step size.
        batch_size: Examples a step.
        epochs: Passes over the user's chosen examples.
        max_examples: A user with more contributes a random subset of this many, chosen anew at
            every participation.
    """

    learning_rate: float
    batch_size: int = 100
    epochs: int = 1
    max_examples: int = 256

    def __post_init__(self) -> None:
        if not (np.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"local learning rate {self.learning_rate!r} must be positive")
        _positive_int("local_batch_size", self.batch_size)
        _positive_int("local_epochs", self.epochs)
        _positive_int("max_examples_per_user", self.max_examples)

    def choose(self, num_examples: int, rng: np.random.Generator) -> np.ndarray:
        """Return positions of at most `max_examples` examples in random order."""
        return rng.permutation(num_examples)[: self.max_examples]

    def batches(self, num_chosen: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return the positions of every step's batch, all epochs in order."""
        steps = []
        for epoch in range(self.epochs):
            # The chosen examples come shuffled, so the first pass takes them as they are.
            order = None if epoch == 0 else rng.permutation(num_chosen)
            for start in range(0, num_chosen, self.batch_size):
                stop = min(start + self.batch_size, num_chosen)
                steps.append(np.arange(start, stop) if order is None else order[start:stop])
        return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseSoftmaxTrainer:
    """Local SGD for softmax regression on bags of words, touching the user's own rows only.

    Every step, update and norm works on the rows of the words the user wrote, and equals the
    dense computation to rounding: rows of words that never occur have gradient zero.

    Attributes:
        schedule: How much work.
        inputs: "tff" for mean one-hot words, "unit-norm" for rows of unit l2 norm.
        multiplier: 1/A for each word, float32 `(num_words,)`, applied to the kernel's gradient at
            every local step and not to the bias (AdaDPS Algorithm 3, line 6); None for plain SGD.
    """

    schedule: Schedule
    inputs: str = "tff"
    multiplier: np.ndarray | None = field(default=None, repr=False)

    def train(self, params: Params, examples: TagExamples, key: Key) -> Tree:
        """Return the update of `kernel` (row-sparse) and `bias` (dense), float32.

        A user without examples returns zeros.
        """
        kernel, bias = params["kernel"], params["bias"]
        rng = key.generator()
        chosen = examples.take(self.schedule.choose(len(examples), rng))
        rows, positions = _own_rows(chosen.indices, kernel.shape[0])
        values = chosen.values(self.inputs)
        steps = values if self.multiplier is None else values * self.multiplier[chosen.indices]
        words = SparseRows(indptr=chosen.indptr, indices=chosen.indices, values=values)
        # Only the change is kept, and only on the user's own rows: the global kernel is read in
        # place, and what is returned was never the small difference of two large numbers.
        change = np.zeros((len(rows), kernel.shape[1]), np.float32)
        own_bias = bias.copy()
        for step, batch in enumerate(self.schedule.batches(len(chosen), rng)):
            taken, entries = words.take(batch)
            own = taken.over(positions[entries])
            logits = taken.times(kernel)
            if step:
                own.add_times(change, logits)
            residual = softmax_residual(logits, own_bias, chosen.labels[batch])
            residual *= np.float32(-self.schedule.learning_rate / len(batch))
            own.with_values(steps[entries]).add_transposed_times(residual, change)
            own_bias += residual.sum(axis=0)
        own_bias -= bias
        update = RowSparse(rows=rows, values=change, num_rows=kernel.shape[0])
        return {"bias": own_bias, "kernel": update}


def _own_rows(indices: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct rows and each entry's position among them."""
    present = np.zeros(num_rows, bool)
    present[indices] = True
    rows = np.flatnonzero(present)
    position = np.empty(num_rows, np.int32)
    position[rows] = np.arange(len(rows), dtype=np.int32)
    return rows.astype(np.int64, copy=False), position[indices]


def softmax_residual(logits: np.ndarray, bias: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return softmax(logits + bias) minus one-hot labels, in the buffer of `logits`.

    Args:
        logits: float32 `(n, num_classes)`, overwritten.
        bias: float32 `(num_classes,)`.
        labels: int `(n,)`.
    """
    logits += bias
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    logits[np.arange(len(labels)), labels] -= 1
    return logits
