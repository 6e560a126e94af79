"""Recurrent text models: a classifier and a next-word model.

They are written from dense layers, so that per-example gradients have a rule for each.
"""

from __future__ import annotations

import torch
from torch import nn


def lstm_step(gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next state and cell, `(n, width)` each, of gates `(n, 4 width)`."""
    enters, forgets, new, leaves = gates.chunk(4, dim=1)
    cell = torch.sigmoid(forgets) * cell + torch.sigmoid(enters) * torch.tanh(new)
    return torch.sigmoid(leaves) * torch.tanh(cell), cell


IGNORED = -100
"""A target that is not counted, as PyTorch's losses have it."""


class WordLSTM(nn.Module):
    """Embedding, one LSTM layer, a dense layer of the embedding's width, a score for each token.

    With 10,000 words, width 96 and 670 units it is the network of Reddi et al., "Adaptive Federated
    Optimization" (2021), appendix C.3, of 4,050,748 parameters: 960,384 of the embedding, 2,055,560
    of the LSTM (one bias a gate, as in Keras), 64,416 of the dense layer and 970,388 of the scores.
    With 2,000 words, width 48, 96 units and tied scores it has 158,532. Weights begin as in Keras:
    Glorot, an orthogonal recurrent matrix, and 1 for the biases of the forget gates.

    Args:
        num_tokens: Size of the embedding and number of scores.
        width: Of the embedding.
        units: Of the LSTM.
        tied: Whether scores are products with the embedding itself, which saves a matrix.

    Attributes:
        fused: Whether the LSTM is PyTorch's own operation, which is quickest for one network at a
            time; else it is plain matrix products, which `torch.vmap` can do for many at once.
    """

    def __init__(
        self, num_tokens: int = 10_004, *, width: int = 96, units: int = 670, tied: bool = False
    ) -> None:
        super().__init__()
        self.units, self.fused = units, True
        self.embedding = nn.Embedding(num_tokens, width)
        self.from_input = nn.Parameter(torch.empty(4 * units, width))
        self.from_state = nn.Parameter(torch.empty(4 * units, units))
        self.gate_bias = nn.Parameter(torch.zeros(4 * units))
        self.project = nn.Linear(units, width)
        self.output = None if tied else nn.Parameter(torch.empty(num_tokens, width))
        self.output_bias = nn.Parameter(torch.zeros(num_tokens))
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        nn.init.xavier_uniform_(self.from_input)
        nn.init.orthogonal_(self.from_state)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)
        if self.output is not None:
            nn.init.xavier_uniform_(self.output)
        with torch.no_grad():
            self.gate_bias[units : 2 * units] = 1.0  # gates: enter, forget, new, leave

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores `(n, time, num_tokens)` of what follows each of tokens `(n, time)`."""
        lstm = lstm_states if self.fused else plain_lstm_states
        states = lstm(self.embedding(tokens.t()), self.from_input, self.from_state, self.gate_bias)
        scores = self.embedding.weight if self.output is None else self.output
        found = nn.functional.linear(self.project(states), scores, self.output_bias)
        return found.transpose(0, 1)


def lstm_states(
    inputs: torch.Tensor, from_input: torch.Tensor, from_state: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return states `(time, n, units)` of inputs `(time, n, width)`, begun from zeros."""
    begun = inputs.new_zeros(1, inputs.shape[1], from_state.shape[1])
    weights = [from_input, from_state, bias, torch.zeros_like(bias)]
    return torch.lstm(inputs, (begun, begun), weights, True, 1, 0.0, True, False, False)[0]


def plain_lstm_states(
    inputs: torch.Tensor, from_input: torch.Tensor, from_state: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return what `lstm_states` does, to rounding, by operations that `torch.vmap` has rules of."""
    state = cell = inputs.new_zeros(inputs.shape[1], from_state.shape[1])
    states = []
    for driven in nn.functional.linear(inputs, from_input, bias).unbind(0):
        state, cell = lstm_step(driven + state @ from_state.t(), cell)
        states.append(state)
    return torch.stack(states)


def next_word_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy summed over each sentence and divided by the longest length.

    The divisor is public and the same for every sentence, so the loss is a mean over examples;
    dividing by how many words a batch has would tie examples together.

    Args:
        scores: `(n, time, num_tokens)`.
        targets: int64 `(n, time)`; IGNORED behind the end of a sentence.
    """
    summed = nn.functional.cross_entropy(
        scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return summed / targets.numel()
