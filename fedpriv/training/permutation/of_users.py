"""What users do in permutation SGD over users: full gradient steps on their own mean loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fedpriv import tree
from fedpriv.rng import Key
from fedpriv.training.permutation.constants import Constants
from fedpriv.training.work import CpuOnly, LocalTrainer, Shareable, UserByUser
from fedpriv.tree import Params, Tree

RATE = "rate"
"""The name of the tensor that brings an update's step size to users."""


@runtime_checkable
class KnowsConstants(Protocol):
    """A task whose users' mean loss is convex, and whose constants are known."""

    def constants(self, *, regulariser: float) -> Constants:
        """Return them, of the loss with a regulariser λ/2 ‖w‖² that the server applies."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedTrainer:
    """A trainer whose step size a query brings: its update, made at `rate`, is scaled to it.

    For several local steps the two must be the same: their sum is not proportional to the rate.

    Attributes:
        trainer: Takes full gradient steps of rate `rate`.
        rate: Its step size.
        local_steps: How many it takes.
    """

    trainer: LocalTrainer
    rate: float
    local_steps: int = 1

    @property
    def thread_safe(self) -> bool:
        """As the trainer's."""
        return isinstance(self.trainer, Shareable) and self.trainer.thread_safe

    @property
    def cpu_only(self) -> str:
        """As the trainer's."""
        return self.trainer.cpu_only if isinstance(self.trainer, CpuOnly) else ""

    def train(self, params: Params, examples: Any, key: Key) -> Tree:
        """Return the user's update.

        Raises:
            ValueError: If several steps were taken at another rate than is asked for.
        """
        own = {name: array for name, array in params.items() if name != RATE}
        update = self.trainer.train(own, examples, key)
        factor = float(params[RATE][0]) / self.rate if RATE in params else 1.0
        if self.local_steps > 1 and abs(factor - 1.0) > 1e-6:
            raise ValueError("several local steps are of one rate")
        return tree.scale(update, factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersAtRate(UserByUser):
    """Users at the step size that a query brings, which is none of the sum's tensors."""

    def template(self, params: Params) -> Params:
        """Return the params' shapes, without the rate."""
        return {name: array for name, array in params.items() if name != RATE}
