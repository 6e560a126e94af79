"""Aggregates of the last k checkpoints: their uniform average, or any function of them.

Each is a `Transform` of the params of successive rounds, with the promise of
`fedpriv.checkpoints.aggregates` besides: `next` only reads the params it is given, and what it
returned earlier never changes. All of it is post-processing of released params.

The state holds k checkpoints in slots "past.0" to "past.<k-1>", of which slot t mod k is that of
checkpoint t (0 is the params before the first round), and how many there were under "count". The
slots are there from the start, as zeros, so that a state always has one form; the mean is made of
the slots anew each time, and never of an earlier mean: nothing drifts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedpriv.transform import State, Transform

Tensors = dict[str, np.ndarray]
#: From the last checkpoints, the oldest first, to one tree of the same names and shapes.
Aggregation = Callable[[Sequence[Tensors]], Mapping[str, np.ndarray]]

_SLOT = "past."
# Elements worked on at a time, in float64; such blocks stay in a core's own cache.
_BLOCK = 1 << 14


def upa(k: int) -> Transform:
    """Return the uniform average of the last k checkpoints (uniform past-k aggregation, UPA).

    average_t = (1/k) Σ params_i over i = t-k+1, ..., t; before there are k, of those there are,
    the params before the first round included. Added up in float64, oldest first, and rounded once.
    The name UPA is remembered from Shejwalkar et al., "Recycling Scraps" (PoPETs 2025), of which
    only the moving average's equation was at hand.

    Args:
        k: How many, from 1; 1 gives the newest params.

    Returns:
        The pair. The state's trees are k checkpoints, the average and a count: k + 1 models.

    Guarantees:
        float32 params that do not move give an average equal to them, bit for bit. NaN and
        infinities propagate, and are gone k checkpoints later.

    Raises:
        ValueError: If `k` is no whole number from 1; from `next`, if names or shapes changed.

    >>> average = upa(3)
    >>> state = average.init({"w": np.zeros(1, np.float32)})
    >>> for value in (1, 2, 3):
    ...     out, state = average.next({"w": np.full(1, value, np.float32)}, state)
    >>> float(out["w"][0])
    2.0
    """
    return of_last(k, uniform)


def of_last(k: int, function: Aggregation) -> Transform:
    """Return the aggregate that is any function of the last k checkpoints.

    Args:
        k: How many checkpoints the function sees at most, from 1.
        function: Of a list of trees, the oldest first and the newest last: fewer than k at the
            start, where the list begins with the params before the first round. It must depend on
            nothing else, and on no private example: that it costs no ε rests on that. Its arrays
            are read-only.

    Returns:
        The pair; the state's trees are k checkpoints, what the function returned ("average"; of the
        first params those themselves) and a count.

    Raises:
        ValueError: If `k` is no whole number from 1; from `next`, if names or shapes changed, or
            the function returned others than it was given.

    >>> newest = of_last(2, lambda past: past[-1])
    >>> state = newest.init({"w": np.zeros(1, np.float32)})
    >>> float(newest.next({"w": np.ones(1, np.float32)}, state)[0]["w"][0])
    1.0
    """
    window = keeping(k)

    def init(params: Mapping[str, np.ndarray]) -> State:
        return {"average": _copied(params), **window.init(dict(params))}

    def next_(params: Tensors, state: State) -> tuple[Tensors, State]:
        _, kept = window.next(params, state)
        average = _checked(function(last_checkpoints(kept)), params)
        return average, {"average": average, **kept}

    return Transform(init=init, next=next_)


def keeping(k: int) -> Transform:
    """Return what keeps the last k checkpoints and makes no one model of them.

    It is for aggregates of outputs (`fedpriv.checkpoints.outputs`), which need all k.

    Args:
        k: How many, from 1.

    Returns:
        The pair; `next` returns the params it was given, and the state has no "average".

    Raises:
        ValueError: As `upa`.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"an aggregate of the last {k!r} checkpoints; give a whole number from 1")

    def init(params: Mapping[str, np.ndarray]) -> State:
        slots: State = {
            f"{_SLOT}{i}": {name: np.zeros_like(tensor) for name, tensor in params.items()}
            for i in range(1, k)
        }
        first = {f"{_SLOT}0": _copied(params)}
        return {**first, **slots, "count": {"num_updates": np.zeros((), np.int64)}}

    def next_(params: Tensors, state: State) -> tuple[Tensors, State]:
        _check_form(state[f"{_SLOT}0"], params)
        t = int(state["count"]["num_updates"]) + 1
        slots = {f"{_SLOT}{i}": state[f"{_SLOT}{i}"] for i in range(k)}
        # A slot is replaced, never written into: earlier states keep what they hold.
        slots[f"{_SLOT}{t % k}"] = _copied(params)
        return params, {**slots, "count": {"num_updates": np.array(t, np.int64)}}

    return Transform(init=init, next=next_)


def last_checkpoints(state: State) -> list[Tensors]:
    """Return the checkpoints that a state keeps, the oldest first, as read-only views.

    Raises:
        ValueError: If it keeps none.
    """
    k = sum(name.startswith(_SLOT) for name in state)
    if not k:
        raise ValueError(f"a state of {sorted(state)} keeps no checkpoints")
    t = int(state["count"]["num_updates"])
    places = [i % k for i in range(max(0, t - k + 1), t + 1)]
    return [{n: _read_only(a) for n, a in state[f"{_SLOT}{i}"].items()} for i in places]


def uniform(past: Sequence[Mapping[str, np.ndarray]]) -> Tensors:
    """Return the mean of trees, added up in float64 in their order, in the dtype of the last.

    Raises:
        ValueError: If there is none.
    """
    if not past:
        raise ValueError("there is no checkpoint to average")
    return {name: _mean([tree[name] for tree in past]) for name in past[-1]}


def _mean(arrays: Sequence[np.ndarray]) -> np.ndarray:
    newest = arrays[-1]
    out = np.empty(newest.shape, newest.dtype)
    flat = out.reshape(-1)
    parts = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        total = parts[0][block].astype(np.float64)
        for part in parts[1:]:
            total += part[block]
        total /= len(parts)
        flat[block] = total
    return out


def _copied(params: Mapping[str, np.ndarray]) -> Tensors:
    return {name: np.array(tensor) for name, tensor in params.items()}


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _check_form(held: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> None:
    if set(held) != set(given):
        raise ValueError(f"the aggregate holds tensors {sorted(held)}, was given {sorted(given)}")
    for name, array in held.items():
        if array.shape != given[name].shape:
            raise ValueError(
                f"the aggregate holds {name!r} as {list(array.shape)}, was given "
                f"{list(given[name].shape)}"
            )


def _checked(made: Mapping[str, np.ndarray], params: Tensors) -> Tensors:
    """Return what a function of checkpoints made, as arrays of its own in the params' dtypes."""
    if set(made) != set(params):
        raise ValueError(
            f"the aggregation returned tensors {sorted(made)}; return those of the checkpoints, "
            f"{sorted(params)}"
        )
    out: Tensors = {}
    for name, newest in params.items():
        array = np.asarray(made[name])
        if array.shape != newest.shape:
            raise ValueError(
                f"the aggregation returned {name!r} as {list(array.shape)}; its checkpoints have "
                f"{list(newest.shape)}"
            )
        out[name] = np.array(array, dtype=newest.dtype)
    return out
