"""Schedule of local training: the capped amount of work that each user does.

A `LocalTrainer` maps (params, one user's examples, a key) to an update, `local - global`. Its work
is capped (`max_examples`, `batch_size`, `epochs` are public), so neither time nor memory follows
the size of a user beyond the cap. It never clips and never adds noise: bounding is the
mechanism's, once, on the whole update.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.ranges import positive_float, positive_int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Amount of a user's work: public, the same for every user.

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
        positive_float("local learning rate", self.learning_rate)
        positive_int("local_batch_size", self.batch_size)
        positive_int("local_epochs", self.epochs)
        positive_int("max_examples_per_user", self.max_examples)

    def choose(self, num_examples: int, rng: np.random.Generator) -> np.ndarray:
        """Return positions of at most `max_examples` examples in random order."""
        return rng.permutation(num_examples)[: self.max_examples]

    def steps(self, num_chosen: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of all epochs' examples in order, and where each step starts.

        Returns:
            int64 `(epochs * num_chosen,)` and int64 `(num_steps + 1,)`.
        """
        # The chosen examples come shuffled, so the first pass takes them as they are.
        again = (rng.permutation(num_chosen) for _ in range(1, self.epochs))
        epochs = [np.arange(num_chosen), *again]
        starts = np.arange(0, num_chosen, self.batch_size)
        firsts = [starts + epoch * num_chosen for epoch in range(self.epochs)]
        return np.concatenate(epochs), np.append(np.concatenate(firsts), self.epochs * num_chosen)

    def batches(self, num_chosen: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return the positions of every step's batch, all epochs in order."""
        order, starts = self.steps(num_chosen, rng)
        return [order[a:b] for a, b in itertools.pairwise(starts.tolist())]
