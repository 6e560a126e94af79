"""Preconditioners: what a round takes from public data and from past releases, and where it acts.

A preconditioner looks at released params, public data and released means, never at a user. Before
the cohort is drawn it gives the round's `RoundContext`; after the release it may learn from it. So
whatever it says is public, and a round keeps its sensitivity: what acts before the noise acts
before the bound.

===============  ==========================================  ===================================
where            what happens                                who
===============  ==========================================  ===================================
before bound     Δ ← (own Δ + offset) · multiplier           AdaDPS; DP²; scale-then-privatise
after noise      mean ← mean · inverse                       scale-then-privatise; DP²
before stepping  mean ← α mean + (1 - α) public update       PDA-DPMD
after stepping   step ← step · scale                         DP-R-Pub, DP-Adam-Pub
===============  ==========================================  ===================================

Everything lives in the space of updates (`local - global` params), in which a public gradient
counts negatively.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from fedpriv.mechanisms.bound import Bound, Mixture, Preconditioned
from fedpriv.mechanisms.rounding import Rounded, RoundedSum
from fedpriv.rng import Key
from fedpriv.transform import State
from fedpriv.tree import Params

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """What is public about one round; all fields are float32 arrays by parameter name.

    Attributes:
        multiplier: 1/A, before the bound; empty for nothing.
        mixture: What every update is mixed with before that; None for nothing.
        inverse: What the released mean is multiplied by; empty for nothing.
        blend: Weight α of the released mean against `public`.
        public: A public update; empty when `blend` is 1.
        scale: What the server's step is multiplied by; empty for nothing.
    """

    multiplier: Tensors = field(default_factory=dict, repr=False)
    mixture: Mixture | None = None
    inverse: Tensors = field(default_factory=dict, repr=False)
    blend: float = 1.0
    public: Tensors = field(default_factory=dict, repr=False)
    scale: Tensors = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.blend <= 1.0:
            raise ValueError(f"blend {self.blend!r} must lie in [0, 1]")
        if self.blend < 1.0 and not self.public:
            raise ValueError(f"blend {self.blend!r} needs a public update to blend with")

    def bound(self, bound: Bound) -> Bound:
        """Return a bound with this round's preconditioner inside it.

        Raises:
            ValueError: If the bound preconditions already.
        """
        if not self.multiplier and self.mixture is None:
            return bound
        if isinstance(bound, (Rounded, RoundedSum)):
            return replace(bound, bound=self.bound(bound.bound))
        return Preconditioned(multiplier=self.multiplier, bound=bound, mixture=self.mixture)


class Preconditioner(Protocol):
    """Turns public data and past releases into each round's context."""

    def init(self, params: Params) -> State:
        """Return the state before round 1: named trees of float32 arrays, as a transform's."""
        ...

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[RoundContext, State]:
        """Return a round's context; nothing of the round has been drawn yet.

        Args:
            params: The released params the round starts from; not changed.
            state: From `init`, or the last `end`. The caller gives it up.
            round_num: From 1.
            key: For the choice of public examples, and nothing else.
        """
        ...

    def end(self, mean: Params, state: State) -> State:
        """Return the state after a round's release.

        Args:
            mean: The released mean update, after `inverse`; not changed.
            state: From `begin`. The caller gives it up.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoPreconditioner:
    """Nothing public is used."""

    def init(self, params: Params) -> State:
        """Return an empty state."""
        return {}

    def begin(
        self, params: Params, state: State, round_num: int, key: Key
    ) -> tuple[RoundContext, State]:
        """Return no context."""
        return _NONE, state

    def end(self, mean: Params, state: State) -> State:
        """Return the state."""
        return state


_NONE = RoundContext()
