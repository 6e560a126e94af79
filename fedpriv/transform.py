"""The one abstraction: a pair of pure functions, `init` and `next`.

Server optimisers and whatever else turns one released mean update into the next are transforms;
`chain` runs several in a row. State goes in and comes out: no transform hides any, so saving a
run is saving one value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

State = dict[str, dict[str, np.ndarray]]
"""Named trees, ready to be written to a safetensors file. Empty for stateless transforms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A stateful map of update trees.

    Attributes:
        init: From params to the first state.
        next: From `(update, state)` to `(update, state)`. Dense float32 trees. The caller gives
            up both arguments (arrays may be reused in place) and must use what is returned. An
            aggregate of params (`fedpriv.checkpoints.aggregates`) gets them read-only: the run
            goes on training from them.
    """

    init: Callable[[dict[str, np.ndarray]], State]
    next: Callable[[dict[str, np.ndarray], State], tuple[dict[str, np.ndarray], State]]


def identity() -> Transform:
    """Return the transform that changes nothing."""
    return Transform(init=lambda params: {}, next=lambda update, state: (update, state))


def chain(*transforms: Transform) -> Transform:
    """Return the transform that applies several in order.

    The states of the parts are kept under "0.", "1.", ... so that they stay one flat value.
    """

    def init(params: dict[str, np.ndarray]) -> State:
        return {
            f"{i}.{name}": tree
            for i, transform in enumerate(transforms)
            for name, tree in transform.init(params).items()
        }

    def next_(update: dict[str, np.ndarray], state: State) -> tuple[dict[str, np.ndarray], State]:
        out: State = {}
        for i, transform in enumerate(transforms):
            prefix = f"{i}."
            own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            update, own = transform.next(update, own)
            out |= {prefix + name: tree for name, tree in own.items()}
        return update, out

    return Transform(init=init, next=next_)
