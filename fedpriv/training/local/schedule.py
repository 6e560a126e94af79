"""Schedule of local training: the capped amount of work that each user does.

A trainer maps params, one user's examples and a key to an update, `local - global`. Its work is
capped (`max_examples`, `batch_size`, `epochs` are public), so neither time nor memory follows
the size of a user beyond the cap. It never clips and never adds noise: bounding is the
mechanism's, once, on the whole update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.ranges import Range, finite_float, positive_float, positive_int
from fedpriv.training.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Amount of a user's work: public, the same for every user.

    Attributes:
        learning_rate: Local step size.
        batch_size: Examples a step.
        epochs: Passes over the user's chosen examples.
        max_examples: A user with more contributes a random subset of this many, chosen again at
            every participation.
        num_steps: Steps of every user that has examples, in as many passes as it takes, the last
            of them cut short; None for the steps of `epochs` passes.
        proximal: μ of FedProx: μ (w - round's params) is added to every gradient. 0 for FedAvg.
        optimizer: From `learning_rate=` and `multiplier=` to the client optimiser; None for the
            trainer's own, plain steps unless it says otherwise.
    """

    learning_rate: float
    batch_size: int = 100
    epochs: int = 1
    max_examples: int = 256
    num_steps: int | None = None
    proximal: float = 0.0
    optimizer: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        positive_float("local learning rate", self.learning_rate)
        positive_int("local_batch_size", self.batch_size)
        positive_int("local_epochs", self.epochs)
        positive_int("max_examples_per_user", self.max_examples)
        if self.num_steps is not None:
            positive_int("local_steps", self.num_steps)
        finite_float("proximal_mu", self.proximal, Range.AT_LEAST_ZERO)

    def check_taken(self, trainer: Work, *, rates: bool = False) -> None:
        """Refuse what a trainer would leave out of its local steps.

        Args:
            trainer: `takes` is what it knows, and `otherwise` says what to do about the rest.
            rates: Whether the learning rate follows the rounds.

        Raises:
            ValueError: If the schedule asks for more.
        """
        asked = {
            "proximal": (self.proximal != 0.0, f"proximal-mu {self.proximal:g}"),
            "optimizer": (self.optimizer is not None, "client-optimizer"),
            "rate": (rates, "rate-schedule or warmup-rounds"),
        }
        for name, (wanted, label) in asked.items():
            if wanted and name not in trainer.takes:
                raise ValueError(
                    f"{label}: {type(trainer).__name__} takes plain steps of one rate; "
                    f"{trainer.otherwise}"
                )

    def is_one_batch(self, num_examples: int) -> bool:
        """Return whether a user of so many takes a single step by all of them: nothing is drawn."""
        passes = self.epochs if self.num_steps is None else self.num_steps
        return passes == 1 and num_examples <= min(self.batch_size, self.max_examples)

    def choose(self, num_examples: int, rng: np.random.Generator) -> np.ndarray:
        """Return positions of at most `max_examples` examples in random order."""
        if self.is_one_batch(num_examples):
            return np.arange(num_examples)
        return rng.permutation(num_examples)[: self.max_examples]

    def steps(self, num_chosen: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of all epochs' examples in order, and where each step starts.

        Returns:
            int64 `(epochs * num_chosen,)` and int64 `(num_steps + 1,)`; with `num_steps` the
            examples of these alone.
        """
        # The chosen examples come shuffled, so the first pass takes them as they are.
        starts = np.arange(0, num_chosen, self.batch_size)
        passes = self.epochs
        if self.num_steps is not None:
            passes = max(1, -(-self.num_steps // max(1, len(starts))))
        again = (rng.permutation(num_chosen) for _ in range(1, passes))
        order = np.concatenate([np.arange(num_chosen), *again])
        firsts = np.concatenate([starts + number * num_chosen for number in range(passes)])
        ends = np.append(firsts, passes * num_chosen)
        if self.num_steps is None:
            return order, ends
        ends = ends[: self.num_steps + 1]
        return order[: ends[-1]], ends

    def batches(self, num_chosen: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return the positions of every step's batch, all epochs in order."""
        order, starts = self.steps(num_chosen, rng)
        return [order[a:b] for a, b in itertools.pairwise(starts.tolist())]
