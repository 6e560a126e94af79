"""Many users at once equal one by one; whoever fails, fails alone."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import tree
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.module import module_params
from fedpriv.training.local.schedule import LocalSgd
from tests.harness.toys_of_training import cross_entropy, distance
from tests.tasks import people
from tests.training.local.vectorised.users import (
    CLASSES,
    MODELS,
    built,
    cohort,
    examples_of,
    keys,
    together,
    trainers,
)


def one_by_one(trainer, params, users):
    return [
        trainer.train(params, NO_CONTEXT, examples, key)
        for examples, key in zip(users.values(), keys(users), strict=True)
    ]


def assert_same_updates(found, expected, relative=1e-5):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        scale = tree.l2_norm(other)
        assert distance(one, other) <= relative * scale
        if scale == 0.0:
            assert tree.l2_norm(one) == 0.0


def kinds():
    """Every model with every number of users at once; by default each with one kind of batches."""
    batches = [(4, 1), (4, 3), (100, 1), (1, 2)]
    for model, name in enumerate(MODELS):
        for row, users_at_once in enumerate((2, 4, 100)):
            for number, (batch_size, epochs) in enumerate(batches):
                usual = number == (model + row) % len(batches)
                marks = () if usual else pytest.mark.slow
                yield pytest.param(name, batch_size, epochs, users_at_once, marks=marks)


class TestEqualsOneByOne:
    @pytest.mark.slow
    @pytest.mark.parametrize(("name", "batch_size", "epochs", "users_at_once"), list(kinds()))
    def test_ragged_users(self, name, batch_size, epochs, users_at_once, only_vectorised):
        module, shape = built(name)
        params, users = module_params(module), cohort(shape)
        alone, many = trainers(module, users_at_once, batch_size=batch_size, epochs=epochs)
        expected = one_by_one(alone, params, users)
        assert max(map(tree.l2_norm, expected)) > 0.01
        only_vectorised()
        assert_same_updates(together(many, params, users), expected)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", MODELS)
    def test_a_local_preconditioner(self, name, only_vectorised):
        module, shape = built(name)
        params, users = module_params(module), cohort(shape)
        rng = np.random.default_rng(2)
        # By its first axis, as the side information of a kernel's rows comes.
        multiplier = {
            n: rng.uniform(0.2, 2, p.shape[:1]).astype(np.float32) for n, p in params.items()
        }
        alone, many = trainers(module, multiplier=multiplier)
        plain, _ = trainers(built(name)[0])
        expected = one_by_one(alone, params, users)
        assert distance(expected[0], plain.train(params, NO_CONTEXT, users["u0"], keys(users)[0]))
        only_vectorised()
        assert_same_updates(together(many, params, users), expected)

    def test_the_key_and_nothing_else_chooses_the_batches(self, only_vectorised):
        module, shape = built("mlp")
        params, users = module_params(module), cohort(shape, sizes=(40, 40))
        users["u1"] = users["u0"]
        _, many = trainers(module)
        only_vectorised()
        first, second = together(many, params, users)
        assert distance(first, second) > 0


def weighted(outputs, targets):
    weights = torch.arange(1.0, CLASSES + 1)
    return cross_entropy(outputs, targets, weight=weights)


def ignoring(outputs, targets):
    return cross_entropy(outputs, targets, ignore_index=2)


def summed(outputs, targets):
    return cross_entropy(outputs, targets, reduction="sum")


def across(outputs, targets):
    return cross_entropy(outputs - outputs.mean(dim=0), targets)


def numpy_in_between(outputs, targets):
    return cross_entropy(outputs, targets) * float(targets.numpy().max() >= 0)


class Running(nn.Module):
    """Adds to a buffer in forward: what one user adds must not reach another."""

    def __init__(self, replaced):
        super().__init__()
        self.linear, self.replaced = nn.Linear(12, CLASSES), replaced
        self.register_buffer("running", torch.zeros(12))

    def forward(self, x):
        with torch.no_grad():
            if self.replaced:
                self.running = self.running + x.mean(dim=0)
            else:
                self.running += x.mean(dim=0)
        return self.linear(x + self.running)


class Hidden(nn.Linear):
    """Randomness that no layer shows."""

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class TestFallsBack:
    @pytest.mark.slow
    @pytest.mark.parametrize("loss", [weighted, ignoring, summed, across, numpy_in_between])
    def test_a_loss_that_is_not_a_mean_over_examples(self, loss):
        module, shape = built("mlp")
        params, users = module_params(module), cohort(shape)
        alone, many = trainers(module, loss=loss, learning_rate=0.05)
        assert_same_updates(together(many, params, users), one_by_one(alone, params, users))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: nn.Sequential(nn.Linear(12, 9), nn.Dropout(), nn.Linear(9, CLASSES)),
            lambda: Hidden(12, CLASSES),
        ],
        ids=["dropout", "hidden"],
    )
    def test_every_user_has_its_own_stream(self, make):
        module = make()
        params, users = module_params(module), cohort((12,))
        alone, many = trainers(module)
        expected = one_by_one(alone, params, users)
        assert_same_updates(together(many, params, users), expected, relative=0.0)

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_buffer_that_forward_changes(self, replaced):
        module = Running(replaced)
        params, users = module_params(module), cohort((12,))
        alone, many = trainers(module, learning_rate=0.05)
        expected = one_by_one(alone, params, users)
        assert not module.running.any()
        afresh, _ = trainers(Running(replaced), learning_rate=0.05)
        last = afresh.train(params, NO_CONTEXT, users["u9"], keys(users)[9])
        assert_same_updates([last], expected[9:], relative=0.0)
        assert_same_updates(together(many, params, users), expected)
        assert not module.running.any()


def test_why_users_are_trained_one_by_one_is_logged_once_a_run(caplog):
    users = {user: examples_of(6, (12,), seed=1) for user in "ab"}
    given = {"module": lambda: nn.Linear(12, 5), "users": users, "public": None}
    task = people.task(users_at_once=2, client_optimizer=torch.optim.Adam, **given)
    for _ in range(3):  # a run makes several trainers
        task.trainer(LocalSgd(learning_rate=0.1, batch_size=4), {})
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "Adam" in said[0]
