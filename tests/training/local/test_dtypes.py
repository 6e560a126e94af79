"""Examples kept in any dtype train the model that float32 and int64 train."""

import numpy as np
import pytest
from torch import nn

from fedpriv.mechanisms import Clip
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.local.module import ArrayExamples, module_params
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.toys_of_training import (
    CLIP,
    KEY,
    assert_same,
    contributed,
    cross_entropy,
    example_sum,
    trainer_of,
)

STEPS = {"batch_size": 3, "epochs": 2}
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
    users = {"a": ArrayExamples(x, y)}
    trainer = trainer_of(module(), users_at_once, **STEPS)
    done = contributed(trainer, module_params(module()), users, bound=Clip(l2_clip_norm=10.0))
    assert done.num_failed == 0
    return done.total


@pytest.mark.slow
def test_local_training(subtests):
    for users_at_once in [None, 32]:
        for x, y in [(X.astype(dtype), Y) for dtype in FLOATS] + [
            (X, Y.astype(dtype)) for dtype in INTEGERS
        ]:
            with subtests.test(users_at_once=users_at_once, x=x, y=y):
                expected, found = updates(X, Y, users_at_once), updates(x, y, users_at_once)
                assert np.abs(expected["weight"]).max() > 0
                assert_same(found, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint8, np.uint16, np.int32, np.int64])
def test_words_of_every_integer_type_reach_an_embedding(dtype):
    words = np.array([[1, 2], [3, 0]], dtype)
    embed = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    examples = ArrayExamples(words, np.array([0, 1]))
    update = trainer_of(embed, **STEPS).train(module_params(embed), NO_CONTEXT, examples, KEY)
    assert all(np.isfinite(array).all() for array in update.values())


@pytest.mark.parametrize(("x", "y"), [(np.float64, np.int64), (np.float32, np.uint8)])
def test_single_examples(x, y):
    def total(inputs, targets):
        gradients = ModuleGradients(module(), cross_entropy, inputs, targets)
        params = module_params(module())
        return example_sum(gradients, params, np.arange(8), CLIP, KEY), gradients.way

    expected, found = total(X, Y), total(X.astype(x), Y.astype(y))
    assert_same(found[0], expected[0])
    assert found[1] == expected[1]
