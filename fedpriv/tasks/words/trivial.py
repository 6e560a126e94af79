"""Rules that need no network: the commonest word, and the commonest word after the last one.

Both are counted in public text alone, so they cost no privacy. A model that is not better than
these has learnt nothing worth an ε.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedpriv.models.text import Tokens
from fedpriv.tasks.words.measures import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Bigrams:
    """What most often follows a token in some text.

    Attributes:
        commonest: The commonest word of all, which the unigram rule always predicts.
        follows: int64 (tokens,), for each token the word that most often followed it; the commonest
            of all where none did. Ties go to the lower number.
    """

    commonest: int
    follows: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, tokens: Tokens) -> Bigrams:
        """Return what text says.

        Only what `WORD_ACCURACY` counts is counted: words, neither unknown ones nor ends.

        Args:
            x: int64 tokens `(n, time)`.
            y: int64 targets, likewise.
            tokens: Their numbers.

        Raises:
            ValueError: If there is no word.
        """
        where = counted(y, tokens)
        before, after = x[where], y[where]
        if not len(after):
            raise ValueError("there is no public text with a word of the vocabulary to count")
        commonest = int(np.argmax(np.bincount(after, minlength=tokens.total)))
        pairs, times = np.unique(before * tokens.total + after, return_counts=True)
        first, second = np.divmod(pairs, tokens.total)
        # Sorted by count within a token, the commonest and lowest last: later writes win.
        order = np.lexsort((-second, times, first))
        follows = np.full(tokens.total, commonest, np.int64)
        follows[first[order]] = second[order]
        return cls(commonest=commonest, follows=follows)

    def predicted(self, x: np.ndarray) -> np.ndarray:
        """Return the bigram rule's predictions of what follows each token."""
        return self.follows[x]

    def always(self, x: np.ndarray) -> np.ndarray:
        """Return the unigram rule's predictions."""
        return np.full_like(x, self.commonest)
