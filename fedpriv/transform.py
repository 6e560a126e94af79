"""The one abstraction: a pair of pure functions, `init` and `next`.

Server optimisers and whatever else turns one released mean update into the next are transforms;
`Chain` runs several in a row. State goes in and comes out: no transform hides any, so saving a
run is saving one value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedpriv.parts import Part

Tensors = dict[str, np.ndarray]
State = dict[str, Tensors]
"""Named trees, ready to be written to a safetensors file. Empty for stateless transforms."""


class Transform(Part, ABC):
    """Base of stateful maps of update trees, dense float32."""

    __slots__ = ()

    def init(self, params: Tensors) -> State:
        """Return the first state, by default empty.

        Args:
            params: Before the first round; only read.
        """
        return {}

    @abstractmethod
    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return what is made of an update, and the state after it.

        The caller gives up both arguments (arrays may be reused in place) and must use what is
        returned. An aggregate of params (`fedpriv.checkpoints.aggregates`) gets them read-only: the
        run goes on training from them.

        Args:
            update: Of a round.
            state: From `init`, or of the round before.
        """


@dataclass(frozen=True, slots=True)
class Identity(Transform):
    """Changes nothing."""

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return both as they are."""
        return update, state


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(Transform):
    """Applies several in order.

    Their states are kept under "0.", "1.", ... so that they stay one flat value.

    Attributes:
        transforms: The first first.
    """

    transforms: tuple[Transform, ...]

    def init(self, params: Tensors) -> State:
        """Return the first states of all."""
        return {
            f"{i}.{name}": tree
            for i, transform in enumerate(self.transforms)
            for name, tree in transform.init(params).items()
        }

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return what all make of it, and their states."""
        out: State = {}
        for i, transform in enumerate(self.transforms):
            prefix = f"{i}."
            own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            update, own = transform.next(update, own)
            out |= {prefix + name: tree for name, tree in own.items()}
        return update, out
