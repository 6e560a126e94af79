"""Aggregates of released checkpoints: EMA, uniform average, any function, and output votes.

Post-processing of released params, hence free of privacy cost (the whole trajectory is covered by
the run's adaptive composition). An aggregate is a `Transform` of the *params* of successive
rounds, not of updates, with a guarantee beyond the transform's own: `next` only reads the params it
is given, since the run goes on training from them, and what it returned earlier never changes. An
aggregate of params has its model in its state, under "average".

The state of `Uniform`, `OfLast` and `MeanOutputs` holds k checkpoints in slots "past.0" to
"past.<k-1>", of which slot t mod k is that of checkpoint t (0 is the params before the first
round), and how many there were under "count". The slots are there from the start, as zeros, so that
a state always has one form; the mean is made of the slots again each time, and never of an earlier
mean: nothing drifts.

Aggregates of outputs (inference only) take what the last k models answer of single examples.
*Output prediction averaging* (OPA) answers with the class of the largest mean probability, *output
majority vote* (OMV) with the class that most models answer with. Ties go to the lowest class, of
votes and of one model's probabilities alike. Both need all k models and make no one model of them,
so nothing can be trained at them. The k models travel as one tree of tensors (`packed`), by which
every backend measures them.

Source: Shejwalkar et al., "Recycling Scraps" (PoPETs 2025); the names UPA, OPA and OMV and the
vote's equation are remembered, the rule for ties is ours.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from fedpriv import tree
from fedpriv.parts import Fraction, NonNegativeInt, PositiveInt
from fedpriv.transform import State, Tensors, Transform

#: "opa" averages probabilities, "omv" counts votes.
Rule = Literal["opa", "omv"]
RULES: tuple[Rule, ...] = get_args(Rule)
#: From the last checkpoints, the oldest first, to one tree of the same names and shapes.
Aggregation = Callable[[Sequence[Tensors]], Mapping[str, np.ndarray]]

_SLOT = "past."
# Elements worked on at a time, in float64; such blocks stay in a core's own cache.
_BLOCK = 1 << 14


class Aggregate(Transform):
    """Base of aggregates.

    Attributes:
        outputs: How the checkpoints that it keeps are measured together; None for one model.
        training: Whether updates are made at the aggregate, and so what is replaced by it.
        start: Rounds or steps before training over aggregates begins.
    """

    __slots__ = ()
    outputs: ClassVar[Rule | None] = None
    training: Literal["none", "replace", "gradient-only"] = "none"
    start: int = 0


@dataclass(frozen=True, slots=True)
class Last(Aggregate):
    """The last released model."""

    kind: ClassVar[str] = "none"

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return both as they are."""
        return update, state


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsAggregate(Aggregate):
    """Base of aggregates of params: one model made of several, which training may go on from.

    With θ_t the iterate after t rounds and A_t the aggregate of θ_0, ..., θ_t, a round that follows
    t >= start released ones asks for updates at A_t, and

    * training "replace": θ_{t+1} = A_t + step;
    * training "gradient-only": θ_{t+1} = θ_t + step. The iterate and the optimiser's state go on by
      themselves; the aggregate is only where updates are made. Of the two it is the one for an
      optimiser that keeps a sum of all updates, as DP-FTRL does.

    Before, updates are made at θ_t and added to it. The paper gives the algorithm in words that
    both readings fit.

    Attributes:
        training: Whether updates are made at the aggregate, and so what is replaced by it.
        start: Rounds or steps before training over aggregates begins.

    Source: Shejwalkar et al., "Recycling Scraps" (PoPETs 2025), Algorithm 1.
    """

    training: Literal["none", "replace", "gradient-only"] = "none"
    start: NonNegativeInt = 0

    def check(self) -> None:
        """Refuse a start of training over aggregates where there is none."""
        if self.start and self.training == "none":
            raise ValueError(
                f"aggregate-start {self.start} is of training over aggregates, and there "
                "is none; set aggregate-training to replace or gradient-only, or leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Average(ParamsAggregate):
    """An exponential moving average of the released models (EMA).

    average_t = m_t · average_{t-1} + (1 - m_t) · params_t, where m_t is `ema_decay`, or with
    warm-up min(ema_decay, (1 + t) / (10 + t)) for t = 1, 2, ... The average starts at the initial
    params. Source: Shejwalkar et al., "Recycling Scraps" (PoPETs 2025), training-free aggregation;
    the warm-up is that of De et al. (2022).

    Attributes:
        ema_decay: Weight of the past in the average.
        ema_warmup: Whether the decay of round t is at most (1+t)/(10+t).

    Guarantees:
        Params that do not move give an average equal to them, bit for bit. NaN and infinities
        propagate.

    Raises:
        ValueError: From `next`, if names or shapes changed.

    >>> average = Average(ema_decay=0.9)
    >>> state = average.init({"w": np.zeros(1, np.float32)})
    >>> out, state = average.next({"w": np.ones(1, np.float32)}, state)
    >>> round(float(out["w"][0]), 6)
    0.1
    """

    kind: ClassVar[str] = "ema"
    ema_decay: Fraction = 0.9
    ema_warmup: bool = False

    def init(self, params: Tensors) -> State:
        """Return a copy of the params as the average."""
        return {"average": _copy(params), "count": {"num_updates": np.zeros((), np.int64)}}

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the average, fresh arrays of the params' shapes and dtypes."""
        old = state["average"]
        _check_form(old, update)
        t = int(state["count"]["num_updates"]) + 1
        keep = min(self.ema_decay, (1 + t) / (10 + t)) if self.ema_warmup else self.ema_decay
        average = {name: _move(old[name], update[name], 1 - keep) for name in old}
        # The caller's old state is the only owner of the old arrays: they are freed with it.
        return average, {"average": average, "count": {"num_updates": np.array(t, np.int64)}}


def _move(old: np.ndarray, new: np.ndarray, share: float) -> np.ndarray:
    """Return `old + share * (new - old)` in old's dtype, with no full-size temporary."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOutputs(Aggregate):
    """The mean of the last models' probabilities (OPA); the released model is the last.

    It keeps the last k checkpoints and makes no one model of them.

    Attributes:
        k: How many of the last released models.
    """

    kind: ClassVar[str] = "opa"
    outputs: ClassVar[Rule | None] = "opa"
    k: PositiveInt = 5

    def init(self, params: Tensors) -> State:
        """Return a copy of the params, and empty slots."""
        return _first_slots(self.k, params)

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the params, and the checkpoints with them."""
        return update, _with_newest(self.k, update, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityVote(MeanOutputs):
    """The class that most of the last models answer with (OMV); the released model is the last."""

    kind: ClassVar[str] = "omv"
    outputs: ClassVar[Rule | None] = "omv"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregate(ParamsAggregate):
    """Base of functions of the last k checkpoints.

    The state's trees are k checkpoints, the aggregate ("average"; of the first params those
    themselves) and a count.

    Attributes:
        k: How many of the last released models.

    Raises:
        ValueError: From `next`, if names or shapes changed, or `aggregated` returned others than it
            was given.
    """

    k: PositiveInt = 5

    @abstractmethod
    def aggregated(self, past: Sequence[Tensors]) -> Mapping[str, np.ndarray]:
        """Return one tree of the last checkpoints, the oldest first."""

    def init(self, params: Tensors) -> State:
        """Return copies of the params, and empty slots."""
        return {"average": _copy(params), **_first_slots(self.k, params)}

    def next(self, update: Tensors, state: State) -> tuple[Tensors, State]:
        """Return the aggregate of the params and those before."""
        kept = _with_newest(self.k, update, state)
        made = self.aggregated(last_checkpoints(kept))
        _check_form(update, made)
        average = {name: np.array(made[name], dtype=update[name].dtype) for name in update}
        return average, {"average": average, **kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(WindowAggregate):
    """The uniform average of the last released models (UPA).

    average_t = (1/k) Σ params_i over i = t-k+1, ..., t; before there are k, of those there are,
    the params before the first round included. Added up in float64, oldest first, and rounded once.
    The name UPA is remembered from Shejwalkar et al., "Recycling Scraps" (PoPETs 2025), of which
    only the moving average's equation was at hand.

    Guarantees:
        float32 params that do not move give an average equal to them, bit for bit. NaN and
        infinities propagate, and are gone k checkpoints later.

    >>> average = Uniform(k=3)
    >>> state = average.init({"w": np.zeros(1, np.float32)})
    >>> for value in (1, 2, 3):
    ...     out, state = average.next({"w": np.full(1, value, np.float32)}, state)
    >>> float(out["w"][0])
    2.0
    """

    kind: ClassVar[str] = "upa"

    def aggregated(self, past: Sequence[Tensors]) -> Tensors:
        """Return their mean."""
        return uniform(past)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfLast(WindowAggregate):
    """Any function of the last k checkpoints.

    Attributes:
        function: Of a list of trees, the oldest first and the newest last: fewer than k at the
            start, where the list begins with the params before the first round. It must depend on
            nothing else, and on no private example: that it costs no ε rests on that. Its arrays
            are read-only.

    >>> newest = OfLast(k=2, function=lambda past: past[-1])
    >>> state = newest.init({"w": np.zeros(1, np.float32)})
    >>> float(newest.next({"w": np.ones(1, np.float32)}, state)[0]["w"][0])
    1.0
    """

    function: Aggregation

    def aggregated(self, past: Sequence[Tensors]) -> Mapping[str, np.ndarray]:
        """Return what the function makes of them."""
        return self.function(past)


def _first_slots(k: int, params: Tensors) -> State:
    slots: State = {
        f"{_SLOT}{i}": {name: np.zeros_like(tensor) for name, tensor in params.items()}
        for i in range(1, k)
    }
    first = {f"{_SLOT}0": _copy(params)}
    return {**first, **slots, "count": {"num_updates": np.zeros((), np.int64)}}


def _with_newest(k: int, params: Tensors, state: State) -> State:
    _check_form(state[f"{_SLOT}0"], params)
    t = int(state["count"]["num_updates"]) + 1
    slots = {f"{_SLOT}{i}": state[f"{_SLOT}{i}"] for i in range(k)}
    # A slot is replaced, never written into: earlier states keep what they hold.
    slots[f"{_SLOT}{t % k}"] = _copy(params)
    return {**slots, "count": {"num_updates": np.array(t, np.int64)}}


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
    return [tree.read_only(state[f"{_SLOT}{i}"]) for i in places]


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


def _copy(params: Mapping[str, np.ndarray]) -> Tensors:
    return {name: np.array(tensor) for name, tensor in params.items()}


def _check_form(held: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse tensors of other names or shapes than an aggregate holds."""
    forms = [{n: list(np.shape(a)) for n, a in sorted(of.items())} for of in (held, given)]
    if forms[0] != forms[1]:
        raise ValueError(f"the aggregate holds tensors of shapes {forms[0]}, and got {forms[1]}")


def mean_probabilities(probabilities: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean over models, float64 `(n, classes)`.

    Args:
        probabilities: Of each model, `(n, classes)`.

    Raises:
        ValueError: If there is no model, or they are of different shapes.
    """
    return np.mean(_alike(probabilities), axis=0)


def votes(probabilities: Sequence[np.ndarray]) -> np.ndarray:
    """Return how many models answer with each class, int64 `(n, classes)`.

    A model answers with its likeliest class, of equals the lowest.

    Raises:
        ValueError: As `mean_probabilities`.
    """
    arrays = _alike(probabilities)
    chosen = arrays.argmax(axis=2)[:, :, np.newaxis] == np.arange(arrays.shape[2])
    return chosen.sum(axis=0, dtype=np.int64)


def answers(rule: Rule, probabilities: Sequence[np.ndarray]) -> np.ndarray:
    """Return the class that several models answer with together, int64 `(n,)`.

    Args:
        rule: "opa" or "omv".
        probabilities: Of each model, `(n, classes)`.

    Guarantees:
        Ties go to the lowest class. One model gives its own answers.

    Raises:
        ValueError: If the rule is unknown, or as `mean_probabilities`.

    >>> models = [np.array([[0.51, 0.49, 0]]), np.array([[0.51, 0.49, 0]]), np.array([[0, 1, 0]])]
    >>> answers("opa", models).tolist(), answers("omv", models).tolist()
    ([1], [0])
    """
    if rule not in RULES:
        raise ValueError(f"rule {rule!r} is not known; use one of {', '.join(RULES)}")
    found = mean_probabilities(probabilities) if rule == "opa" else votes(probabilities)
    return found.argmax(axis=1).astype(np.int64)


def packed(rule: Rule, models: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return models and the rule as one tree, with names such as "opa/0/kernel".

    Raises:
        ValueError: If there is no model, or the rule is unknown.
    """
    if rule not in RULES or not models:
        raise ValueError(f"{len(models)} models under rule {rule!r}; give some, and opa or omv")
    return {f"{rule}/{i}/{name}": array for i, m in enumerate(models) for name, array in m.items()}


def unpacked(params: Mapping[str, np.ndarray]) -> tuple[Rule, list[dict[str, np.ndarray]]] | None:
    """Return what `packed` put together; None of one model's params."""
    found: list[Rule] = [
        rule for rule in RULES if all(name.startswith(f"{rule}/") for name in params)
    ]
    if not found or not params:
        return None
    models: dict[int, dict[str, np.ndarray]] = {}
    for name, array in params.items():
        _, number, own = name.split("/", 2)
        models.setdefault(int(number), {})[own] = array
    return found[0], [models[number] for number in sorted(models)]


def _alike(probabilities: Sequence[np.ndarray]) -> np.ndarray:
    shapes = {np.shape(array) for array in probabilities}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ValueError(
            f"probabilities of shapes {sorted(map(list, shapes))}; give at least one model's, all "
            "(examples, classes)"
        )
    return np.stack(probabilities).astype(np.float64)
