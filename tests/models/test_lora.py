"""Low-rank adapters of linear layers: the frozen module at first, and their merged weights."""

import pytest
import torch
from torch import nn

from fedpriv.models.lora import LowRank, add_adapters, merge_adapters
from tests.harness.refusals import refuses


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.dense = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.dense(torch.tanh(self.query(x)))


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
        self.pooler = nn.Linear(4, 4)

    def forward(self, x):
        return self.pooler(self.blocks[0](x))


X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def body():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Body()


def trained(module):
    return {name for name, p in module.named_parameters() if p.requires_grad}


def test_at_first_it_is_the_frozen_module():
    adapted = add_adapters(body(), rank=2)
    assert torch.equal(adapted(X), body()(X))
    assert trained(adapted) == {
        f"blocks.0.{name}.lora_{matrix}.weight" for name in ("query", "dense") for matrix in "ab"
    }


@pytest.mark.parametrize("matrices", [None, ["query"], ["blocks.0.dense", "pooler"]])
def test_merged_weights_have_the_outputs_and_the_names_of_before(matrices):
    adapted = add_adapters(body(), 2, matrices, scale=0.7)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_b" in name:
                parameter.copy_(torch.randn(parameter.shape))
    expected = adapted(X)
    assert (expected - body()(X)).abs().max() > 0.1
    merged = merge_adapters(adapted)
    torch.testing.assert_close(merged(X), expected, rtol=1e-5, atol=1e-5)
    assert set(merged.state_dict()) == set(body().state_dict())


@pytest.mark.slow
def test_weights_of_transformers_conv1d_are_transposed():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    layer = LowRank(Conv1D(8, 3), rank=2, scale=1.0, freeze_a=False)
    nn.init.normal_(layer.lora_b.weight)
    x = torch.randn(4, 3)
    expected = layer(x)
    torch.testing.assert_close(layer.merged()(x), expected, rtol=1e-5, atol=1e-5)


def test_the_first_matrix_can_stay_frozen():
    adapted = add_adapters(body(), 2, freeze_a=True)
    assert trained(adapted) == {"blocks.0.query.lora_b.weight", "blocks.0.dense.lora_b.weight"}


def test_what_does_not_fit_is_refused():
    with refuses(ValueError, "value", "query"):
        add_adapters(body(), 2, ["query", "value"])
    with refuses(ValueError, 5, 4, 6):
        add_adapters(body(), 5)
    with pytest.raises(ValueError):
        add_adapters(nn.Sequential(nn.Linear(2, 2)), 1)
