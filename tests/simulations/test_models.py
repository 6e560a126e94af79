"""The papers' models have the sizes that are printed, and compute what they say."""

import pytest
import torch
from torch import nn

from fedpriv.training.local.module import check_module
from simulations.adadps.models import Autoencoder, TextLSTM
from simulations.dpnsgd.resnet import ResNet20


@pytest.mark.parametrize(
    ("make", "size"), [(Autoencoder, 2_837_314), (ResNet20, 269_722), (TextLSTM, 706_690)]
)
def test_number_of_parameters(make, size):
    module = check_module(make())
    assert sum(p.numel() for p in module.parameters()) == size


def test_resnet_halves_the_image_twice_and_mixes_no_examples():
    module, x = ResNet20(), torch.randn(5, 3, 32, 32)
    assert module.blocks(x).shape == (5, 64, 8, 8)
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in module.modules()) == 20
    torch.testing.assert_close(module(x)[2:3], module(x[2:3]), rtol=1e-4, atol=1e-5)


def test_lstm_equals_torchs_own():
    torch.manual_seed(0)
    module = TextLSTM(num_words=30, width=8).eval()
    own = nn.LSTM(8, 8, num_layers=2, batch_first=True)
    with torch.no_grad():
        for number, layer in enumerate(module.layers):
            getattr(own, f"weight_ih_l{number}").copy_(layer.from_input.weight)
            getattr(own, f"weight_hh_l{number}").copy_(layer.from_state.weight)
            getattr(own, f"bias_ih_l{number}").copy_(layer.from_input.bias)
            getattr(own, f"bias_hh_l{number}").copy_(layer.from_state.bias)
    words = torch.randint(30, (4, 11))
    expected = module.head(own(module.embedding(words))[0].mean(1))
    torch.testing.assert_close(module(words), expected)
