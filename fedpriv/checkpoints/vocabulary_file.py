"""What the rows and columns of a tag model mean, as a file that goes with its checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: What the file is called, in run folders and exports.
VOCABULARY = "vocabulary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What the rows and columns of a tag model mean.

    Attributes:
        words: Input words, in the order of the kernel's rows.
        tags: Tags, in the order of its columns.
        inputs: "tff" (counts over the number of known tokens) or "unit-norm".
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    inputs: str = "tff"

    def __post_init__(self) -> None:
        if self.inputs not in ("tff", "unit-norm"):
            raise ValueError(f"inputs {self.inputs!r} are not known; use 'tff' or 'unit-norm'")

    def features(self, tokens: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the word rows that occur in the tokens and their inputs, int64 and float64.

        Words outside the vocabulary change nothing, as in training.
        """
        index = {word: row for row, word in enumerate(self.words)}
        known = [index[token] for token in tokens if token in index]
        rows, counts = np.unique(np.array(known, np.int64), return_counts=True)
        values = counts.astype(np.float64)
        if self.inputs == "tff":
            return rows, values / max(len(known), 1)
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
        return Vocabulary(words=tuple(words), tags=tuple(tags), inputs=content["inputs"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a vocabulary of version 1: {error}") from error
