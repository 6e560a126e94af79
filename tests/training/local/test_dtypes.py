"""Examples kept in any dtype train the model that float32 and int64 train."""

import numpy as np
import pytest
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.rng import Key
from fedpriv.tasks.module_task import ArrayUsers
from fedpriv.training.local.module import (
    ArrayExamples,
    ModuleTrainer,
    module_params,
)
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.vectorised import VectorisedTrainer
from fedpriv.training.per_example.module import ModuleGradients
from fedpriv.training.work import as_work


def partial_sum(*, trainer, **given):
    return as_work(trainer).partial_sum(**given)


KEY = Key.simulation(0)
SCHEDULE = Schedule(learning_rate=0.5, batch_size=3, epochs=2)
RNG = np.random.default_rng(0)
X = RNG.integers(-3, 4, (8, 4)).astype(np.float32)  # exact in every float dtype
Y = RNG.integers(0, 2, 8)
FLOATS = [np.float16, np.float64, np.longdouble]
INTEGERS = [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.uint64, np.bool_]


def module():
    made = nn.Linear(4, 2)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made


def updates(x, y, users_at_once):
    trainer = ModuleTrainer(module=module(), loss=nn.functional.cross_entropy, schedule=SCHEDULE)
    if users_at_once > 1:
        trainer = VectorisedTrainer(alone=trainer, users_at_once=users_at_once)
    done = partial_sum(
        params=module_params(module()),
        bound=Clip(l2_clip_norm=10.0),
        trainer=trainer,
        data=ArrayUsers({"a": ArrayExamples(x, y)}),
        user_ids=("a",),
        key=KEY,
    )
    assert done.num_failed == 0
    return done.total


@pytest.mark.slow
def test_local_training(subtests):
    """Red before: every such user raised within torch and contributed zero."""
    for users_at_once in [1, 32]:
        for x, y in [(X.astype(dtype), Y) for dtype in FLOATS] + [
            (X, Y.astype(dtype)) for dtype in INTEGERS
        ]:
            with subtests.test(users_at_once=users_at_once, x=x, y=y):
                expected, found = updates(X, Y, users_at_once), updates(x, y, users_at_once)
                assert np.abs(expected["weight"]).max() > 0
                for name in expected:
                    np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint16, np.int32, np.int64])
def test_words_of_every_integer_type_reach_an_embedding(dtype):
    words = np.array([[1, 2], [3, 0]], dtype)
    embed = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    trainer = ModuleTrainer(module=embed, loss=nn.functional.cross_entropy, schedule=SCHEDULE)
    update = trainer.train(module_params(embed), ArrayExamples(words, np.array([0, 1])), KEY)
    assert all(np.isfinite(array).all() for array in update.values())


@pytest.mark.parametrize(("x", "y"), [(np.float64, np.int64), (np.float32, np.uint8)])
def test_single_examples(x, y):
    """Red before: the run ended in a traceback of torch's, after its first charge."""

    def total(inputs, targets):
        gradients = ModuleGradients(module(), nn.functional.cross_entropy, inputs, targets)
        params, bound = module_params(module()), Clip(l2_clip_norm=1.0)
        return gradients.bounded_sum(params, np.arange(8), bound, KEY), gradients.way

    expected, found = total(X, Y), total(X.astype(x), Y.astype(y))
    for name, array in expected[0].items():
        np.testing.assert_array_equal(found[0][name], array)
    assert found[1] == expected[1]
