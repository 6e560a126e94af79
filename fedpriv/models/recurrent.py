"""Recurrent networks, written from dense layers so that per-example gradients have a rule."""

from __future__ import annotations

import torch
from torch import nn


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
            gates = driven + self.from_state(state)
            enters, forgets, new, leaves = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forgets) * cell + torch.sigmoid(enters) * torch.tanh(new)
            state = torch.sigmoid(leaves) * torch.tanh(cell)
            states.append(state)
        return torch.stack(states, dim=1)
