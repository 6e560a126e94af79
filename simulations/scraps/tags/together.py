"""The frame's local work of tag models for a whole cohort in one compiled call.

It runs the frame's own compiled local training user after user, clips and rounds as the frame's
sum does, and leaves out only what Python does in between: a study of hundreds of runs takes a
fifth of the time. Users draw their examples by the frame's own keys. A test holds it to the
frame's sum, to at most a grain of the grid for each user.
"""

# Types within compiled code are the compiler's.
# pyright: reportCallIssue=false, reportArgumentType=false, reportReturnType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit

from fedpriv.datasets.stackexchange.tag_view import TagView
from fedpriv.kernels.sparse_softmax import train
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.local.trainer import SparseSoftmaxTrainer
from fedpriv.training.periodic_shift import SHARE
from fedpriv.training.work import UserData
from fedpriv.tree import Params

_LONG = 1e300
_NO_MULTIPLIER = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Training examples of a view, as compiled code reads them.

    Attributes:
        spans: By user, its first row and the row after its last.
        asked: bool (rows,), which examples are of the half that a round's share is of, such as
            questions; None where every round has all.
        arrays: indptr, indices, counts and labels of all rows.
    """

    spans: dict[str, tuple[int, int]] = field(repr=False)
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] = field(repr=False)
    asked: np.ndarray | None = field(default=None, repr=False)


def columns_of(view: TagView, asked: np.ndarray | None = None) -> Columns:
    """Return the training examples of a view's roster."""
    of = view.columns
    spans = {}
    for user in view.roster:
        rows = np.concatenate([np.arange(0), *view.rows([user], "train")])
        if len(rows) and rows[-1] - rows[0] + 1 != len(rows):
            raise ValueError(f"training rows of {user!r} do not follow one another")
        spans[user] = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    arrays = (
        np.ascontiguousarray(of.indptr, np.int64),
        np.ascontiguousarray(of.indices, np.int32),
        np.ascontiguousarray(of.counts, np.float32),
        np.ascontiguousarray(of.labels, np.int32),
    )
    return Columns(spans=spans, arrays=arrays, asked=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """A `fedpriv.training.work.Work`: the sum of a cohort's bounded updates in one call.

    Guarantees:
        * As of `fedpriv.training.work.UserByUser`: a user moves the sum by at most the bound, and
          none depends on who else takes part.

    Attributes:
        trainer: Whose schedule, inputs and multiplier are meant; without word features.
        columns: The training examples.
    """

    trainer: SparseSoftmaxTrainer
    columns: Columns = field(repr=False)

    def __post_init__(self) -> None:
        if self.trainer.word_features is not None or self.trainer.schedule.epochs != 1:
            raise ValueError("word features or several epochs: train one user after another")

    def template(self, params: Params) -> Params:
        """Return the shapes of the params, without the share that a round has of questions."""
        return {name: array for name, array in params.items() if name != SHARE}

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        data: UserData | None,
        user_ids: Sequence[str],
        key: Key,
    ) -> PartialSum:
        """Return the sum; of whole numbers where the bound is on a grid.

        Raises:
            ValueError: If the bound multiplies or mixes first, or an update is not finite.
        """
        if bound.multiplier or bound.mixture is not None:
            raise ValueError(f"{bound!r} preconditions; train one user after another")
        share = float(params[SHARE][0]) if SHARE in params else None
        orders = [self._order(user, key.fold(user), share) for user in user_ids]
        ends = np.cumsum([0, *(len(order) for order in orders)])
        kernel, bias = params["kernel"], params["bias"]
        grain = bound.granularity
        num = kernel.size + bias.size
        of_kernel, of_bias, sound = _summed(
            *self.columns.arrays,
            np.concatenate([np.arange(0), *orders]),
            np.asarray(ends, np.int64),
            self.trainer.inputs == "unit-norm",
            self.trainer.schedule.batch_size,
            np.ascontiguousarray(kernel, np.float32),
            np.ascontiguousarray(bias, np.float32),
            _NO_MULTIPLIER if self.trainer.multiplier is None else self.trainer.multiplier,
            self.trainer.schedule.learning_rate,
            bound.length(_LONG, num),
            0.0 if grain is None else grain,
        )
        if not sound:
            raise ValueError("an update is not finite: the model diverged; lower a rate")
        kind = np.float64 if grain is None else np.int64
        total: dict[str, Any] = {"kernel": of_kernel.astype(kind), "bias": of_bias.astype(kind)}
        return PartialSum(
            total={name: total[name] for name in self.template(params)},
            num_users=len(user_ids),
            num_failed=0,
            granularity=grain,
        )

    def _order(self, user: str, key: Key, share: float | None) -> np.ndarray:
        first, end = self.columns.spans[user]
        rows = np.arange(first, end)
        if share is not None and self.columns.asked is not None:
            kept = np.where(self.columns.asked[first:end], share, 1.0 - share)
            rows = rows[key.fold("mixture").generator().random(len(rows)) < kept]
        if len(rows) < 2:
            return rows
        return rows[self.trainer.schedule.choose(len(rows), key.generator())]


@njit(nogil=True, cache=True)
def _summed(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    ends: np.ndarray,
    unit_norm: bool,
    batch: int,
    kernel: np.ndarray,
    bias: np.ndarray,
    multiplier: np.ndarray,
    rate: float,
    limit: float,
    grain: float,
) -> tuple[np.ndarray, np.ndarray, bool]:
    of_kernel, of_bias = np.zeros(kernel.shape), np.zeros(bias.shape)
    for user in range(ends.size - 1):
        own = order[ends[user] : ends[user + 1]].copy()
        if own.size == 0:
            continue
        starts = np.append(np.arange(0, own.size, batch), own.size)
        rows, change, moved, unsound = train(
            indptr, indices, counts, labels, own, unit_norm, starts, kernel, bias, multiplier, rate
        )
        squares = 0.0
        for i in range(rows.size):
            for c in range(moved.size):
                squares += np.float64(change[i, c]) ** 2
        for c in range(moved.size):
            squares += np.float64(moved[c]) ** 2
        norm = np.sqrt(squares)
        if unsound != 0 or not np.isfinite(norm):
            return of_kernel, of_bias, False
        factor = min(norm, limit) / norm if norm > 0.0 else 1.0
        for c in range(moved.size):
            of_bias[c] += _grained(np.float64(moved[c]) * factor, grain)
            for i in range(rows.size):
                of_kernel[rows[i], c] += _grained(np.float64(change[i, c]) * factor, grain)
    return of_kernel, of_bias, True


@njit(nogil=True, cache=True)
def _grained(value: float, grain: float) -> float:
    return value if grain == 0.0 else np.rint(value / grain)
