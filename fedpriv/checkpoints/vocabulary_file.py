"""What the rows and columns of a tag model mean, as a file that goes with its checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpriv.checkpoints.word_features import WordFeatures

#: What the file is called, in run folders and exports.
VOCABULARY = "vocabulary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What the rows and columns of a tag model mean.

    Attributes:
        words: Input words, in the order of the kernel's rows.
        tags: Tags, in the order of its columns.
        inputs: "tff" (counts over the number of known tokens), "unit-norm" or "tf-idf".
        word_features: What becomes of words before a row gets unit norm; None for their counts.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    inputs: str = "tff"
    word_features: WordFeatures | None = None

    def __post_init__(self) -> None:
        if self.inputs not in ("tff", "unit-norm", "tf-idf"):
            raise ValueError(
                f"inputs {self.inputs!r} are not known; use 'tf-idf', 'tff' or 'unit-norm'"
            )
        made = self.word_features
        if made is not None and made.num_words != len(self.words):
            raise ValueError(f"features of {made.num_words} words, but {len(self.words)} words")
        if made is not None and self.inputs == "tff":
            raise ValueError("inputs 'tff' are counts, and have neither weights nor pairs")
        if (self.inputs == "tf-idf") != (made is not None and len(made.weights) > 0):
            raise ValueError(
                f"inputs {self.inputs!r} do not fit the weights of words, of which 'tf-idf' needs "
                "one for each word and others have none"
            )

    @property
    def num_rows(self) -> int:
        """Rows of the kernel: one for each word, and those of pairs."""
        return len(self.words) if self.word_features is None else self.word_features.num_rows

    def features(self, tokens: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the kernel that the tokens have, and their inputs, int64 and float64.

        Words outside the vocabulary change nothing, as in training.
        """
        index = {word: row for row, word in enumerate(self.words)}
        known = [index[token] for token in tokens if token in index]
        rows, counts = np.unique(np.array(known, np.int64), return_counts=True)
        values = counts.astype(np.float64)
        if self.inputs == "tff":
            return rows, values / max(len(known), 1)
        if self.word_features is not None:
            _, made, weighted = self.word_features.made(np.array([0, len(rows)]), rows, counts)
            values = weighted.astype(np.float64)
            return made.astype(np.int64), values / (float(np.linalg.norm(values)) or 1.0)
        return rows, values / max(float(np.linalg.norm(values)), 1.0)


def vocabulary_bytes(vocabulary: Vocabulary) -> bytes:
    """Return a vocabulary as JSON."""
    content = {
        "format": "fedpriv-vocabulary",
        "version": 1,
        "inputs": vocabulary.inputs,
        "words": list(vocabulary.words),
        "tags": list(vocabulary.tags),
    }
    if vocabulary.word_features is not None:
        content["word_features"] = vocabulary.word_features.to_json()
    return json.dumps(content, ensure_ascii=False).encode()


def write_vocabulary(path: str | Path, vocabulary: Vocabulary) -> None:
    """Write a vocabulary as JSON, in one step."""
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(vocabulary_bytes(vocabulary))
    os.replace(part, path)


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
        made = content.get("word_features")
        return Vocabulary(
            words=tuple(words),
            tags=tuple(tags),
            inputs=content["inputs"],
            word_features=None if made is None else WordFeatures.from_json(len(words), made),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a vocabulary of version 1: {error}") from error
