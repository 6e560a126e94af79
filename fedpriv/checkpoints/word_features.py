"""What becomes of the words of a text before rows are scaled to unit norm, and is kept of it.

Words may be weighted by how rare they are among public sentences, and pairs of words may have rows
of their own. What a model was trained with is what it must be asked with, so this goes into its
vocabulary file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpriv.ranges import Range, finite_float, positive_float

PAIR_WEIGHT = 0.25
MOST_PAIRED = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordFeatures:
    """From how often words occur to a model's inputs, but for the norm of a row.

    A word that occurs c times has the value sqrt(c) * weight, or c where there are no weights. Of
    an example's rarest words every two make a pair, whose row is a fixed hash of both numbers, and
    whose value is `pair_weight` times the root of the product of their values. Work is bounded by
    public numbers, and an example's inputs depend on that example alone.

    Attributes:
        num_words: How many words there are; commoner ones have lower numbers.
        weights: float32 `(num_words,)`, each word's; empty for counts as they are.
        num_pairs: Rows behind the words' that pairs are hashed into; 0 for no pairs.
        pair_weight: Of a pair.
        most_paired: How many of an example's words are paired, the rarest.
    """

    num_words: int
    weights: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32), repr=False)
    num_pairs: int = 0
    pair_weight: float = PAIR_WEIGHT
    most_paired: int = MOST_PAIRED

    def __post_init__(self) -> None:
        weights = np.ascontiguousarray(self.weights, np.float32)
        if weights.shape not in ((0,), (self.num_words,)):
            raise ValueError(
                f"weights of shape {weights.shape} are not one for each of {self.num_words:,} words"
            )
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError("weights of words must be finite and at least 0")
        object.__setattr__(self, "weights", weights)
        for name in ("num_pairs", "most_paired"):
            value = getattr(self, name)
            if type(value) is not int:
                raise ValueError(f"{name} {value!r} is not a whole number; give one such as 1000")
            Range.AT_LEAST_ZERO.check(name, value)
        object.__setattr__(self, "pair_weight", positive_float("pair_weight", self.pair_weight))

    @property
    def num_rows(self) -> int:
        """Rows of the kernel: the words', and behind them the pairs'."""
        return self.num_words + self.num_pairs

    def made(
        self, indptr: np.ndarray, indices: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return examples with these values, as row starts, rows and values, not yet normalised.

        Args:
            indptr: `(n + 1,)`, where each example starts.
            indices: Words, increasing within an example.
            counts: How often each occurs.

        Returns:
            int64, int32 and float32; rows increase within an example.

        Raises:
            ValueError: If a word or an example is outside the arrays.
        """
        # The compiler takes a while to import, and a listing of options needs none.
        from fedpriv.kernels.word_features import word_features

        return word_features(
            np.ascontiguousarray(indptr, np.int64),
            np.ascontiguousarray(indices, np.int32),
            np.ascontiguousarray(counts, np.float32),
            self.weights,
            self.num_words,
            self.num_pairs,
            self.most_paired,
            self.pair_weight,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without the number of words."""
        return {
            # The shortest digits that give the same float32 again.
            "weights": [float(str(weight)) for weight in self.weights],
            "num_pairs": self.num_pairs,
            "pair_weight": self.pair_weight,
            "most_paired": self.most_paired,
        }

    @classmethod
    def from_json(cls, num_words: int, content: Mapping[str, Any]) -> WordFeatures:
        """Return what `to_json` wrote.

        Raises:
            ValueError: If a value is not one that it can have.
            KeyError: If one is missing.
            TypeError: If the weights are no list of numbers.
        """
        return cls(
            num_words=num_words,
            weights=np.array([*content["weights"]], np.float32),
            num_pairs=content["num_pairs"],
            pair_weight=content["pair_weight"],
            most_paired=content["most_paired"],
        )


def rarity_weights(num_containing: np.ndarray, num_documents: int, power: float) -> np.ndarray:
    """Return idf^power of each word, float32 `(num_words,)`, idf = ln((1 + N) / (1 + df)).

    Args:
        num_containing: df, how many documents contain each word, `(num_words,)`.
        num_documents: N, how many documents were counted.
        power: 1 for the idf itself, 0 for weights of 1.

    Raises:
        ValueError: If there are no documents, or the power is below 0.

    >>> rarity_weights(np.array([3, 1, 0]), 3, 1.0).tolist() == [0.0, *np.float32(np.log([2, 4]))]
    True
    """
    power = finite_float("the power of the idf", power, Range.AT_LEAST_ZERO)
    if num_documents < 1:
        raise ValueError(
            "inputs 'tf-idf' need public sentences to count words in, and there are none; "
            "use 'unit-norm'"
        )
    idf = np.log((1.0 + num_documents) / (1.0 + num_containing.astype(np.float64)))
    return (idf**power).astype(np.float32)
