"""Texts as rows of word numbers: the tokeniser, and the compact form that features are made from.

The tokeniser is plain on purpose: lower case; HTML line breaks (`<br />`) become spaces; a word is
a run of `a-z`, `0-9` and `'`, without apostrophes at its ends; everything else separates words.

>>> plain_words("It's GREAT!<br /><br />'Really' 10/10")
["it's", 'great', 'really', '10', '10']
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.data.files.arrays import offsets, ranges
from fedpriv.data.files.unpack import Progress

TOKENISER = "lower case, <br> to space, runs of [a-z0-9'] without outer apostrophes; version 1"

_BREAK = re.compile(r"<br\s{0,8}/?>")
_WORD = re.compile(r"[a-z0-9](?:[a-z0-9']*[a-z0-9])?")


def plain_words(text: str) -> list[str]:
    """Return the words of a text, see the module's description."""
    return _WORD.findall(_BREAK.sub(" ", text.lower()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """Texts with labels.

    Attributes:
        texts: n of them.
        labels: int64 (n,).
    """

    texts: tuple[str, ...]
    labels: np.ndarray

    def __post_init__(self) -> None:
        if self.labels.shape != (len(self.texts),):
            raise ValueError(
                f"{len(self.texts):,} texts but labels of shape {self.labels.shape}; give one each"
            )

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordRows:
    """Labelled texts as word numbers, row after row.

    The numbers mean nothing by themselves (they go by first occurrence in some file): which words
    count, and in which order, `RankedWords` say.

    Attributes:
        words: The word of each number.
        ids: Word numbers of all rows, int32 (total,).
        starts: Where each row begins in `ids`, int64 (n + 1,).
        labels: int64 (n,).
    """

    words: tuple[str, ...]
    ids: np.ndarray
    starts: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        n = len(self.labels)
        # First the shape, then the order, so that what follows may slice without looking.
        right = self.starts.shape == (n + 1,) and self.starts[0] == 0
        right = (
            right and self.starts[-1] == len(self.ids) and bool((np.diff(self.starts) >= 0).all())
        )
        if not right:
            raise ValueError(f"row starts do not fit {n:,} labels and {len(self.ids):,} words")
        if len(self.ids) and not 0 <= self.ids.min() <= self.ids.max() < len(self.words):
            raise ValueError(f"a word number is outside the {len(self.words):,} words")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: np.ndarray) -> WordRows:
        """Return the rows at positions, in the order given."""
        lengths = (self.starts[1:] - self.starts[:-1])[index]
        return WordRows(
            words=self.words,
            ids=self.ids[ranges(self.starts[:-1][index], lengths)],
            starts=offsets(lengths),
            labels=self.labels[index],
        )


def word_rows(parts: Sequence[Texts], *, progress: Progress | None = None) -> tuple[WordRows, ...]:
    """Return texts as rows of word numbers, all parts over one table of words.

    Args:
        parts: For example the training and the test texts.
        progress: Called with the texts done and their total.
    """
    table: defaultdict[str, int] = defaultdict()
    table.default_factory = table.__len__
    total = sum(len(part) for part in parts)
    done = 0
    made = []
    for part in parts:
        rows: list[np.ndarray] = []
        for text in part.texts:
            rows.append(np.fromiter(map(table.__getitem__, plain_words(text)), np.int32))
            done += 1
            if progress is not None and (done % 500 == 0 or done == total):
                progress(done, total)
        made.append((rows, part.labels))
    words = tuple(table)
    return tuple(
        WordRows(
            words=words,
            ids=np.concatenate([np.empty(0, np.int32), *rows]),
            starts=offsets(np.array([len(row) for row in rows], dtype=np.int64)),
            labels=labels.astype(np.int64),
        )
        for rows, labels in made
    )
