"""The words of sentences in order, and the kind of post each stands in.

What predicts tags needs neither, so they have files of their own (`fedpriv.data.sentences.store`
lists them), which corpora that were prepared before do not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from fedpriv.data.files.arrays import open_array, ranges

PostKind = Literal["question", "answer"]
KINDS: tuple[PostKind | None, ...] = (None, "question", "answer")
"""Kinds by their numbers in files; None where the source does not say."""


def known_kind(name: str) -> PostKind | None:
    """Return a kind by its name, or None where there is none of that name.

    >>> known_kind("answer"), known_kind("wiki")
    ('answer', None)
    """
    return "question" if name == "question" else "answer" if name == "answer" else None


class Sequences:
    """Reads the order of words of a prepared corpus directory; sentences by their store rows.

    Raises:
        ValueError: the corpus was prepared before the order of words was kept.
    """

    def __init__(self, directory: Path) -> None:
        """Open the files; nothing of their contents is read now."""
        self._where = directory / "sentences"
        if not (self._where / "sequences.npy").is_file():
            raise ValueError(
                f"{directory} was prepared before the order of words was kept, which predicting "
                "the next one needs; import it again"
            )

    def words(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of sentences, one sentence after the other, and their lengths.

        Args:
            rows: int64 (n,), rows of the store.

        Returns:
            int32 (total,), numbers of the corpus's words; int64 (n,).

        Raises:
            ValueError: the files are damaged.
        """
        table = self._open("sequence_offsets")
        lengths = table[rows + 1] - table[rows]
        if np.any(lengths < 0):
            raise ValueError(f"{self._where}: sequence_offsets is damaged; import the corpus again")
        entries = ranges(table[rows], lengths)
        return np.asarray(self._open("sequences")[entries]), lengths

    def kinds(self, rows: np.ndarray) -> np.ndarray:
        """Return the kind of each sentence's post as its place in `KINDS`, uint8 (n,)."""
        return np.asarray(self._open("kinds")[rows])

    def _open(self, name: str) -> np.ndarray:
        # Mapped anew each time, so that pages are given back: memory does not follow the file.
        return open_array(self._where / f"{name}.npy")
