"""The sentences of a prepared corpus, grouped by user: what every roster's view is made from.

Files, one dimension each, in `sentences/` (U users in sorted order, S sentences, a user's
sentences in the order of their posts' numbers, or where these are not known as they were added):

    user_offsets int64 (U + 1)  first sentence of each user
    word_offsets int64 (S + 1)  first entry of each sentence in the three files below
    words        int32          distinct words of sentence and title, increasing in a sentence
    counts       unsigned       occurrences of each
    own_counts   unsigned       occurrences in text the user wrote: the sentence, an own title
    num_tokens   int32 (S)      tokens of sentence and title
    title_users  int32 (S)      who wrote the title: OWN, ELSEWHERE or a user's number
    askers       int32 (S)      who asked the question, titled or not: as title_users
    threads      int32 (S)      the thread's number
    days         int32 (S)      days from 1970 to when the thread was begun, -1 where not known
    tag_offsets  int64 (S + 1)  first entry of each sentence in the file below
    tags         int32          the post's tags, increasing in a sentence
    sequence_offsets int64 (S + 1)  first entry of each sentence in the file below
    sequences    int32          the sentence's words in order, without the title's
    kinds        uint8 (S)      of its post: 0 not known, 1 question, 2 answer

`words.txt`, `tags.txt` and `threads.txt` name the numbers, one to a line in sorted order;
`users.json` the users. `threads.txt` has a thread's key a line and `titles.txt` its title, words
apart by spaces; the latter is missing where titles by other users were not to be kept.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from fedpriv.datasets.arrays import open_array, ranges

Text = Literal["sentence", "title"]
#: Texts of an example, in the order in which `TagExamples.texts` has them.
TEXTS: tuple[Text, ...] = get_args(Text)

PostKind = Literal["question", "answer"]
KINDS: tuple[PostKind | None, ...] = (None, "question", "answer")
"""Kinds by their numbers in files; None where the source does not say."""

OWN = -2  # the title is the user's own, or there is none
ELSEWHERE = -1  # somebody else's title, and that account has no sentence in the corpus

HELD_USERS = "held_users.json"
"""File of the users that the data's source holds out, a list; there only where it does."""

_PER_SENTENCE = ("num_tokens", "title_users", "askers", "threads", "days")

