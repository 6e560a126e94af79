"""Aggregates of released checkpoints: one model made of the several that a run went through.

Post-processing of released params, hence free of privacy cost (the whole trajectory is covered by
the run's adaptive composition). Each aggregate is a `Transform` of the *params* of successive
rounds, not of updates, with a promise beyond the transform's own: `next` only reads the params it
is given, since the run goes on training from them, and what it returned earlier never changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpriv.ranges import Range, finite_float
from fedpriv.transform import State, Transform

# Float32 elements worked on at a time; three such blocks stay in a core's own cache.
_BLOCK = 1 << 15


def ema(decay: float, warmup: bool = False) -> Transform:
    """Return the exponential moving average of the params.

    average_t = m_t · average_{t-1} + (1 - m_t) · params_t, where m_t is `decay`, or with warm-up
    min(decay, (1 + t) / (10 + t)) for t = 1, 2, ... The average starts at the initial params.
    Source: Shejwalkar et al., "Recycling Scraps" (PoPETs 2025), training-free aggregation; the
    warm-up is that of De et al. (2022).

    Args:
        decay: Weight of the past, in [0, 1); 0 gives the newest params. (Some texts name the
            weight of the newest checkpoint instead.)
        warmup: Forget the initial params faster at the start.

    Returns:
        The pair. `init` copies the params; `next(params, state)` returns
        `(average, state)`, fresh float arrays of the params' shapes and dtypes. The state's
        "average" and "count" are trees that a safetensors file can hold.

    Guarantees:
        Params that do not move give an average equal to them, bit for bit. NaN and infinities
        propagate.

    Raises:
        ValueError: If `decay` is not in [0, 1); from `next`, if names or shapes changed.

    >>> average = ema(0.9)
    >>> state = average.init({"w": np.zeros(1, np.float32)})
    >>> out, state = average.next({"w": np.ones(1, np.float32)}, state)
    >>> round(float(out["w"][0]), 6)
    0.1
    """
    finite_float("ema decay, the weight of the past,", decay, Range.FRACTION)

    def init(params: Mapping[str, np.ndarray]) -> State:
        average = {name: np.array(tensor) for name, tensor in params.items()}
        return {"average": average, "count": {"num_updates": np.zeros((), np.int64)}}

    def next_(params: dict[str, np.ndarray], state: State) -> tuple[dict[str, np.ndarray], State]:
        old = state["average"]
        if set(old) != set(params):
            raise ValueError(f"ema holds tensors {sorted(old)}, was given {sorted(params)}")
        t = int(state["count"]["num_updates"]) + 1
        keep = min(decay, (1 + t) / (10 + t)) if warmup else decay
        average = {name: _move(old[name], params[name], 1 - keep, name) for name in old}
        # The caller's old state is the only owner of the old arrays: they are freed with it.
        return average, {"average": average, "count": {"num_updates": np.array(t, np.int64)}}

    return Transform(init=init, next=next_)


def _move(old: np.ndarray, new: np.ndarray, share: float, name: str) -> np.ndarray:
    """Return `old + share * (new - old)` in old's dtype, with no full-size temporary."""
    if old.shape != new.shape:
        raise ValueError(f"ema holds {name!r} as {list(old.shape)}, was given {list(new.shape)}")
    out = np.empty(old.shape, old.dtype)
    flat_out = out.reshape(-1)
    flat_old = np.ascontiguousarray(old).reshape(-1)
    flat_new = np.ascontiguousarray(new).reshape(-1)
    factor = old.dtype.type(share)
    for start in range(0, flat_out.size, _BLOCK):
        stop = start + _BLOCK
        block = flat_out[start:stop]
        np.subtract(flat_new[start:stop], flat_old[start:stop], out=block)
        block *= factor
        block += flat_old[start:stop]
    return out
