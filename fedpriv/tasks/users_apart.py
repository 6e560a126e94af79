"""Whether users who train one after the other are apart: tried on synthetic users, in many orders.

What keeps something between users may look consistent in one order: a scaler that is fitted on the
first data that it sees is the same for everybody after that, but another process makes a trainer of
its own, and there a rostered user comes first. So each order is asked of a work that has seen
nothing, and each synthetic user is once the first of all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.training.failures import KeepsStateError, raised_failures
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.work import Trainers, UserByUser, Work, as_works, find_work
from fedpriv.tree import Params, RowSparse, Tree

#: Two synthetic users of a task's batch.
FIRST, SECOND = "a synthetic user", "another synthetic user"
_MANY, _LARGE = "one of many examples", "one of large numbers"

_SAME = 1e-4
_FEW, _NUM_MANY, _TIMES = 8, 32, 100.0
# Of so few params one work is asked for everybody so many times over; of more, twice.
_CHEAP, _PASSES = 1 << 20, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshWorks:
    """Works that have seen no example.

    Attributes:
        untouched: What a user does, by name or alone, as it was made; None where it cannot be
            copied.
        again: Makes it again, as another process would.
        shared: What copies have in common: the task and its data.
    """

    untouched: Trainers | None = field(repr=False)
    again: Callable[[], Trainers] = field(repr=False)
    shared: tuple[Any, ...] = field(repr=False)

    @classmethod
    def of(cls, trainer: Trainers, again: Callable[[], Trainers], *shared: Any) -> FreshWorks:
        """Return works like a trainer's that has seen nothing yet.

        Args:
            trainer: What a user does, by name or alone.
            again: Makes it again.
            shared: What copies have in common.

        Raises:
            ValueError: If it cannot be copied and, made again, is the same object.
        """
        try:
            untouched = _copied(trainer, shared)
        except Exception as error:
            end_if_interrupted(error)
            made = _trainers(again())
            for name, one in _trainers(trainer).items():
                if made.get(name) is one:
                    raise ValueError(
                        f"whether users are apart could not be tried: a {type(one).__name__} "
                        f"cannot be copied ({type(error).__name__}: {error}), and trainer() of "
                        "the task returns the same one each time; let it make another one"
                    ) from error
            untouched = None
        return cls(untouched=untouched, again=again, shared=shared)

    def work(self, name: str) -> Work:
        """Return another work of a name."""
        fresh = self.again() if self.untouched is None else _copied(self.untouched, self.shared)
        return find_work(as_works(fresh), name)


def _copied(trainer: Trainers, shared: tuple[Any, ...]) -> Any:
    return copy.deepcopy(trainer, {id(one): one for one in shared})


def _trainers(trainer: Trainers) -> Mapping[str, Any]:
    works = as_works(trainer)
    return {n: work.trainer if isinstance(work, UserByUser) else work for n, work in works.items()}


def refuse_dependence(
    fresh: Callable[[], Work], *, params: Params, bound: Bound, batch: Any, key: Key
) -> None:
    """Refuse work in which one synthetic user changes what another one contributes.

    Each user's contribution as the first of all must be what it is after any other: small ones
    before large and large before small, and dozens of times over where the params are few. Two
    asked for at once must add up.

    Not found is what shows on none of these users (see `docs/sharp-edges.md`): what is kept of
    particular examples or after more users, and what is fitted once outside the work itself, such
    as in a global, a class or the task.

    Args:
        fresh: Makes a work that has seen nothing.
        params: Not changed.
        bound: What contributions are bounded by.
        batch: Examples of no rostered user.
        key: Of the round.

    Raises:
        Exception: What the work raises of a user.
        KeepsStateError: Names the work.
    """
    data = SyntheticUsers(batch, extremes=True)

    def contribution(work: Work, user_id: str) -> Tree:
        if isinstance(work, UserByUser):
            raw = work.trainer.train(params, data.examples(user_id), key.fold(user_id))
            return tree.check_like(work.template(params), raw)
        return total(work, user_id)

    def total(work: Work, *user_ids: str) -> Tree:
        with raised_failures():
            return work.partial_sum(
                params=params, bound=bound, data=data, user_ids=user_ids, key=key
            ).total

    alone: dict[str, Tree] = {}
    for user_id in data.user_ids:
        try:
            alone[user_id] = contribution(fresh(), user_id)
        except Exception as error:
            end_if_interrupted(error)
            if user_id in (FIRST, SECOND):
                raise
    passes = _PASSES if tree.num_elements(params) <= _CHEAP else 2
    upwards, downwards = fresh(), fresh()
    orders = [(upwards, list(alone))] * passes + [(downwards, [*reversed(alone)])]
    whole = bound.granularity is not None and not isinstance(upwards, UserByUser)
    for work, order in orders:
        for user_id in order:
            if _differ(contribution(work, user_id), alone[user_id], whole=whole):
                raise _keeps_state(work)
    work = fresh()
    both, parts = total(work, SECOND, FIRST), (total(fresh(), FIRST), total(fresh(), SECOND))
    if _differ(both, *parts, whole=bound.granularity is not None):
        raise _keeps_state(work)


def _keeps_state(work: Work) -> KeepsStateError:
    inner = work.trainer if isinstance(work, UserByUser) else work
    return KeepsStateError(
        f"what a user contributes by {type(inner).__name__} depends on the user before it (or "
        "on a generator of its own): one user would move the sum by more than the bound, and ε "
        "be wrong; keep nothing between users, and draw from the key that train() is given"
    )


def _differ(total: Tree, *parts: Tree, whole: bool) -> bool:
    """Return whether a sum is not that of its parts but for rounding, to `whole` numbers or not."""
    gap = size = 0.0
    for name in total:
        first, *others = _same_rows([total[name], *(part[name] for part in parts)])
        left = first.astype(np.float64)
        for right in others:
            right = right.astype(np.float64)
            size += float(np.vdot(right, right))
            left -= right
        gap += float(np.vdot(left, left))
        if whole:  # each whole number may be rounded to its other side
            size += left.size / _SAME**2
    return gap > _SAME**2 * size


def _same_rows(tensors: list[Any]) -> list[np.ndarray]:
    """Return tensors as arrays of one shape: of equal rows their values alone."""
    sparse = [one for one in tensors if isinstance(one, RowSparse)]
    if len(sparse) == len(tensors) and all(
        np.array_equal(one.rows, sparse[0].rows) for one in sparse
    ):
        return [one.values for one in sparse]
    return [tree.to_dense_tensor(one) for one in tensors]


class SyntheticUsers:
    """A `fedpriv.training.work.UserData` of users who share a batch.

    Args:
        batch: Where it can be halved, each of two users has a half.
        extremes: Whether there is also one of many examples, and one of large numbers, and nobody
            has more than a few of the batch.
    """

    def __init__(self, batch: Any, *, extremes: bool = False) -> None:
        first = second = batch
        if hasattr(batch, "take") and not isinstance(batch, np.ndarray) and len(batch) > 0:
            number = min(len(batch), _FEW) if extremes else len(batch)
            order = np.arange(number)
            if number > 1:
                first, second = batch.take(order[::2]), batch.take(order[1::2])
        self._batches = {FIRST: first, SECOND: second}
        if extremes:
            if first is not second:
                self._batches[_MANY] = batch.take(np.arange(_NUM_MANY) % number)
            larger = _larger(second)
            if larger is not None:
                self._batches[_LARGE] = larger

    @property
    def user_ids(self) -> tuple[str, ...]:
        """The users."""
        return tuple(self._batches)

    def examples(self, user_id: str) -> Any:
        """Return the user's examples."""
        return self._batches[user_id]

    def num_examples(self, user_id: str) -> int:
        """Return how many there are."""
        batch = self._batches[user_id]
        return len(batch) if hasattr(batch, "__len__") else 1


def _larger(batch: Any) -> Any | None:
    """Return examples of larger inputs; None where it is not known which numbers are inputs."""
    from fedpriv.training.local.module import ArrayExamples  # slow: it imports torch

    if isinstance(batch, ArrayExamples):
        x = _larger(np.asarray(batch.x))
        return None if x is None else ArrayExamples(x, batch.y)
    if isinstance(batch, tuple) and batch:
        x = _larger(batch[0])
        return None if x is None else (x, *batch[1:])
    if isinstance(batch, np.ndarray) and batch.dtype.kind == "f":
        return (_TIMES * batch).astype(batch.dtype)
    return None
