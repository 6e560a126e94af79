"""Local training of a user, as a part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from fedpriv.parts import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    Part,
    PositiveFloat,
    PositiveInt,
)
from fedpriv.training.local.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSteps(Part):
    """Plain steps."""

    kind: ClassVar[str] = "sgd"

    def make(self) -> Callable[..., Any] | None:
        """Return what makes the optimiser; None for the trainer's own."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMomentum(Part):
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
class ClientAdam(Part):
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


ClientOptimizers = PlainSteps | ClientMomentum | ClientAdam


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd(Part):
    """Local SGD on a user's examples.

    Attributes:
        learning_rate: Step size of local SGD.
        batch_size: Examples a local step.
        epochs: Local passes.
        max_examples_per_user: Cap of a user's work.
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
    client_optimizer: ClientOptimizers = PlainSteps()
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

    def schedule(self) -> Schedule:
        """Return the schedule of local steps."""
        return Schedule(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            max_examples=self.max_examples_per_user,
            num_steps=self.local_steps,
            proximal=self.proximal_mu,
            optimizer=self.client_optimizer.make(),
        )

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
