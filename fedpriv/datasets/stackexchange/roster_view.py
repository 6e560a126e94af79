"""Views of a corpus: what tag views and word views have in common, as objects and as files.

A view is one roster seen through one split, a folder of memory-mapped files (users: the roster in
its order, then the public users; a user's rows lie together, those for training first):

    users.json                  {"roster": [...], "public": [...]}
    vocabulary.json             {"words": [...], "tags": [...], "num_public_examples", "source"}
    user_offsets int64 (U + 1)  first row of each user
    train_ends   int64 (U)      end of each user's rows for training
    validation_ends   int64 (U) end of each user's rows for validation; then come those for testing

    word_counts  int64 (V)      occurrences of each word in public users' own text
    threads      int32          each row's thread, its number in the corpus
    public_threads  uint8       of public users: 1 where a public user asked that thread

It is made when it is first asked for, in the corpus, or in the cache where that is read-only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from fedpriv.datasets.arrays import offsets, open_array
from fedpriv.datasets.stackexchange.rosters import roster_sha256
from fedpriv.datasets.stackexchange.splits import TEST, TRAIN, Split

_ENDS = ("train_ends", "validation_ends")


BATCH_EXAMPLES = 4096
"""Examples of a large set that are held in memory at once."""


class Columns(Protocol):
    """Examples in columns, one row each, possibly mapped from files."""

    def __len__(self) -> int: ...

    def part(self, start: int, end: int) -> Self:
        """Return a run of rows, as slices of the columns."""
        ...

    def take(self, rows: np.ndarray, /) -> Self:
        """Return the rows at these positions, in that order (a copy)."""
        ...


C = TypeVar("C", bound=Columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RosterView(Generic[C]):
    """One roster of a prepared corpus: what its examples of any kind have in common.

    Attributes:
        name: the corpus' name.
        synthetic: whether a generator made the text; tables and plots must then say so.
        roster_name: the roster's name.
        licence: the text's licence.
        credit: whom to credit for it.
        roster: the rostered ids, in the published order.
        roster_sha256: hash of the rostered ids.
        public_users: all other users of the corpus, sorted.
        words: the vocabulary (V), the word used by most public users first.
        split: what is for training, validation and testing.
        provenance: where each of these came from, whose text is in an example, what was left out.
        word_counts: int64 (V,), occurrences in public users' own text.
        columns: all examples as mapped from disk, which row numbers refer to.
        threads: int32, the thread of every example in `columns`, as numbers within the corpus.
    """

    name: str
    synthetic: bool
    roster_name: str
    licence: str
    credit: str
    roster: tuple[str, ...]
    roster_sha256: str
    public_users: tuple[str, ...]
    words: tuple[str, ...]
    split: Split
    provenance: Mapping[str, object]
    word_counts: np.ndarray
    columns: C
    threads: np.ndarray
    _public_threads: np.ndarray
    _positions: Mapping[str, int]
    _edges: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, roster {self.roster_name!r}: "
            f"{len(self.roster)} users, {len(self.public_users)} public, {len(self.words)} words)"
        )

    def describe(self) -> dict[str, str | bool]:
        """Return what names this data in a run folder: corpus, roster and its hash, licence."""
        return {
            "name": self.name,
            "synthetic": self.synthetic,
            "roster": self.roster_name,
            "roster_sha256": self.roster_sha256,
            "licence": self.licence,
            "credit": self.credit,
        }

    def num_examples(self, user_id: str, subset: str = "train") -> int:
        """Return how many examples `examples` would return, without touching them.

        Raises:
            ValueError: unknown user or subset.
        """
        start, end = self.span(user_id, subset)
        return end - start

    def examples(self, user_id: str, subset: str = "train") -> C:
        """Return one user's examples, as slices of the mapped files; possibly none.

        Args:
            user_id: a rostered or public user of this view.
            subset: "train", "validation", "test" or "all".

        Raises:
            ValueError: unknown user or subset.
        """
        return self.columns.part(*self.span(user_id, subset))

    def rows(
        self, user_ids: Sequence[str], subset: str = "test", *, size: int = BATCH_EXAMPLES
    ) -> Iterator[np.ndarray]:
        """Yield the row numbers in `columns` of users' examples, int64, at most `size` at a time.

        Raises:
            ValueError: unknown user or subset.
        """
        starts, ends = self._spans(user_ids, subset)
        past = np.cumsum(ends - starts)  # examples up to and with each user
        for first in range(0, int(past[-1]) if len(past) else 0, size):
            numbers = np.arange(first, min(first + size, int(past[-1])))
            owners = np.searchsorted(past, numbers, side="right")
            yield ends[owners] - past[owners] + numbers

    def all_rows(self, user_ids: Sequence[str], subset: str) -> np.ndarray:
        """Return the row numbers in `columns` of users' examples, int64, in one array."""
        return np.concatenate([np.arange(0), *self.rows(user_ids, subset)])

    def _spans(self, user_ids: Sequence[str], subset: str) -> tuple[np.ndarray, np.ndarray]:
        """Return where each user's examples start and end, int64 (users,) each."""
        # No objects a user: with hundreds of thousands of them, memory would follow.
        positions = np.fromiter(map(self._position, user_ids), np.int64, len(user_ids))
        if subset not in self._edges:
            raise ValueError(f"subset {subset!r} is unknown; choose one of {tuple(self._edges)}")
        starts, ends = self._edges[subset]
        return starts[positions], ends[positions]

    def span(self, user_id: str, subset: str) -> tuple[int, int]:
        """Return where a user's examples start and end in `columns`."""
        starts, ends = self._spans([user_id], subset)
        return int(starts[0]), int(ends[0])

    def _position(self, user_id: str) -> int:
        position = self._positions.get(user_id)
        if position is None:
            raise ValueError(
                f"user {user_id!r} is unknown in roster {self.roster_name!r}: neither among its "
                f"{len(self.roster)} rostered nor its {len(self.public_users)} public users"
            )
        return position


