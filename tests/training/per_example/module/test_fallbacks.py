"""What no rule covers goes to a safe way; what is wrong is named."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.mechanisms.bounds import Clip
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example import module as ways
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import KEY, cross_entropy, example_sum, gap
from tests.training.per_example.module.models import (
    CLASSES,
    EVERYBODY,
    NUM,
    floats,
)


def test_chunks_are_as_large_as_memory_allows(monkeypatch):
    monkeypatch.setattr(ways, "bytes_at_once", lambda device: 36 << 20)
    wide = nn.Linear(1000, 1000)
    x, y = np.zeros((4, 1000), np.float32), np.zeros((4, 1000), np.float32)
    for way, chunk in (("factors", 1024), ("vmap", 3), ("loop", 3)):
        made = ModuleGradients(wide, functional.mse_loss, x, y, way=way)
        assert made._chunk(dense=False) == chunk
    assert made._chunk(dense=True) == 3


class Odd(nn.Module):
    """A dense layer and something that no rule covers."""

    def __init__(self, kind):
        super().__init__()
        self.layer = nn.Linear(12, CLASSES)
        self.kind = kind
        if kind == "lstm":
            self.more = nn.LSTM(3, 4, batch_first=True)
        if kind == "own parameter":
            self.more = nn.Parameter(torch.ones(CLASSES))
        if kind == "tied":
            self.more = nn.Linear(12, CLASSES)
            self.more.weight = self.layer.weight
        if kind == "round the corner":
            self.more = nn.Conv2d(1, CLASSES, 3, padding=1, padding_mode="circular")
        if kind == "counts":
            self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.kind == "past its layer":
            return self.layer(x) + functional.linear(x.square(), self.layer.weight)
        if self.kind == "functional dropout":
            return functional.dropout(self.layer(x), 0.5, self.training)
        if self.kind == "lstm":
            return self.more(self.layer(x).reshape(-1, 4, 1).expand(-1, 4, 3))[0].mean(1)
        if self.kind == "own parameter":
            return self.layer(x) * self.more
        if self.kind == "tied":
            return self.layer(x) + self.more(x.square())
        if self.kind == "round the corner":
            return self.more(x.reshape(-1, 1, 3, 4)).mean((2, 3)) + self.layer(x)
        if self.kind == "counts":
            self.seen += len(x)
            return self.layer(x) * self.seen
        if self.kind == "looks at values":
            return self.layer(x) * (2.0 if x.sum().item() > 0 else 1.0)
        return self.layer(x - x.mean(0))  # mixes examples


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("past its layer", "vmap"),
        ("functional dropout", "factors"),
        ("lstm", None),  # which way depends on the processor
        ("own parameter", "vmap"),
        ("tied", "vmap"),
        ("counts", "loop"),
        ("looks at values", "loop"),
        ("round the corner", "vmap"),
        ("mixes examples", "factors"),
    ],
)
def test_what_no_rule_covers_goes_to_a_safe_backend(kind, way):
    torch.manual_seed(0)
    module, rng = Odd(kind), np.random.default_rng(0)
    x, y = floats(12)(rng), rng.integers(0, CLASSES, NUM)
    gradients = ModuleGradients(module, cross_entropy, x, y)
    params, bound = module_params(module), Clip(l2_clip_norm=0.7)
    assert way in (None, gradients.way)
    if way != "factors":
        with refuses(ValueError, "factors"):
            example_sum(
                ModuleGradients(module, cross_entropy, x, y, way="factors"),
                params,
                EVERYBODY,
                bound,
                KEY,
            )
    if kind == "functional dropout":  # which another place in the batch draws otherwise
        return
    total = example_sum(gradients, params, EVERYBODY, bound, KEY)
    singles = [example_sum(gradients, params, np.array([i]), bound, KEY) for i in EVERYBODY]
    assert gap({n: sum(one[n] for one in singles) for n in params}, total) < 1e-6


def test_a_loss_that_mixes_examples_is_taken_apart():
    def weighted(outputs, targets):  # a mean by weight: a batch's is not the mean of its examples'
        return functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 5.0, 0.1, 2.0]))

    rng = np.random.default_rng(0)
    x, y = floats(12)(rng), rng.integers(0, CLASSES, NUM)
    module = nn.Linear(12, CLASSES)
    params = module_params(module)
    sums = [
        example_sum(
            ModuleGradients(module, weighted, x, y, way=way),
            params,
            EVERYBODY,
            Clip(l2_clip_norm=0.7),
        )
        for way in ("factors", "loop")
    ]
    assert gap(*sums) < 1e-5


class ByIndex(nn.Module):
    """A frozen look-up, or a fill, by the first number of an example."""

    def __init__(self, *, fills):
        super().__init__()
        self.layer, self.fills = nn.Linear(4, CLASSES), fills
        self.words = nn.Embedding(5, 4).requires_grad_(False)

    def forward(self, x):
        index = x[:, 0].long()
        if self.fills:
            return self.layer(torch.tanh(x).index_fill(1, index, 0.0))
        return self.layer(x + self.words(index))


@pytest.mark.parametrize("fills", [True, False])
@pytest.mark.parametrize("way", ways.WAYS)
def test_an_index_beyond_its_own_contributes_zero_alone(way, fills):
    """Red without `IndicesWithin`: a fill blanks the next example, which moves by 1.06 bounds."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, CLASSES, 6)
    x[:, 0] = [0, 1, 7, 1, 0, 2]
    module = ByIndex(fills=fills)
    gradients = ModuleGradients(module, cross_entropy, x, y, way=way)
    params, bound = module_params(module), Clip(l2_clip_norm=0.1)
    found = example_sum(gradients, params, np.arange(6), bound)
    assert gap(found, example_sum(gradients, params, np.array([0, 1, 3, 4, 5]), bound)) < 1e-6
    losses = gradients.losses_along(params, params, [0.5], np.arange(6))
    assert np.isfinite(np.delete(losses, 2)).all() and not np.isfinite(losses[2]).any()
