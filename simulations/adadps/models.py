"""The auto-encoder and the LSTM of AdaDPS's experiments, as plain `nn.Module`s."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from fedpriv.models.text import lstm_step

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


class TextLSTM(nn.Module):
    """Embedding, two LSTM layers, the mean over time, and a dense layer.

    10,000 words of width 64, hidden width 64 and two classes make 706,690 parameters: 640,000 of
    the embedding, 2 x 33,280 of the LSTM layers (each 4 x 64 x (64 + 64) weights and, as in
    `nn.LSTM`, two biases of 256), and 130 of the last layer. Dropout acts between the two layers.

    Args:
        num_words: Of the vocabulary; ids are 0 to `num_words - 1`.
        num_classes: Of the last layer.
        width: Of the embedding and of each hidden state.
        num_layers: Of the LSTM.
        dropout: Rate of what is dropped between layers while training.
    """

    def __init__(
        self,
        num_words: int = 10_000,
        num_classes: int = 2,
        *,
        width: int = 64,
        num_layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width)
        self.layers = nn.ModuleList(_LSTMLayer(width, width) for _ in range(num_layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits of word ids `(n, time)`; every position counts, padding too."""
        states = self.embedding(words)
        for number, layer in enumerate(self.layers):
            states = layer(states if number == 0 else self.dropout(states))
        return self.head(states.mean(1))


class _LSTMLayer(nn.Module):
    """One layer with the arithmetic, and the initial weights, of `nn.LSTM`."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(width_in, 4 * width)
        self.from_state = nn.Linear(width, 4 * width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the states `(n, time, width)` for inputs `(n, time, width_in)`."""
        state = inputs.new_zeros(len(inputs), self.from_state.in_features)
        cell = torch.zeros_like(state)
        states = []
        for driven in self.from_input(inputs).unbind(1):
            state, cell = lstm_step(driven + self.from_state(state), cell)
            states.append(state)
        return torch.stack(states, dim=1)
