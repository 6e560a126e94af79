"""The choice of how per-example gradients are made: what would pass the bound by is found."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.mechanisms.bounds import Unbounded
from fedpriv.training.per_example import backends
from fedpriv.training.per_example.backends import choose, synthetic_inputs
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import cross_entropy, gap
from tests.training.per_example.backends.layers import (
    BOUND,
    CLASSES,
    EVERYBODY,
    NUM,
    WIDTH,
    Layer,
    furthest,
    made,
)


class Narrow(Layer):
    """The same, that cannot be tried in float64."""

    def forward(self, x):
        return super().forward(x.float())


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
        assert gradients.backend == "vmap"
        for size in (6, NUM):
            moved = furthest(gradients, params, EVERYBODY[:size])
            assert moved <= BOUND.l2_bound * (1 + 1e-5)
        with refuses(ValueError, "ghost"):
            assert made(module(between), backend="ghost")[0].backend

    def test_narrow_modules_that_do_not_mix_go_the_quick_way(self):
        assert made(Narrow())[0].backend == "ghost"

    def test_words_that_mix_are_seen(self):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, CLASSES)

            def forward(self, ids):
                own = self.head(torch.tanh(self.words(ids)).mean(1))
                return own - 0.01 * own.mean(0) if len(ids) > 4 else own

        ids = np.random.default_rng(5).integers(0, 9, (NUM, 4))
        assert made(Mixed(), ids)[0].backend == "vmap"

    @pytest.mark.slow
    def test_tried_is_the_chunk_that_will_be_used(self, monkeypatch):
        sizes = []

        def drawn(module, x, y, number, dtype):
            sizes.append(number)
            return synthetic_inputs(module, x, y, number, dtype)

        monkeypatch.setattr(backends, "synthetic_inputs", drawn)
        x, y = np.zeros((40, WIDTH), np.float32), np.zeros(40, np.int64)
        for chunk, most in ((None, 40), (10, 10), (100, 40), (2, 3)):
            sizes.clear()
            choose(Layer(), cross_entropy, x, y, chunk=chunk)
            assert max(sizes) == most
        monkeypatch.setattr(backends, "bytes_at_once", lambda device: 32 << 20)
        wide = nn.Sequential(Layer(), nn.Linear(CLASSES, 1 << 17), nn.Linear(1 << 17, CLASSES))
        sizes.clear()
        made_for = choose(wide, cross_entropy, x, y, chunk=30)
        assert 1 < made_for.chunk < 30 and max(sizes) == max(3, made_for.chunk)


def rare(_, h):
    """Nothing is ever dropped, and the stream moves on."""
    return h * (torch.rand(()) < 2.0)


def penalised(**options):
    """Of a loss that holds the module's own weights."""
    module = Layer()

    def loss(outputs, targets):
        return cross_entropy(outputs, targets) + 9 * module.above.weight.square().sum()

    return made(module, loss=loss, **options)


def test_penalties_are_in_the_gradient():
    gradients, params = penalised()
    assert gradients.backend == "loop"
    total = gradients.bounded_sum(params, EVERYBODY, Unbounded())
    plain = made(Layer())[0].bounded_sum(params, EVERYBODY, Unbounded())
    expected = plain["above.weight"] - NUM * 18 * params["above.weight"]
    np.testing.assert_allclose(total["above.weight"], expected, rtol=1e-4, atol=1e-4)
    assert gap({"": total["below.weight"]}, {"": plain["below.weight"]}) < 1e-6


@pytest.mark.parametrize("backend", ["ghost", "vmap"])
def test_what_draws_or_is_penalised_is_given_no_other_backend(backend):
    with refuses(ValueError, "loop"):
        assert made(Layer(rare), backend=backend)[0].backend
    with pytest.raises(ValueError):
        assert penalised(backend=backend)[0].backend
