"""The sparse client for the torch tools: what their users would best write.

An embedding bag with per-word weights is the softmax regression without a dense batch, and its
sparse gradients let SGD touch only the rows of words that occur. Of the ways tried (this, index
arithmetic by hand, scipy products) it is the plain torch one; training costs two milliseconds a
user, against about fifty for the dense client, so what is left is the tool's own work.
"""

from __future__ import annotations

import numpy as np
import torch
from tag_data import Examples
from torch import nn


class BagOfWords(nn.Module):
    """Softmax regression on bags of words: `words.weight` (num_words, num_tags) and `bias`."""

    def __init__(self, num_words: int, num_tags: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(num_words, num_tags, mode="sum", sparse=True)
        self.bias = nn.Parameter(torch.zeros(num_tags))
        with torch.no_grad():
            self.words.weight.zero_()

    def forward(
        self, indices: torch.Tensor, starts: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Return the scores (n, num_tags) of n bags."""
        return self.words(indices, starts, per_sample_weights=values) + self.bias


def local_sgd(
    model: BagOfWords, examples: Examples, *, learning_rate: float, batch_size: int
) -> None:
    """Train the model in place: one epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    device = next(model.parameters()).device
    indices = torch.from_numpy(np.asarray(examples.indices)).to(device)
    values = torch.from_numpy(np.asarray(examples.values)).to(device)
    labels = torch.from_numpy(np.asarray(examples.labels)).to(device)
    for start in range(0, len(labels), batch_size):
        stop = min(start + batch_size, len(labels))
        indptr = examples.indptr[start : stop + 1]
        entries = slice(indptr[0], indptr[-1])
        optimizer.zero_grad()
        starts = torch.from_numpy(indptr[:-1] - indptr[0]).to(device)
        scores = model(indices[entries], starts, values[entries])
        nn.functional.cross_entropy(scores, labels[start:stop]).backward()
        optimizer.step()
