"""The choice of how per-example gradients are made: no example reaches another, none is missed."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.mechanisms.bounds import Unbounded
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import example_sum
from tests.training.per_example.module.layers import (
    BOUND,
    CLASSES,
    EVERYBODY,
    KEY,
    NUM,
    Layer,
    furthest,
    gap,
    made,
)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, CLASSES)

    def forward(self, ids):
        return self.head(torch.tanh(self.words(ids)).mean(1))


def ids(length):
    return np.random.default_rng(5).integers(0, 9, (NUM, length))


def mixed(share, more_than=0):
    return lambda _, h: h - share * h.mean(0) if len(h) > more_than else h


@pytest.mark.parametrize("way", ["factors", "vmap"])
@pytest.mark.parametrize(
    "between",
    [
        mixed(1.0),
        mixed(1.0, more_than=4),
        lambda _, h: h + 0.1 * h.roll(1, 0),
        lambda _, h: h * len(h) ** 0.1,
        lambda _, h: torch.cat([h[:-1], 2 * h[-1:]]),
    ],
)
def test_what_would_mix_examples_is_given_one_at_a_time(between, way):
    """Red where a batch goes through the module at once: `furthest` is 1.3 to 40 bounds."""
    gradients, params = made(Layer(between), way=way)
    alone, _ = made(Layer(between), way="loop")
    assert gap(*(example_sum(g, params, EVERYBODY, BOUND) for g in (gradients, alone))) < 1e-5
    for size in (6, NUM):
        assert furthest(gradients, params, EVERYBODY[:size]) <= BOUND.l2_bound * (1 + 1e-5)


def test_words_are_vectorised():
    gradients, params = made(Words(), ids(4))
    alone, _ = made(Words(), ids(4), way="loop")
    assert gradients.way == "vmap"
    assert gap(*(example_sum(g, params, EVERYBODY, BOUND) for g in (gradients, alone))) < 1e-5


@pytest.mark.parametrize("way", ["factors", "vmap"])
def test_what_is_drawn_follows_from_the_key(way):
    def noisy(_, h):
        return h * torch.rand(())

    gradients, params = made(Layer(noisy), way=way)
    before = torch.get_rng_state()
    found, again, other = (
        example_sum(gradients, params, EVERYBODY, BOUND, key) for key in (KEY, KEY, KEY.fold(1))
    )
    assert gap(found, other) > 1e-3 and gap(found, again) == 0.0
    assert torch.equal(torch.get_rng_state(), before)  # of whoever calls


class TestPenalties:
    """The loss holds the module's own weights."""

    def penalised(self, **options):
        module = Layer()

        def loss(outputs, targets):
            return (
                functional.cross_entropy(outputs, targets) + 9 * module.above.weight.square().sum()
            )

        return made(module, loss=loss, **options)

    def test_are_in_the_gradient(self):
        gradients, params = self.penalised()
        assert gradients.way == "loop"
        total = example_sum(gradients, params, EVERYBODY, Unbounded())
        plain = example_sum(made(Layer())[0], params, EVERYBODY, Unbounded())
        expected = plain["above.weight"] - NUM * 18 * params["above.weight"]
        np.testing.assert_allclose(total["above.weight"], expected, rtol=1e-4, atol=1e-4)
        assert gap({"": total["below.weight"]}, {"": plain["below.weight"]}) < 1e-6

    @pytest.mark.parametrize("way", ["factors", "vmap"])
    def test_no_other_way_is_given(self, way):
        with refuses(ValueError, way):
            assert self.penalised(way=way)[0].way
