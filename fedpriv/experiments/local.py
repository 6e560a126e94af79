"""Local training of a user, as a part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from fedpriv.experiments.options import Part, option, place
from fedpriv.ranges import Range
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
    """Steps along a decayed sum of the user's own gradients, from zero in every round."""

    kind: ClassVar[str] = "momentum"

    client_decay: float = option(
        0.9, "Weight of a user's earlier gradients; 0 is sgd.", Range.FRACTION
    )

    def make(self) -> Callable[..., Any] | None:
        """Return what makes the optimiser."""
        import torch  # not needed by compiled trainers

        from fedpriv.training.local.sgd import as_client_optimizer

        if not self.client_decay:
            return None
        return as_client_optimizer(partial(torch.optim.SGD, momentum=self.client_decay))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAdam(Part):
    """Adam on the user's own gradients, its moments from zero in every round."""

    kind: ClassVar[str] = "adam"

    client_beta1: float = option(0.9, "β₁ of Adam in local steps.", Range.FRACTION)
    client_beta2: float = option(0.999, "β₂ of Adam in local steps.", Range.FRACTION)
    client_adaptivity: float = option(1e-8, "Added to √v in local steps.", Range.ABOVE_ZERO)

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
    """Local SGD on a user's examples."""

    learning_rate: float = option(1.0, "Step size of local SGD.", Range.ABOVE_ZERO)
    batch_size: int = option(100, "Examples a local step.", Range.AT_LEAST_ONE)
    epochs: int = option(1, "Local passes.", Range.AT_LEAST_ONE)
    max_examples_per_user: int = option(256, "Cap of a user's work.", Range.AT_LEAST_ONE)
    local_steps: int | None = option(
        None, "Steps of every user that has examples, in as many passes as it takes; none for "
        "those of the epochs.", Range.AT_LEAST_ONE, neutral=True,
    )  # fmt: skip
    proximal_mu: float = option(
        0.0, "μ of FedProx: local steps are of loss + μ/2 ‖w - round's params‖²; 0 is FedAvg.",
        Range.AT_LEAST_ZERO, neutral=True,
    )  # fmt: skip
    client_optimizer: ClientOptimizers = place(
        PlainSteps(), "What a user's local steps are taken by.", neutral=True
    )
    rate_schedule: Literal["constant", "cosine"] = option(
        "constant", "Of the local learning rate over rounds.", neutral=True
    )
    warmup_rounds: int = option(
        0, "Rounds in which the local learning rate rises to its value.", Range.AT_LEAST_ZERO,
        neutral=True,
    )  # fmt: skip
    dropout_rate: float = option(
        0.0, "Share of drawn users who simulate not answering: each contributes zero, and the "
        "denominator stays. In simulation only.", Range.FRACTION, neutral=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check every option, and that a user's work is said once."""
        Part.__post_init__(self)
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
