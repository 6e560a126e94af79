"""Toy users, modules and trainers, what they contribute, and how far two trees are apart."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import nn

from fedpriv import tree
from fedpriv.datasets.dataset import Dataset
from fedpriv.mechanisms import Clip
from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, RunningSum
from fedpriv.training.algorithm import NO_CONTEXT, TRAIN, Context, SumRequest
from fedpriv.training.bounded_sum import sum_bounded, template_with
from fedpriv.training.failures import raised_failures
from fedpriv.training.local.module import ArrayExamples, ModuleTrainer
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.per_example.example_sum import ExampleGradients, Examples
from fedpriv.training.permutation_sgd import PermutationSgd, shortened
from fedpriv.training.work import Attempt, UserTrainer, Work
from fedpriv.training.work import Users as DrawnUsers
from fedpriv.tree import Params, Tree

KEY, CLIP = Key.simulation(5), Clip(l2_clip_norm=1.0)
cross_entropy = nn.functional.cross_entropy
mse = nn.functional.mse_loss


class Users(dict):
    """Examples by user, as trainers ask for them."""

    def examples(self, user_id):
        return self[user_id]

    def num_examples(self, user_id):
        return len(self[user_id])


def linear_sgd(x: Any, y: Any, *, there: Any = None, **parts: Any) -> PermutationSgd:
    """Return permutation SGD of inputs, dense or CSR, all of which are there or some."""
    ones = np.ones((len(y), 1))
    given = sparse.hstack([x, ones]).tocsr() if sparse.issparse(x) else np.hstack([x, ones])
    rows = shortened(given, parts["constants"].inputs)
    if there is not None:
        rows = sparse.diags(np.asarray(there, float)) @ rows
    return PermutationSgd(rows=rows, y=np.asarray(y, np.int64), **parts)


def answered(
    work: Work,
    *,
    params: Params,
    bound: Bound = CLIP,
    user_ids: Sequence[str],
    key: Key = KEY,
    data: Any = None,
    context: Context = NO_CONTEXT,
) -> PartialSum:
    """Return what a work answers to a request of these parts."""
    request = SumRequest(params=params, context=context)
    return work.answer(request, Attempt(bound=bound, key=key), DrawnUsers(user_ids, data))


def asked(
    backend: Any,
    *,
    cohort: Sequence[str],
    params: Params,
    bound: Bound = CLIP,
    key: Key = KEY,
    work: str = TRAIN,
    template: Params | None = None,
    context: Context = NO_CONTEXT,
    round_num: int = 1,
    attempt: int = 1,
) -> PartialSum:
    """Return what a backend answers to a request of these parts."""
    request = SumRequest(params=params, context=context, work=work)
    given = Attempt(bound=bound, key=key, round_num=round_num, number=attempt, template=template)
    return backend.sum(request, given, cohort)


def bounded(bound: Bound, update: Tree, context: Context = NO_CONTEXT) -> dict[str, np.ndarray]:
    """Return one user's bounded contribution, dense float64.

    Raises:
        Exception: What its user would fail of.
    """
    like = {name: np.zeros(tensor.shape, np.float32) for name, tensor in update.items()}
    with raised_failures():
        found = answered(
            Given(), params=like, bound=bound, user_ids=["u"], data=Users(u=update), context=context
        )
    return tree.to_dense(found.real())


def example_sum(
    gradients: ExampleGradients,
    params: Params,
    index: Examples,
    bound: Bound,
    key: Key | None = None,
    *,
    context: Context = NO_CONTEXT,
) -> Params:
    """Return Σ bound(-∇f_i(params)) over examples, or Σ bound(mean of -∇f_i) over groups."""
    template = template_with(params, bound, context.clip_norm)
    stacks = gradients.stacks(params, index, key)
    done = sum_bounded(RunningSum(template, None), [stacks], bound, template, context)
    return tree.to_dense(done.total)


class Given(UserTrainer):
    """A user's example is its update."""

    def train(self, params, context, examples, key):
        return examples


