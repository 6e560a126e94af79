"""Vocabulary file of a tag model: the words and tags of its rows and columns, and input features.

Words may be weighted by how rare they are among public sentences, and pairs of words may have rows
of their own. What a model was trained with is what it must be asked with, so that goes into the
file, which goes with the model's checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedpriv.ranges import Range, finite_float, positive_float, set_checked, whole_int

#: What the file is called, in run folders and exports.
VOCABULARY = "vocabulary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Words and tags of a tag model's rows and columns.

    Attributes:
        words: Input words, in the order of the kernel's rows.
        tags: Tags, in the order of its columns.
        inputs: "tff" (counts over the number of known tokens), "unit-norm", "tf-idf", or "encoder"
            for rows of a pretrained encoder, scaled to unit norm.
        word_features: What becomes of words before a row gets unit norm; None for their counts.
        encoder: Whose rows the inputs are; None for words.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    inputs: str = "tff"
    word_features: WordFeatures | None = None
    encoder: EncoderInputs | None = None

    def __post_init__(self) -> None:
        made = self.word_features
        if made is not None and made.num_words != len(self.words):
            raise ValueError(f"features of {made.num_words} words, but {len(self.words)} words")
        if self.encoder is not None:
            fitting = ("encoder",) if made is None else ()
        elif made is None:
            fitting = ("tff", "unit-norm")
        else:
            fitting = ("tf-idf",) if len(made.weights) else ("unit-norm",)
        if self.inputs not in fitting:
            raise ValueError(
                f"inputs {self.inputs!r} do not fit encoder {self.encoder!r} and features {made!r}"
            )

    @property
    def num_rows(self) -> int:
        """Rows of the kernel: one for each word, and those of pairs; or an encoder's."""
        if self.encoder is not None:
            return self.encoder.num_rows
        return len(self.words) if self.word_features is None else self.word_features.num_rows

    def features(self, tokens: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the kernel that the tokens have, and their inputs, int64 and float64.

        Words outside the vocabulary change nothing, as in training.

        Raises:
            ValueError: If the inputs are an encoder's.
        """
        if self.encoder is not None:
            raise ValueError(f"inputs are rows of encoder {self.encoder.id}, not words")
        index = {word: row for row, word in enumerate(self.words)}
        known = [index[token] for token in tokens if token in index]
        rows, counts = np.unique(np.array(known, np.int64), return_counts=True)
        values = counts.astype(np.float64)
        if self.inputs == "tff":
            return rows, values / max(len(known), 1)
        if self.word_features is not None:
            _, rows, values = self.word_features.build(np.array([0, len(rows)]), rows, counts)
        values = values.astype(np.float64)
        return rows.astype(np.int64), values / (float(np.linalg.norm(values)) or 1.0)


def vocabulary_bytes(vocabulary: Vocabulary) -> bytes:
    """Return a vocabulary as JSON."""
    content = {
        "format": "fedpriv-vocabulary",
        "version": 1,
        "inputs": vocabulary.inputs,
        "words": list(vocabulary.words),
        "tags": list(vocabulary.tags),
    }
    if vocabulary.encoder is not None:
        content["encoder"] = asdict(vocabulary.encoder)
    if vocabulary.word_features is not None:
        content["word_features"] = vocabulary.word_features.to_json()
    return json.dumps(content, ensure_ascii=False).encode()


def read_vocabulary(path: str | Path) -> Vocabulary:
    """Read a vocabulary.

    Raises:
        ValueError: If there is none, or it is not one that this version reads.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no {path.name} in {path.parent}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != "fedpriv-vocabulary" or content["version"] != 1:
            raise ValueError(f"format {content['format']!r} version {content['version']!r}")
        words, tags = content["words"], content["tags"]
        if not all(isinstance(item, str) for item in [*words, *tags]):
            raise ValueError("words and tags must be text")
        made, encoder = content.get("word_features"), content.get("encoder")
        return Vocabulary(
            words=tuple(words),
            tags=tuple(tags),
            inputs=content["inputs"],
            word_features=None if made is None else WordFeatures.from_json(len(words), made),
            encoder=None if encoder is None else EncoderInputs(**encoder),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a vocabulary of version 1: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInputs:
    """Rows of a pretrained encoder as a model's inputs.

    Attributes:
        id: Of the encoder.
        sha256: Digest of its files.
        texts: Of an example: "sentence", "title" or both, one behind the other.
        width: Numbers of one text's row.
    """

    id: str
    sha256: str
    texts: Sequence[str]
    width: int

    @property
    def num_rows(self) -> int:
        """Number of inputs of an example."""
        return self.width * len(self.texts)


class Bags(Protocol):
    """Examples as bags of words: row starts, words and counts."""

    @property
    def indptr(self) -> np.ndarray:
        """Row starts."""
        ...

    @property
    def indices(self) -> np.ndarray:
        """Words."""
        ...

    @property
    def counts(self) -> np.ndarray:
        """Number of times that each occurs."""
        ...


PAIR_WEIGHT = 0.25
MOST_PAIRED = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordFeatures:
    """Map from word counts to a model's inputs, before rows are scaled to unit norm.

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
        set_checked(self, whole_int, "num_pairs", "most_paired")
        set_checked(self, positive_float, "pair_weight")
        for name in ("num_pairs", "most_paired"):
            Range.AT_LEAST_ZERO.check(name, getattr(self, name))

    @property
    def num_rows(self) -> int:
        """Rows of the kernel: the words', and behind them the pairs'."""
        return self.num_words + self.num_pairs

    def inputs(self, examples: Bags) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return `build` of examples."""
        return self.build(examples.indptr, examples.indices, examples.counts)

    def build(
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
