"""What a framework has to show of itself to be put through the checks.

A subject is one server-side aggregation of user-level DP: it is given what users sent, and returns
what it would release. Checks call it as a black box: they know its clip norm, its noise multiplier
and how many users it expects, and nothing of how it works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

SHAPES = {"kernel": (5, 3), "bias": (3,)}
"""Of the model, which is zero: what a user sends is its update."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What one user sent.

    Attributes:
        arrays: By name; None for an error in their place.
        num_examples: What it claims to have trained on.
    """

    arrays: Arrays | None = field(repr=False)
    num_examples: float = 10


class Subject(Protocol):
    """An aggregation under test.

    Attributes:
        name: In tables.
        clips_on_clients: Whether users are trusted to clip; their updates come clipped then.
    """

    name: str
    clips_on_clients: bool

    def release(
        self, sent: Sequence[Sent], *, clip_norm: float, noise_multiplier: float, expected: int
    ) -> Arrays | None:
        """Return the update that is released of a round, or None if the round was given up.

        Args:
            sent: One a user that was asked.
            clip_norm: C.
            noise_multiplier: Standard deviation of the noise on the sum over C.
            expected: How many users a round expects; the mean's denominator.
        """
        ...

    def clip_norms(self, norms: Sequence[float], rounds: int) -> list[float] | None:
        """Return the clip norm after each round of users with such norms; None if it is fixed."""
        ...
