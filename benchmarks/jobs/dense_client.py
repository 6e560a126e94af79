"""The dense client, the same file in every tool: softmax regression by plain torch.

Batches are dense matrices made from the user's sparse rows, the model is one `nn.Linear`, the
optimiser is `torch.optim.SGD`. The tool puts the global params into the resident model before and
reads the trained ones after; nothing here knows which tool that is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from tag_data import Examples
from torch import nn


def make_model(num_words: int, num_tags: int) -> nn.Linear:
    """Return the model at zero: `weight` (num_tags, num_words) and `bias` (num_tags,)."""
    model = nn.Linear(num_words, num_tags)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def dense_batches(
    examples: Examples, batch_size: int, num_words: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (inputs float32 (n, num_words), labels int64 (n,)), in the order they come."""
    for start in range(0, len(examples.labels), batch_size):
        stop = min(start + batch_size, len(examples.labels))
        indptr = examples.indptr[start : stop + 1]
        entries = slice(indptr[0], indptr[-1])
        rows = np.repeat(np.arange(stop - start), np.diff(indptr))
        inputs = np.zeros((stop - start, num_words), np.float32)
        inputs[rows, examples.indices[entries]] = examples.values[entries]
        yield torch.from_numpy(inputs), torch.from_numpy(np.array(examples.labels[start:stop]))


def local_sgd(
    model: nn.Linear, examples: Examples, *, learning_rate: float, batch_size: int
) -> None:
    """Train the model in place: one epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for inputs, labels in dense_batches(examples, batch_size, model.in_features):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
