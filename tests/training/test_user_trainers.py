"""What trainers of users contribute: tensors of the params' form, and what a bound adds to them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import tree
from fedpriv.mechanisms import AdaptiveClip, Rounded, Unbounded
from fedpriv.mechanisms.bounds import WITHIN
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.training.algorithm import Context
from fedpriv.training.local.module import ArrayExamples, module_params
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.work import Select, UserTrainer, as_works
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import (
    KEY,
    Given,
    assert_near,
    assert_same,
    contributed,
    labelled,
    trainer_of,
    zeros,
)
from tests.tasks.people import task

USERS = {
    name: ArrayExamples(np.full((3, 4), size, np.float32), np.zeros(3, np.int64))
    for name, size in zip("abc", (0.1, 1.0, 9.0), strict=True)
}
CLIPPING = AdaptiveClip(l2_clip_norm=1.0, least=0.1, most=10.0)


@pytest.mark.slow
@pytest.mark.parametrize("users_at_once", [1, 4])
@pytest.mark.parametrize("bound", [CLIPPING, Rounded(bound=CLIPPING)], ids=["floats", "grid"])
def test_what_a_bound_adds_is_in_every_engines_sum(users_at_once, bound):
    """Of three users the shortest alone is within the clip norm."""
    made = task(users=USERS, users_at_once=users_at_once)
    work, params = made.trainer(LocalSgd(learning_rate=0.1), {}), made.init_params(KEY)
    raw = [
        tree.l2_norm(contributed(work, params, USERS, [user], bound=Unbounded()).real())
        for user in USERS
    ]
    context = Context(clip_norm=(raw[0] + raw[1]) / 2)
    assert raw[0] < context.clip_norm < min(raw[1:])
    found = contributed(work, params, USERS, bound=bound, context=context)
    assert found.num_failed == 0 and set(found.total) == {*params, WITHIN}
    assert found.real()[WITHIN] == pytest.approx((1 - 2) * CLIPPING.count_weight, rel=1e-5)
    parts = [
        contributed(work, params, USERS, [user], bound=bound, context=context).real()
        for user in USERS
    ]
    assert_near(found.real(), {n: sum(part[n] for part in parts) for n in found.total})


@pytest.mark.parametrize(
    ("sent", "failed"),
    [
        ({"w": np.ones(3, np.float32)}, 0),
        ({"w": np.ones(1, np.float32)}, 1),
        ({"other": np.ones(3, np.float32)}, 1),
        ({"w": np.ones(3, np.float32), WITHIN: np.ones(1, np.float32)}, 1),
        ({}, 1),
    ],
)
@pytest.mark.parametrize("bound", [CLIPPING, Rounded(bound=CLIPPING)], ids=["floats", "grid"])
def test_a_user_whose_update_has_another_form_contributes_zero(sent, failed, bound):
    """Its count is not its own to send: what a bound adds, a user's update has no name for."""
    users = {"a": {"w": np.full(3, 0.2, np.float32)}, "b": sent}
    context = Context(clip_norm=1.0)
    found = contributed(Given(), zeros(w=3), users, bound=bound, context=context)
    assert found.num_failed == failed
    alone = contributed(Given(), zeros(w=3), users, ["a"], bound=bound, context=context)
    same = all(np.array_equal(found.total[name], a) for name, a in alone.total.items())
    assert same == bool(failed)


def test_what_neither_trains_nor_sums_is_refused():
    with refuses(TypeError, "object", "UserTrainer"):
        as_works(object())  # pyright: ignore[reportArgumentType]
    with refuses(TypeError, "object"):
        as_works({"train": Given(), "losses": object()})  # pyright: ignore[reportArgumentType]


def of_the_rounds_share(context, examples, key):
    """As many of a user's examples as the round says, drawn by its key."""
    if not examples.x[0, 0] < 2.0:
        raise ValueError("no such examples")
    number = int(context.extra["number"][0])
    return examples.take(key.fold("select").generator().permutation(len(examples))[:number])


@dataclass(frozen=True, kw_only=True)
class Means(UserTrainer):
    """One user's mean example."""

    select: Select | None = None

    def train(self, params, context, examples, key):
        return {"w": examples.x.mean(axis=0)}


@pytest.mark.parametrize("engine", ["plain", "many"])
def test_a_user_trains_on_what_is_selected_of_its_examples(engine):
    """By the round, its examples and its key; whoever cannot be selected from adds zero, alone."""
    users = {name: labelled(6, seed=seed) for seed, name in enumerate("abc")}
    users["bad"] = ArrayExamples(np.full((6, 4), np.nan, np.float32), np.zeros(6, np.int64))
    if engine == "plain":
        work, params = Means(), zeros(w=4)
    else:
        work = trainer_of(nn.Linear(4, 2), users_at_once=2)
        params = module_params(work.alone.module)
    selecting = replace(work, select=of_the_rounds_share)
    for number in (2, 5):
        context = Context(extra={"number": np.array([number], np.float32)})
        found = contributed(selecting, params, users, context=context)
        own = {
            user: of_the_rounds_share(context, examples, KEY.fold(user))
            for user, examples in users.items()
            if user != "bad"
        }
        assert (found.num_users, found.num_failed) == (4, 1)
        assert_same(found.total, contributed(work, params, own).total)


class Writes(UserTrainer):
    """Writes into all that it is given, by ways that NumPy's flag does not see."""

    def train(self, params, context, examples, key):
        before = {name: array.copy() for name, array in params.items()}
        for given in (params, context.extra, context.multiplier, context.mixture.offset):
            for array in given.values():
                torch.from_numpy(array).add_(examples)
            given["w"] = given["w"] + np.float32(examples)
        update = {name: params[name] - before[name] for name in before}
        context.extra.pop("w")
        return update


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_what_a_user_writes_into_what_it_is_given_reaches_nobody_else():
    ones = {"w": np.ones(3, np.float32)}
    state = {"w": np.zeros(3, np.float32)}
    context = Context(
        extra=ones, multiplier=ones, mixture=Mixture(own=1.0, offset={"w": np.zeros(3, np.float32)})
    )
    users = {"a": 1.0, "b": 100.0, "c": 3.0}
    found = contributed(Writes(), state, users, bound=Unbounded(), context=context).real()["w"]
    np.testing.assert_allclose(found, 2 * (1.0 + 100.0 + 3.0))
    assert not state["w"].any() and (ones["w"] == 1).all()


def writes_and_takes_all(context, examples, key):
    """Selects all, and writes into the round's own tensors."""
    for given in (context.extra, context.multiplier):
        for array in given.values():
            torch.from_numpy(array).add_(float(examples.x[0, 0]))
    return examples


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("engine", ["plain", "many"])
def test_what_a_selection_writes_reaches_nobody_else(engine):
    users = {name: labelled(6, seed=seed) for seed, name in enumerate("abc")}
    if engine == "plain":
        work, params = Means(select=writes_and_takes_all), zeros(w=4)
    else:
        many = trainer_of(nn.Linear(4, 2), 4)
        work = replace(many, select=writes_and_takes_all)
        params = module_params(many.alone.module)
    ones = {name: np.ones_like(array) for name, array in params.items()}
    context = Context(extra=ones, multiplier=ones)
    bound = Unbounded()
    together = contributed(work, params, users, bound=bound, context=context).real()
    alone = [contributed(work, params, users, [u], bound=bound, context=context) for u in users]
    expected = {name: sum(one.real()[name] for one in alone) for name in params}
    assert_near(together, expected)
    assert all((array == 1).all() for array in ones.values())
