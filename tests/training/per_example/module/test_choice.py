"""The choice of how per-example gradients are made: what would pass the bound by is found."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.mechanisms.bounds import Unbounded
from fedpriv.training.per_example import module as ways
from fedpriv.training.per_example.losses import synthetic_inputs
from tests.harness.refusals import refuses
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


class Narrow(Layer):
    """The same, that cannot be tried in float64."""

    def forward(self, x):
        return super().forward(x.float())


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


class TestMixing:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("module", "between"),
        [
            (Layer, mixed(1.0, more_than=4)),
            (Layer, mixed(1e-3, more_than=4)),
            (Narrow, mixed(1.0, more_than=4)),
            (Narrow, mixed(0.01)),
            (Narrow, mixed(1e-4, more_than=4)),
            (Layer, lambda _, h: h + 0.1 * h.roll(1, 0) if len(h) > 4 else h),
            (Layer, lambda _, h: h * len(h) ** 0.1),
            (Layer, lambda _, h: torch.cat([h[:-1], 2 * h[-1:]]) if len(h) > 4 else h),
        ],
    )
    def test_what_mixes_examples_does_not_go_in_one_batch(self, module, between):
        gradients, params = made(module(between))
        assert gradients.way == "vmap"
        for size in (6, NUM):
            moved = furthest(gradients, params, EVERYBODY[:size])
            assert moved <= BOUND.l2_bound * (1 + 1e-5)
        with refuses(ValueError, "factors"):
            assert made(module(between), way="factors")[0].way

    def test_narrow_modules_that_do_not_mix_go_the_quick_way(self):
        assert made(Narrow())[0].way == "factors"

    def test_words_that_mix_are_seen(self):
        class Mixed(Words):
            def forward(self, ids):
                own = super().forward(ids)
                return own - 0.01 * own.mean(0) if len(ids) > 4 else own

        assert made(Mixed(), ids(4))[0].way == "vmap"

    @pytest.mark.slow
    def test_tried_is_the_chunk_that_will_be_used(self, monkeypatch):
        sizes = []

        def drawn(module, x, y, number, dtype):
            sizes.append(number)
            return synthetic_inputs(module, x, y, number, dtype)

        monkeypatch.setattr(ways, "synthetic_inputs", drawn)
        for chunk, most in ((None, NUM), (10, 10), (100, NUM), (2, 3)):
            sizes.clear()
            assert made(Layer(), chunk=chunk)[0].way == "factors"
            assert max(sizes) == most


@pytest.mark.parametrize("way", ["factors", "vmap"])
def test_what_draws_elsewhere_goes_one_by_one_in_the_module(way):
    def rare(_, h):  # nothing is ever dropped, and the stream moves on
        return h * (torch.rand(()) < 2.0)

    if way == "factors":
        with refuses(ValueError, way):
            assert made(Layer(rare), way=way)[0].way
        return
    gradients, params = made(Layer(rare), way=way)
    with refuses(ValueError, "key"):
        gradients.bounded_sum(params, EVERYBODY, BOUND)
    plain, _ = made(Layer())
    expected = plain.bounded_sum(params, EVERYBODY, BOUND)
    assert gap(gradients.bounded_sum(params, EVERYBODY, BOUND, KEY), expected) < 1e-6


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
        total = gradients.bounded_sum(params, EVERYBODY, Unbounded())
        plain = made(Layer())[0].bounded_sum(params, EVERYBODY, Unbounded())
        expected = plain["above.weight"] - NUM * 18 * params["above.weight"]
        np.testing.assert_allclose(total["above.weight"], expected, rtol=1e-4, atol=1e-4)
        assert gap({"": total["below.weight"]}, {"": plain["below.weight"]}) < 1e-6

    @pytest.mark.parametrize("way", ["factors", "vmap"])
    def test_no_other_backend_is_given(self, way):
        with refuses(ValueError, way):
            assert self.penalised(way=way)[0].way