def contributed(
    work: Any,
    params: Mapping[str, Any],
    users: Any = None,
    ids: Iterable[Any] | None = None,
    *,
    bound: Bound = CLIP,
    key: Key = KEY,
    context: Context = NO_CONTEXT,
) -> PartialSum:
    """Return the sum of bounded contributions.

    Args:
        work: A work.
        params: What it is done with.
        users: Their examples by id, or what has them; None where the work holds its examples.
        ids: Whose contributions are summed; by default all users'.
        bound: Of each contribution.
        key: Of the round.
        context: Likewise.
    """
    data = Users(users) if isinstance(users, dict) else users
    chosen = [str(one) for one in (users if ids is None else ids)]
    return answered(
        work, params=params, bound=bound, user_ids=chosen, key=key, data=data, context=context
    )


def labelled(number: int, shape: tuple[int, ...] = (4,), classes: int = 2, seed: int = 0):
    """Return so many examples of normals, whose labels know nothing of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, *shape)).astype(np.float32)
    return ArrayExamples(x, rng.integers(0, classes, number))


def trainer_of(module, users_at_once=None, *, loss=cross_entropy, multiplier=None, **schedule):
    """Return a trainer of a module: of users one by one, or of so many at once."""
    own = LocalSgd(**{"learning_rate": 0.5, **schedule})
    alone = ModuleTrainer(module=module, loss=loss, schedule=own, multiplier=multiplier or {})
    if users_at_once is None:
        return alone
    return VectorisedTrainer(alone=alone, users_at_once=users_at_once)


def data_set(x, y, test=None, **more) -> Dataset:
    """Return a data set that is tested on the same examples, or on others."""
    x_test, y_test = (x, y) if test is None else test
    given = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test, **more}
    return Dataset(name="d", provenance={}, **given)


class Partly(nn.Module):
    """A frozen layer below, maybe dropout, and a layer that the loss never sees."""

    def __init__(self, classes=4, dropout=0.5):
        super().__init__()
        self.below = nn.Linear(12, 6).requires_grad_(False)
        self.above = nn.Linear(6, classes, bias=False)
        self.unused = nn.Linear(2, 3)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.above(self.drop(torch.tanh(self.below(x))))


def convolutions(classes=4, dropout=0.3):
    """Return layers for pictures of two channels, the last of them lazy."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(3, 6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, (3, 2), groups=2, dilation=(1, 2), padding=(0, 2)),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.LazyLinear(classes),
    )


def mlp(inputs=12, hidden=9, classes=4):
    """Return two dense layers."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def zeros(**shapes):
    """Return params of zero, float32, by name."""
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def drawn(params, scale=1.0, seed=1):
    """Return params of normals, float32, of the same shapes."""
    rng = np.random.default_rng(seed)
    return {n: (scale * rng.normal(size=a.shape)).astype(np.float32) for n, a in params.items()}


def difference(left, right):
    """Return left minus right, of the right's names."""
    return {name: left[name] - right[name] for name in right}


def distance(left, right) -> float:
    """Return how far two trees are apart."""
    return tree.l2_norm(difference(left, right))


def gap(left, right) -> float:
    """Return the distance of two trees, relative to the second's length."""
    return distance(left, right) / max(tree.l2_norm(right), 1e-12)


def assert_same(found, expected) -> None:
    """Assert that two trees have the same names and numbers."""
    for ours, theirs, name in _pairs(found, expected):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def assert_near(found, expected, rtol=1e-5, atol=1e-6) -> None:
    """Assert that two trees have the same names, and numbers that are close."""
    for ours, theirs, name in _pairs(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol, err_msg=name)


def _pairs(found, expected):
    assert set(found) == set(expected)
    for name in expected:
        yield tree.to_dense_tensor(found[name]), tree.to_dense_tensor(expected[name]), name
