"""How long users' updates are, from public users at starts that were not trained on them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit

from fedpriv.data.corpus.examples import TagExamples
from fedpriv.data.corpus.view import TagView
from fedpriv.kernels.sparse_softmax import train
from fedpriv.rng import Key
from fedpriv.training.in_public.learning import learn
from fedpriv.training.in_public.tags import TagLearner
from fedpriv.tree import Params
from simulations.defaults.quick import Bench, arrays, summed

_FOLDS = 5


def rostered(bench: Bench, start: Params, rate: float, most: int = 2_000) -> np.ndarray:
    """Return update norms of rostered users, which is a diagnostic and no public fact."""
    view = bench.view
    firsts, ends = view._spans(view.roster[:most], "train")
    return _norms(bench, view.columns, firsts, ends, start, rate)


def public(bench: Bench, factor: float | None, rate: float) -> np.ndarray:
    """Return update norms of public users, each at a start of public users of other folds.

    Of a user's examples only those of threads that a public user asked count, and the start learns
    from no thread that a user of the fold wrote in.
    """
    return np.concatenate(
        [
            _norms(bench, examples, firsts, ends, start, rate)
            for start, examples, firsts, ends in _folds(bench, factor)
        ]
        or [np.empty(0)]
    )


def slope(bench: Bench, factor: float | None, rate: float) -> float:
    """Return by how much the loss falls with the distance travelled, from public users alone.

    The mean of <-gradient of j, update of i over its norm> over pairs of distinct users of a fold,
    at the start of the other folds: unbiased, since nobody is paired with itself. NaN where no
    fold has two users.
    """
    total, pairs = 0.0, 0
    for start, examples, firsts, ends in _folds(bench, factor):
        found = _aligned(
            *arrays(examples),
            firsts,
            ends,
            start["kernel"],
            start["bias"],
            bench.multiplier,
            rate,
        )
        number = int(np.sum(ends > firsts))
        total, pairs = total + found, pairs + number * (number - 1)
    return total / pairs if pairs else math.nan


def _folds(
    bench: Bench, factor: float | None
) -> Iterator[tuple[Params, TagExamples, np.ndarray, np.ndarray]]:
    """Yield starts, and examples and spans of the public users that they were not trained on."""
    view: TagView = bench.view
    choice = bench.found.choices.by_loss
    choice = replace(choice, factor=choice.factor if factor is None else factor)
    rows = view.public_rows("train")
    owners = _owners(view, rows)
    folds = np.array(
        [
            int(hashlib.sha256(user.encode()).hexdigest()[:8], 16) % _FOLDS
            for user in view.public_users
        ]
    )[owners]
    for fold in range(_FOLDS):
        held = folds == fold
        others = ~np.isin(view.threads[rows], view.threads[rows[held]])
        if not held.any() or not others.any():
            continue
        learner = TagLearner(
            examples=view.columns.take(rows[others]),
            inputs="unit-norm",
            key=Key.simulation(fold),
            measured=lambda params: None,
        )
        start = learn(learner, choice).params
        order = rows[held]
        examples = view.columns.take(order)
        edges = np.append(np.flatnonzero(np.diff(owners[held], prepend=-1)), len(order))
        yield start, examples, edges[:-1], edges[1:]


def _owners(view: TagView, rows: np.ndarray) -> np.ndarray:
    starts, _ = view._spans(view.public_users, "train")
    order = np.argsort(starts, kind="stable")
    return order[np.searchsorted(starts[order], rows, side="right") - 1]


def _norms(
    bench: Bench, columns: Any, firsts: np.ndarray, ends: np.ndarray, start: Params, rate: float
) -> np.ndarray:
    _, _, norms = summed(
        *arrays(columns),
        np.ascontiguousarray(firsts),
        np.ascontiguousarray(ends),
        0,
        start["kernel"],
        start["bias"],
        bench.multiplier,
        rate,
        1.0,
    )
    return norms[ends > firsts]


@njit(nogil=True, cache=True)
def _aligned(
    indptr: np.ndarray,
    indices: np.ndarray,
    counts: np.ndarray,
    labels: np.ndarray,
    firsts: np.ndarray,
    ends: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    multiplier: np.ndarray,
    rate: float,
) -> float:
    """Return the sum over ordered pairs of distinct users of gradient times unit update."""
    unit, moved = np.zeros_like(kernel), np.zeros_like(bias)
    gradient, shift = np.zeros_like(kernel), np.zeros_like(bias)
    same = 0.0
    for user in range(firsts.size):
        order = np.arange(firsts[user], min(ends[user], firsts[user] + 100))
        if order.size == 0:
            continue
        starts = np.array([0, order.size])
        rows, change, own, _ = train(
            indptr, indices, counts, labels, order, True, starts, kernel, bias, multiplier, rate
        )
        square = 0.0
        for row in range(rows.size):
            for c in range(own.size):
                square += change[row, c] ** 2
        for c in range(own.size):
            square += own[c] ** 2
        scale = 1.0 / max(math.sqrt(square), 1e-30)
        for row in range(rows.size):
            by = 1.0 / (rate * multiplier[rows[row]])
            for c in range(own.size):
                value = change[row, c]
                unit[rows[row], c] += np.float32(scale * value)
                gradient[rows[row], c] += np.float32(by * value)
                same += scale * by * value * value
        for c in range(own.size):
            moved[c] += np.float32(scale * own[c])
            shift[c] += np.float32(own[c] / rate)
            same += scale / rate * own[c] * own[c]
    whole = 0.0
    for row in range(kernel.shape[0]):
        for c in range(bias.size):
            whole += unit[row, c] * gradient[row, c]
    for c in range(bias.size):
        whole += moved[c] * shift[c]
    return whole - same