BATCH_SENTENCES = 50_000
"""About how many sentences are held in memory at once; a single user is never divided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentenceBatch:
    """All sentences of some users, in memory.

    Attributes:
        users: int32 (S,), position of the sentence's user in the list that was asked for.
        rows: int64 (S,), the sentence's row in the store.
        ordinals: int64 (S,), position of the sentence among its user's sentences.
        word_rows: int64 (nnz,), the sentence (row of this batch) that each entry belongs to.
        words: int32 (nnz,); counts: (nnz,); own_counts: (nnz,).
        num_tokens: int32 (S,); title_users: int32 (S,).
        askers: int32 (S,); threads: int32 (S,); days: int32 (S,).
        tag_rows: int64; tags: int32.
    """

    users: np.ndarray
    rows: np.ndarray
    ordinals: np.ndarray
    word_rows: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    own_counts: np.ndarray
    num_tokens: np.ndarray
    title_users: np.ndarray
    askers: np.ndarray
    threads: np.ndarray
    days: np.ndarray
    tag_rows: np.ndarray
    tags: np.ndarray

    def __len__(self) -> int:
        return len(self.users)


class SentenceStore:
    """Reads the sentences of a prepared corpus directory, whose files its manifest has checked."""

    def __init__(self, directory: Path) -> None:
        """Open the store; only the list of users and their offsets are read now."""
        self._directory = directory
        names = json.loads((directory / "users.json").read_text("utf-8"))
        self.users: tuple[str, ...] = tuple(names)
        self.offsets = np.array(self._open("user_offsets"))
        self._positions = {user: number for number, user in enumerate(self.users)}

    def num_sentences(self) -> dict[str, int]:
        """Return the number of sentences of every user."""
        return dict(zip(self.users, np.diff(self.offsets).tolist(), strict=True))

    def position(self, user_id: str) -> int:
        """Return the user's number, or -1 for a user without any sentence here."""
        return self._positions.get(user_id, -1)

    def contains(self, user_ids: Iterable[str]) -> np.ndarray:
        """Return which users of the store are among these, bool (U,)."""
        found = np.zeros(len(self.users), dtype=bool)
        found[[number for user in user_ids if (number := self.position(user)) >= 0]] = True
        return found

    def thread_keys(self) -> Iterator[str]:
        """Yield the thread keys in the order of their numbers, as a stream."""
        return self._lines("threads")

    def held_users(self) -> frozenset[str]:
        """Return the users that the data's source holds out for testing; none where it does not."""
        path = self._directory / HELD_USERS
        return frozenset(json.loads(path.read_text("utf-8")) if path.is_file() else ())

    def batches(self, user_ids: Collection[str]) -> Iterator[SentenceBatch]:
        """Yield all sentences of the given users, in the given order, whole users at a time."""
        numbers = np.array([self.position(user) for user in user_ids], dtype=np.int64)
        starts = np.where(numbers < 0, 0, self.offsets[numbers])
        lengths = np.where(numbers < 0, 0, self.offsets[numbers + 1] - starts)
        groups = (np.cumsum(lengths) - lengths) // BATCH_SENTENCES
        edges = np.flatnonzero(np.diff(groups, prepend=-1, append=-1))
        for first, last in pairwise(edges.tolist()):
            yield self._batch(first, starts[first:last], lengths[first:last])

    def names(self, kind: str, numbers: np.ndarray) -> tuple[str, ...]:
        """Return the strings of the given numbers; `kind` is "words" or "tags".

        The file is read as a stream: memory holds only the strings that were asked for.
        """
        wanted = dict.fromkeys(numbers.tolist(), "")
        for number, text in enumerate(self._lines(kind)):
            if number in wanted:
                wanted[number] = text
        return tuple(wanted[number] for number in numbers.tolist())

    def all_names(self, kind: str) -> tuple[str, ...]:
        """Return the strings of all numbers; `kind` is "words" or "tags"."""
        return tuple(self._lines(kind))

    def numbers(self, kind: str, names: Collection[str]) -> dict[str, int]:
        """Return the number of each of `names` that occurs in the corpus."""
        wanted = set(names)
        return {text: number for number, text in enumerate(self._lines(kind)) if text in wanted}

    def sequences(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of sentences in order, without titles, and each sentence's length.

        Args:
            rows: int64 (n,), rows of the store.

        Returns:
            int32 (total,), numbers of the corpus's words, one sentence after the other; int64 (n,).
        """
        entries, places = self._entries("sequence_offsets", rows)
        return self._open("sequences")[entries], np.bincount(places, minlength=len(rows))

    def kinds(self, rows: np.ndarray) -> np.ndarray:
        """Return the kind of each sentence's post as its place in `KINDS`, uint8 (n,)."""
        return self._open("kinds")[rows]

    def _lines(self, kind: str) -> Iterator[str]:
        yield from read_lines(self._directory / f"{kind}.txt")

    def _open(self, name: str) -> np.ndarray:
        return open_array(self._directory / "sentences" / f"{name}.npy")

    def _batch(self, first: int, starts: np.ndarray, lengths: np.ndarray) -> SentenceBatch:
        # The files are mapped again for every batch: dropping the map drops its pages, so memory
        # stays that of one batch however large the corpus is.
        rows = ranges(starts, lengths)
        word_entries, word_rows = self._entries("word_offsets", rows)
        tag_entries, tag_rows = self._entries("tag_offsets", rows)
        return SentenceBatch(
            users=np.repeat(np.arange(first, first + len(starts), dtype=np.int32), lengths),
            rows=rows,
            ordinals=ranges(np.zeros(len(starts), dtype=np.int64), lengths),
            word_rows=word_rows,
            tag_rows=tag_rows,
            tags=self._open("tags")[tag_entries],
            **{name: self._open(name)[word_entries] for name in ("words", "counts", "own_counts")},
            **{name: self._open(name)[rows] for name in _PER_SENTENCE},
        )

    def _entries(self, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the entries of rows lie in a file, and the row of each by its place."""
        table = self._open(name)
        begin = table[rows]
        lengths = table[rows + 1] - begin
        return ranges(begin, lengths), np.repeat(np.arange(len(rows)), lengths)


class Sentences(Sequence[str]):
    """The sentences of a store as texts, by row, their words apart by spaces."""

    def __init__(self, store: SentenceStore) -> None:
        """Read the corpus's words; sentences are read when they are asked for."""
        self._store, self._words = store, store.all_names("words")

    def __len__(self) -> int:
        return int(self._store.offsets[-1])

    def __getitem__(self, place: int | slice) -> str | list[str]:  # pyright: ignore
        if isinstance(place, int):
            return self.of([place])[0]
        return self.of(np.arange(len(self))[place])

    def of(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return the sentences at rows of the store."""
        numbers, lengths = self._store.sequences(np.asarray(rows, np.int64))
        words = [self._words[number] for number in numbers.tolist()]
        ends = np.cumsum(lengths).tolist()
        return [
            " ".join(words[end - length : end])
            for end, length in zip(ends, lengths.tolist(), strict=True)
        ]


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file of text, as a stream; only a line feed ends one."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n")


def known_kind(name: str) -> PostKind | None:
    """Return a kind by its name, or None where there is none of that name.

    >>> known_kind("answer"), known_kind("wiki")
    ('answer', None)
    """
    return "question" if name == "question" else "answer" if name == "answer" else None
