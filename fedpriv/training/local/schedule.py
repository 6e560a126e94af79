"""Local SGD of a user: the capped amount of work, the same for everyone, and its optimiser.

A trainer maps params, one user's examples and a key to an update, `local - global`. Its work is
capped (`max_examples_per_user`, `batch_size`, `epochs` are public), so neither time nor memory
follows the size of a user beyond the cap. It never clips and never adds noise: bounding is the
mechanism's, once, on the whole update.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from fedpriv.parts import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    Part,
    PositiveFloat,
    PositiveInt,
)
from fedpriv.training.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSteps(Part):
    """Plain steps; base of what takes a user's local steps otherwise."""

    kind: ClassVar[str] = "sgd"

    def make(self) -> Callable[..., Any] | None:
        """Return a maker of `learning_rate=` and `multiplier=`; None for the trainer's own."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMomentum(PlainSteps):
    """Steps along a decayed sum of the user's own gradients, from zero in every round.

    Attributes:
        client_decay: Weight of a user's earlier gradients; 0 is sgd.
    """

    kind: ClassVar[str] = "momentum"

    client_decay: Fraction = 0.9

    def make(self) -> Callable[..., Any] | None:
        """Return what makes the optimiser."""
        import torch  # not needed by compiled trainers

        from fedpriv.training.local.sgd import as_client_optimizer

        if not self.client_decay:
            return None
        return as_client_optimizer(partial(torch.optim.SGD, momentum=self.client_decay))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAdam(PlainSteps):
    """Adam on the user's own gradients, its moments from zero in every round.

    Attributes:
        client_beta1: β₁ of Adam in local steps.
        client_beta2: β₂ of Adam in local steps.
        client_adaptivity: Added to √v in local steps.
    """

    kind: ClassVar[str] = "adam"

    client_beta1: Fraction = 0.9
    client_beta2: Fraction = 0.999
    client_adaptivity: PositiveFloat = 1e-8

    def make(self) -> Callable[..., Any] | None:
        """Return what makes the optimiser."""
        import torch

        from fedpriv.training.local.sgd import as_client_optimizer

        betas = self.client_beta1, self.client_beta2
        return as_client_optimizer(
            partial(torch.optim.Adam, betas=betas, eps=self.client_adaptivity)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd(Part):
    """Local SGD on a user's examples.

    Attributes:
        learning_rate: Step size of local SGD.
        batch_size: Examples a local step.
        epochs: Local passes.
        max_examples_per_user: Cap of a user's work: of more examples a random subset, chosen again
            at every participation.
        local_steps: Steps of every user that has examples, in as many passes as it takes; none for
            those of the epochs.
        proximal_mu: μ of FedProx: local steps are of loss + μ/2 ‖w - round's params‖²; 0 is FedAvg.
        client_optimizer: What a user's local steps are taken by.
        rate_schedule: Of the local learning rate over rounds.
        warmup_rounds: Rounds in which the local learning rate rises to its value.
        dropout_rate: Share of drawn users who simulate not answering: each contributes zero, and
            the denominator stays. In simulation only.
    """

    learning_rate: PositiveFloat = 1.0
    batch_size: PositiveInt = 100
    epochs: PositiveInt = 1
    max_examples_per_user: PositiveInt = 256
    local_steps: PositiveInt | None = None
    proximal_mu: NonNegativeFloat = 0.0
    client_optimizer: PlainSteps = PlainSteps()
    rate_schedule: Literal["constant", "cosine"] = "constant"
    warmup_rounds: NonNegativeInt = 0
    dropout_rate: Fraction = 0.0

    def check(self) -> None:
        """Refuse a user's work that is said twice."""
        if self.local_steps is not None and self.epochs != 1:
            raise ValueError(
                f"local-steps {self.local_steps} and epochs {self.epochs} both say how much a user "
                "does; leave one of them out"
            )

    @property
    def most_steps(self) -> int:
        """Number of steps of a user with as many examples as are used: no one takes more."""
        if self.local_steps is not None:
            return self.local_steps
        return self.epochs * -(-self.max_examples_per_user // self.batch_size)

    @property
    def optimizer(self) -> Callable[..., Any] | None:
        """What makes a user's optimiser; None for the trainer's own."""
        return self.client_optimizer.make()

    def rate_factor(self, num_rounds: int) -> Callable[[int], float] | None:
        """Return the factor of the learning rate in each round, from 1; None where it stays.

        Args:
            num_rounds: Planned.

        Raises:
            ValueError: If no round is left after those in which the rate rises.

        >>> factor = LocalSgd(rate_schedule="cosine", warmup_rounds=2).rate_factor(6)
        >>> [round(factor(t), 3) for t in range(1, 7)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
        """
        rising = self.warmup_rounds
        if rising >= num_rounds and rising:
            raise ValueError(
                f"warmup-rounds {rising} is not below the {num_rounds} rounds; give fewer"
            )
        if not rising and self.rate_schedule == "constant":
            return None

        def factor(round_num: int) -> float:
            if round_num <= rising:
                return round_num / rising
            if self.rate_schedule == "constant":
                return 1.0
            done = (round_num - 1 - rising) / (num_rounds - rising)
            return 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0 - 1e-3)))

        return factor

    def check_taken(self, trainer: Work, *, rates: bool = False) -> None:
        """Refuse what a trainer would leave out of its local steps.

        Args:
            trainer: `takes` is what it knows, and `otherwise` says what to do about the rest.
            rates: Whether the learning rate follows the rounds.

        Raises:
            ValueError: If the schedule asks for more.
        """
        asked = {
            "proximal": (self.proximal_mu != 0.0, f"proximal-mu {self.proximal_mu:g}"),
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
        passes = self.epochs if self.local_steps is None else self.local_steps
        return passes == 1 and num_examples <= min(self.batch_size, self.max_examples_per_user)

    def choose(self, num_examples: int, rng: np.random.Generator) -> np.ndarray:
        """Return positions of at most `max_examples_per_user` examples in random order."""
        if self.is_one_batch(num_examples):
            return np.arange(num_examples)
        return rng.permutation(num_examples)[: self.max_examples_per_user]

    def steps(self, num_chosen: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of all epochs' examples in order, and where each step starts.

        Returns:
            int64 `(epochs * num_chosen,)` and int64 `(num_steps + 1,)`; with `local_steps` the
            examples of these alone.
        """
        # The chosen examples come shuffled, so the first pass takes them as they are.
        starts = np.arange(0, num_chosen, self.batch_size)
        passes = self.epochs
        if self.local_steps is not None:
            passes = max(1, -(-self.local_steps // max(1, len(starts))))
        again = (rng.permutation(num_chosen) for _ in range(1, passes))
        order = np.concatenate([np.arange(num_chosen), *again])
        firsts = np.concatenate([starts + number * num_chosen for number in range(passes)])
        ends = np.append(firsts, passes * num_chosen)
        if self.local_steps is None:
            return order, ends
        ends = ends[: self.local_steps + 1]
        return order[: ends[-1]], ends

    def batches(self, num_chosen: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Return the positions of every step's batch, all epochs in order."""
        order, starts = self.steps(num_chosen, rng)
        return [order[a:b] for a, b in itertools.pairwise(starts.tolist())]
