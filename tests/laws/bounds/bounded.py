"""Every bound, updates of every kind, their exact norms, and bounded sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.mechanisms import AdaptiveClip, Clip, Normalise, Rounded
from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.preconditioners import Mixture, Preconditioning
from fedpriv.optimizers import Sgd
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import UserTrainer
from fedpriv.tree import RowSparse
from tests.harness import toys_of_training
from tests.harness.toys_of_training import answered
from tests.privacy.plans.clipped import clipped

ROWS, COLUMNS = 40, 3
PARAMS = {"kernel": np.zeros((ROWS, COLUMNS), np.float32), "bias": np.zeros(COLUMNS, np.float32)}
_rng = np.random.default_rng(5)
MULTIPLIER = {
    # Condition number 1e8, one factor for each row; the bias has none.
    "kernel": (10.0 ** _rng.uniform(-4, 4, (ROWS, 1))).astype(np.float32)
}
MIXTURE = Mixture(
    own=0.75,
    offset={n: _rng.normal(size=t.shape).astype(np.float32) for n, t in PARAMS.items()},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A bound, made for a norm, and what a round says of it.

    Attributes:
        make: From a norm to the bound.
        said: Public facts of the round.
        adapts: Whether the norm is the round's clip norm, and the bound's own is 1.
    """

    make: Callable[[float], Bound]
    said: Context = NO_CONTEXT
    adapts: bool = False

    def __call__(self, c: float) -> Bound:
        """Return the bound."""
        return self.make(c)

    def context(self, c: float) -> Context:
        """Return the round's context."""
        return replace(self.said, clip_norm=c) if self.adapts else self.said

    def bounded(self, c, update):
        """Return one user's bounded contribution, dense; raise what its user would fail of."""
        return toys_of_training.bounded(self(c), update, self.context(c))

    def summed(self, c, updates, user_ids=None, sizes=None):
        """Return the sum over users, and its numbers."""
        return summed(self(c), updates, user_ids, sizes, self.context(c))

    @property
    def update_share(self):
        """The most that an update may take of the bound: what it does not, a count has."""
        return adaptive(1.0).update_weight if self.adapts else 1.0


def adaptive(c):
    return AdaptiveClip(l2_clip_norm=c, least=0.1 * c, most=10.0 * c)


MULTIPLIED = Context(multiplier=MULTIPLIER)
MIXED = Context(multiplier=MULTIPLIER, mixture=MIXTURE)
BOUNDS = {
    "clip": Case(make=lambda c: Clip(l2_clip_norm=c)),
    "normalise": Case(make=lambda c: Normalise(l2_clip_norm=c)),
    "normalise-regularised": Case(make=lambda c: Normalise(l2_clip_norm=c, regulariser=0.3 * c)),
    "adaptive": Case(make=adaptive, adapts=True),
    "precondition-clip": Case(make=lambda c: Clip(l2_clip_norm=c), said=MULTIPLIED),
    "precondition-normalise": Case(make=lambda c: Normalise(l2_clip_norm=c), said=MULTIPLIED),
    "mixed-clip": Case(make=lambda c: Clip(l2_clip_norm=c), said=MIXED),
    "rounded-clip": Case(make=lambda c: Rounded(bound=Clip(l2_clip_norm=c))),
    "rounded-normalise": Case(make=lambda c: Rounded(bound=Normalise(l2_clip_norm=c))),
    "rounded-adaptive": Case(make=lambda c: Rounded(bound=adaptive(c)), adapts=True),
    "rounded-precondition": Case(
        make=lambda c: Rounded(bound=Clip(l2_clip_norm=c)), said=MULTIPLIED
    ),
    "rounded-mixed": Case(make=lambda c: Rounded(bound=Normalise(l2_clip_norm=c)), said=MIXED),
}
every_bound = pytest.mark.parametrize("make", BOUNDS.values(), ids=BOUNDS)


@st.composite
def updates(draw, low=-300.0, high=300.0):
    """An update shaped like PARAMS: any floating dtypes, dense or row-sparse, any magnitude."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def values(shape):
        dtype = draw(st.sampled_from([np.float16, np.float32, np.float32, np.float64]))
        size = 10.0 ** draw(st.one_of(st.floats(-4, 4), st.floats(low, high)))
        made = rng.normal(size=shape) * min(size, 0.99 * float(np.finfo(dtype).max))
        made[rng.random(shape) < draw(st.sampled_from([0.0, 0.5, 0.95]))] = 0.0
        return np.clip(made, -float(np.finfo(dtype).max), float(np.finfo(dtype).max)).astype(dtype)

    kernel = values((ROWS, COLUMNS))
    if draw(st.booleans()):
        rows = np.sort(rng.choice(ROWS, draw(st.integers(0, ROWS)), replace=False))
        kernel = RowSparse(rows=rows, values=kernel[: len(rows)], num_rows=ROWS)
    return {"kernel": kernel, "bias": values((COLUMNS,))}


def exact_norm(update):
    """The norm without overflow or rounding worth speaking of, independent of fedpriv.tree."""
    flat = []
    for tensor in update.values():
        values = tensor.values if isinstance(tensor, RowSparse) else tensor
        flat += [float(x) for x in np.asarray(values).reshape(-1)]
    assert all(map(math.isfinite, flat))
    peak = max(map(abs, flat), default=0.0)
    if peak == 0.0:
        return 0.0
    exponent = math.frexp(peak)[1]
    root = math.sqrt(math.fsum(math.ldexp(x, -exponent) ** 2 for x in flat))
    return math.ldexp(root, exponent)


# The sum. Every law below goes through the real `bounded_sum`.


class Users:
    """Users whose update is written down: a tree, or something that raises or misbehaves."""

    def __init__(self, updates, sizes=None):
        self.updates, self.sizes = updates, sizes or {}

    def examples(self, user_id):
        return self.updates[user_id], range(self.sizes.get(user_id, 1))


class Written(UserTrainer):
    """Sends what is written down."""

    def train(self, params, context, examples, key):
        found = examples[0]
        return found(params, key) if callable(found) else found


def make_plan(**changes):
    given = {
        "num_users": 100, "expected_cohort_size": 7, "num_rounds": 5, "l2_bound": 0.5,
        "noise_multiplier": 1.5, "delta": 1e-3,
    }  # fmt: skip
    return clipped(**{**given, **changes})


def released(plan, total, key, context=Preconditioning(), params=PARAMS):  # noqa: B008 - frozen
    """The server's state after one round of a sum, from given params."""
    server = FederatedAveraging(optimizer=Sgd())
    state = server.init({n: t.copy() for n, t in params.items()})
    mechanism = plan.live_mechanism
    answer = mechanism.release(total, mechanism.draw(state.params, key))
    return server.next(state, answer, context)


def summed(bound, updates, user_ids=None, sizes=None, context=NO_CONTEXT):
    result = answered(
        Written(),
        params=PARAMS,
        bound=bound,
        data=Users(updates, sizes),
        user_ids=list(updates) if user_ids is None else user_ids,
        key=Key.simulation(0),
        context=context,
    )
    return result, tree.to_dense(result.real())
