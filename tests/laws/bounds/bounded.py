"""Every bound, updates of every kind, their exact norms, and bounded sums."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from fedpriv import tree
from fedpriv.mechanisms import Clip, Normalise, Preconditioned, Rounded
from fedpriv.mechanisms.preconditioners import Preconditioning
from fedpriv.optimizers import sgd
from fedpriv.rng import Key
from fedpriv.training.federated_averaging import FederatedAveraging
from fedpriv.training.work import UserTrainer
from fedpriv.transform import identity
from fedpriv.tree import RowSparse
from tests.harness.toys_of_training import answered
from tests.privacy.plans.clipped import clipped

ROWS, COLUMNS = 40, 3
PARAMS = {"kernel": np.zeros((ROWS, COLUMNS), np.float32), "bias": np.zeros(COLUMNS, np.float32)}
_rng = np.random.default_rng(5)
MULTIPLIER = {
    # Condition number 1e8, one factor for each row; the bias has none.
    "kernel": (10.0 ** _rng.uniform(-4, 4, (ROWS, 1))).astype(np.float32)
}
BOUNDS = {
    "clip": lambda c: Clip(l2_clip_norm=c),
    "normalise": lambda c: Normalise(l2_clip_norm=c),
    "normalise-regularised": lambda c: Normalise(l2_clip_norm=c, regulariser=0.3 * c),
    "precondition-clip": lambda c: Preconditioned(
        multiplier=MULTIPLIER, bound=Clip(l2_clip_norm=c)
    ),
    "precondition-normalise": lambda c: Preconditioned(
        multiplier=MULTIPLIER, bound=Normalise(l2_clip_norm=c)
    ),
    "rounded-clip": lambda c: Rounded(bound=Clip(l2_clip_norm=c)),
    "rounded-normalise": lambda c: Rounded(bound=Normalise(l2_clip_norm=c)),
    "rounded-precondition": lambda c: Rounded(
        bound=Preconditioned(multiplier=MULTIPLIER, bound=Clip(l2_clip_norm=c))
    ),
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


# The sum. Every law below goes through the real `partial_sum`.


class Users(UserTrainer):
    """Users whose update is written down: a tree, or something that raises or misbehaves."""

    def __init__(self, updates, sizes=None):
        self.updates, self.sizes = updates, sizes or {}

    def examples(self, user_id):
        return self.updates[user_id], range(self.sizes.get(user_id, 1))

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
    server = FederatedAveraging(optimizer=sgd(1.0), aggregate=identity())
    state = server.init({n: t.copy() for n, t in params.items()})
    mechanism = plan.live_mechanism
    answer = mechanism.release(total, mechanism.draw(state.params, key))
    return server.next(state, answer, context)


def summed(bound, updates, user_ids=None, sizes=None):
    users = Users(updates, sizes)
    result = answered(
        users,
        params=PARAMS,
        bound=bound,
        data=users,
        user_ids=list(updates) if user_ids is None else user_ids,
        key=Key.simulation(0),
    )
    return result, tree.to_dense(result.real())
