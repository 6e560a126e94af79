"""Some sentences in order: rows of word numbers, which may be mapped from a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpriv.data.files.arrays import offsets, ranges

UNKNOWN = -1
"""Number of a word that is not in the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sentences:
    """n sentences; arrays may be read-only views of a file.

    Attributes:
        starts: int64 (n + 1,), where each begins in `words`, from 0.
        words: int32 (total,), ranks in the view's vocabulary, 0 for the commonest; UNKNOWN for a
            word outside it.
        kinds: uint8 (n,), of the posts they stand in (`fedpriv.data.sentences.sequences.KINDS`).
    """

    starts: np.ndarray
    words: np.ndarray
    kinds: np.ndarray

    def __len__(self) -> int:
        return len(self.kinds)

    def take(self, index: np.ndarray) -> Sentences:
        """Return the sentences at these positions, in that order (a copy)."""
        index = np.asarray(index, np.int64)
        lengths = self.starts[index + 1] - self.starts[index]
        return Sentences(
            starts=offsets(lengths),
            words=np.asarray(self.words[ranges(self.starts[index], lengths)]),
            kinds=np.asarray(self.kinds[index]),
        )