class TrainingSplit:
    """The training split of a view, as `fedpriv.training.work.UserData`."""

    def __init__(self, view: RosterView[Any]) -> None:
        self._view = view

    def examples(self, user_id: str) -> Any:
        """Return a user's training examples."""
        return self._view.examples(user_id, subset="train")

    def num_examples(self, user_id: str) -> int:
        """Return how many they are."""
        return self._view.num_examples(user_id, subset="train")

    @property
    def columns(self) -> Any:
        """All examples of the view, in which every user's are a run."""
        return self._view.columns

    def span(self, user_id: str) -> tuple[int, int]:
        """Return where a user's training examples start and end in the columns."""
        return self._view.span(user_id, "train")


def open_users(
    directory: Path,
    manifest: Mapping[str, Any],
    roster: str,
    split: Split,
    provenance: Mapping[str, object],
    users: int | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a view's fields of `RosterView`, all but its columns, and its vocabulary.json.

    Args:
        directory: the view's folder.
        manifest: "name", "synthetic", "licence" and "credit" of the corpus, among others.
        roster: the roster's name.
        split: the split it was made for.
        provenance: where it came from, for run folders.
        users: keep the first so many rostered users only; the vocabulary stays the same.

    Raises:
        ValueError: a file is missing or cut short; `users` is out of range.
    """
    lists = json.loads((directory / "users.json").read_text("utf-8"))
    vocabulary = json.loads((directory / "vocabulary.json").read_text("utf-8"))
    ids, public = tuple(lists["roster"]), tuple(lists["public"])
    if users is not None and not 1 <= users <= len(ids):
        raise ValueError(f"users {users}: roster {roster!r} has {len(ids)}; give 1 to that many")
    kept = ids[:users]
    table, trained, validated = (
        open_array(directory / f"{name}.npy") for name in ("user_offsets", *_ENDS)
    )
    begins, ends = table[:-1], table[1:]
    positions = {user: place for place, user in enumerate(kept)}
    positions.update((user, place) for place, user in enumerate(public, start=len(ids)))
    fields = {
        **{key: manifest[key] for key in ("name", "synthetic", "licence", "credit")},
        "roster_name": roster,
        "roster": kept,
        "roster_sha256": roster_sha256(kept),
        "public_users": public,
        "words": tuple(vocabulary["words"]),
        "split": split,
        "provenance": provenance,
        "word_counts": open_array(directory / "word_counts.npy"),
        "threads": open_array(directory / "threads.npy"),
        "_public_threads": open_array(directory / "public_threads.npy"),
        "_positions": positions,
        "_edges": {
            "train": (begins, trained),
            "validation": (trained, validated),
            "test": (validated, ends),
            "all": (begins, ends),
        },
    }
    return fields, vocabulary


def save_user_rows(directory: Path, rows: np.ndarray) -> None:
    """Write the three tables of users' rows.

    Args:
        directory: the view's folder.
        rows: int64 (3, U), how many rows each user has for training, validation and testing.
    """
    table = offsets(rows.sum(axis=0))
    ends = table[:-1] + rows[TRAIN], table[1:] - rows[TEST]
    np.save(directory / "user_offsets.npy", table)
    for name, values in zip(_ENDS, ends, strict=True):
        np.save(directory / f"{name}.npy", values)
