"""The auto-encoder of MNIST that second-order methods are compared on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

_WIDTHS = (784, 1000, 500, 250, 30)


class Autoencoder(nn.Module):
    """Dense layers down to a code and back, 784-1000-500-250-30-250-500-1000-784.

    Sigmoids everywhere except on the code, which is linear. 2,837,314 parameters at these widths;
    trained on the mean squared error between output and input.

    Args:
        widths: Of the layers, from the image to the code.
        gain: Weights start uniform with variance gain² 2 / (in + out), biases at zero. At 1 the
            image is lost on its way through seven sigmoids of slope 1/4, and training stays for
            epochs at the mean image; at 4 what goes in comes through.

    Reference: Hinton and Salakhutdinov, "Reducing the Dimensionality of Data with Neural Networks"
    (2006); these sizes are those of Li et al. (AdaDPS, 2022); the start: Glorot and Bengio,
    "Understanding the difficulty of training deep feedforward neural networks" (2010), eq. 16.
    """

    def __init__(self, widths: Sequence[int] = _WIDTHS, gain: float = 1.0) -> None:
        super().__init__()
        down, up = list(pairwise(widths)), list(pairwise(tuple(reversed(widths))))
        self.encoder = _sigmoid_layers(down, gain, last=False)
        self.decoder = _sigmoid_layers(up, gain, last=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return reconstructions in (0, 1) of inputs `(n, 784)`."""
        return self.decoder(self.encoder(inputs))


def _sigmoid_layers(shapes: list[tuple[int, int]], gain: float, *, last: bool) -> nn.Sequential:
    """Return dense layers, a sigmoid after each but, on request, the last."""
    layers: list[nn.Module] = []
    for number, (width_in, width_out) in enumerate(shapes, 1):
        dense = nn.Linear(width_in, width_out)
        nn.init.xavier_uniform_(dense.weight, gain)
        nn.init.zeros_(dense.bias)
        layers.append(dense)
        if last or number < len(shapes):
            layers.append(nn.Sigmoid())
    return nn.Sequential(*layers)
