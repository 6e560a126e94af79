"""Sentences as inputs and targets of a recurrent network, as TensorFlow Federated makes them.

A sentence is cut to its first words; "begin" stands before it, "end" behind it where it was shorter
than the longest length, and padding behind that. Inputs are all but the last of these, targets all
but the first; where there is padding no target is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv.datasets.stackexchange.words import Sentences
from fedpriv.models.text import IGNORED, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """From sentences to tokens.

    Attributes:
        tokens: Their numbers; words of a rank beyond its `num_words` are unknown.
        length: Words of a sentence that are looked at, and of inputs and targets.
    """

    tokens: Tokens
    length: int = 20

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"sequence-length {self.length} must be at least 1")

    def __call__(self, sentences: Sentences) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets, int64 `(n, length)` each.

        Targets are IGNORED where there is padding.
        """
        tokens, n = self.tokens, len(sentences)
        starts = np.asarray(sentences.starts)
        lengths = np.minimum(np.diff(starts), self.length)
        place = np.arange(self.length)
        inside = place < lengths[:, None]
        rows = np.full((n, self.length + 1), tokens.pad, np.int64)
        rows[:, 0] = tokens.begin
        ranks = np.asarray(sentences.words[(starts[:-1, None] + place)[inside]], np.int64)
        known = (ranks >= 0) & (ranks < tokens.num_words)
        rows[:, 1:][inside] = np.where(known, ranks + 1, tokens.unknown)
        short = np.flatnonzero(lengths < self.length)
        rows[short, lengths[short] + 1] = tokens.end
        targets = rows[:, 1:].copy()
        targets[targets == tokens.pad] = IGNORED
        return rows[:, :-1], targets
