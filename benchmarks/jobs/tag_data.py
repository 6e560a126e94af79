"""The exported users of tag prediction: compressed sparse rows, memory-mapped, NumPy only.

`export_tags.py` writes them once, so that every tool reads exactly the same examples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Examples(NamedTuple):
    """One user's examples.

    Attributes:
        indptr: int64 (n + 1,), row starts, from 0.
        indices: int64 (nnz,), word numbers.
        values: float32 (nnz,), inputs of unit l2 norm a row.
        labels: int64 (n,), tag numbers.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    labels: np.ndarray


class TagUsers:
    """The users of a folder, by number.

    Args:
        folder: What `export_tags.py` wrote.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text("utf-8"))
        self._arrays = {
            name: np.load(folder / f"{name}.npy", mmap_mode="c")
            for name in ("user_starts", "indptr", "indices", "values", "labels")
        }

    def __len__(self) -> int:
        return len(self._arrays["user_starts"]) - 1

    @property
    def num_words(self) -> int:
        """Size of the vocabulary."""
        return self.about["num_words"]

    @property
    def num_tags(self) -> int:
        """Size of the tag list."""
        return self.about["num_tags"]

    def num_examples(self, user: int) -> int:
        """Return how many examples a user has, at most the cap of the export."""
        starts = self._arrays["user_starts"]
        return int(starts[user + 1] - starts[user])

    def examples(self, user: int) -> Examples:
        """Return one user's examples, as views of the files."""
        arrays = self._arrays
        start, end = arrays["user_starts"][user], arrays["user_starts"][user + 1]
        indptr = arrays["indptr"][start : end + 1]
        entries = slice(indptr[0], indptr[-1])
        return Examples(
            indptr - indptr[0],
            arrays["indices"][entries],
            arrays["values"][entries],
            arrays["labels"][start:end],
        )
