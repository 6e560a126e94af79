"""The recurrent client, the same file in every tool: `nn.LSTM`, cross-entropy, `optim.SGD`.

The network of Reddi et al. 2021 (10,004 tokens, width 96, 670 units, dense to 96, then a score for
each token): 4,053,428 parameters here, 2,680 more than in Keras because PyTorch's LSTM has two
biases a gate. The tool puts the global params into the resident model before and reads the trained
ones after. NumPy and torch only.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

TOKENS, WIDTH, UNITS, IGNORED = 10_004, 96, 670, -100


class WordModel(nn.Module):
    """Scores `(n, time, TOKENS)` of what follows each of tokens `(n, time)`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, UNITS, batch_first=True)
        self.project = nn.Linear(UNITS, WIDTH)
        self.output = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.output(self.project(states))


def make_model() -> WordModel:
    """Return the network, the same in every process."""
    torch.manual_seed(0)
    return WordModel()


class WordUsers:
    """The exported users: inputs and targets int64 `(n, time)` each, memory-mapped."""

    def __init__(self, folder: str | Path) -> None:
        where = Path(folder)
        self.about = json.loads((where / "about.json").read_text("utf-8"))
        self._starts = np.load(where / "user_starts.npy")
        self._x, self._y = (np.load(where / f"{n}.npy", mmap_mode="r") for n in ("x", "y"))

    def num_examples(self, user: int) -> int:
        """Return how many sentences a user has."""
        return int(self._starts[user + 1] - self._starts[user])

    def examples(self, user: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a user's inputs and targets, as copies."""
        own = slice(self._starts[user], self._starts[user + 1])
        return np.array(self._x[own], np.int64), np.array(self._y[own], np.int64)


def local_sgd(
    model: nn.Module,
    examples: tuple[np.ndarray, np.ndarray],
    *,
    learning_rate: float,
    batch_size: int,
) -> None:
    """Train the model in place: one epoch, in the order they come."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    device = next(model.parameters()).device
    x, y = (torch.from_numpy(array).to(device) for array in examples)
    model.train()
    for start in range(0, len(x), batch_size):
        scores, targets = model(x[start : start + batch_size]), y[start : start + batch_size]
        optimizer.zero_grad()
        summed = nn.functional.cross_entropy(
            scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        (summed / targets.numel()).backward()
        optimizer.step()
