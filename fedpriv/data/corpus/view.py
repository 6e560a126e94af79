"""A roster's view of a corpus: who is rostered, the vocabulary, and each user's examples."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.data.corpus.examples import TagExamples
from fedpriv.data.corpus.rosters import Places, first_users, places
from fedpriv.data.corpus.splits import PUBLIC_TEXT, PublicText, Split
from fedpriv.data.files.arrays import open_array

SUBSETS = ("train", "validation", "test", "all")

BATCH_EXAMPLES = 4096
"""How many examples of a large set are held in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RosterView(ABC):
    """One roster of a prepared corpus: what its examples of any kind have in common.

    Attributes:
        name: the corpus' name.
        synthetic: whether a generator made the text; every figure must then say so.
        roster_name: the roster's name.
        licence: the text's licence.
        credit: whom to credit for it.
        roster: the rostered ids, in the published order.
        public_users: all other users of the corpus, sorted.
        words: the vocabulary (V), the word used by most public users first.
        split: what is for training, validation and testing.
        provenance: where each of these came from, whose text is in an example, what was left out.
        places: where each user's rows lie.
    """

    name: str
    synthetic: bool
    roster_name: str
    licence: str
    credit: str
    roster: tuple[str, ...]
    public_users: tuple[str, ...]
    words: tuple[str, ...]
    split: Split
    provenance: Mapping[str, object]
    places: Places

    @property
    def roster_sha256(self) -> str:
        """Hash of the rostered ids."""
        return self.places.roster_sha256

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
        start, end = self._span(user_id, subset)
        return end - start

    @abstractmethod
    def examples(self, user_id: str, subset: str = "train") -> Any:
        """Return one user's examples, as slices of the mapped files; possibly none."""

    def _spans(self, user_ids: Sequence[str], subset: str) -> tuple[np.ndarray, np.ndarray]:
        """Return where each user's examples start and end, int64 (users,) each."""
        # No objects a user: with hundreds of thousands of them, memory would follow.
        positions = np.fromiter(map(self._position, user_ids), np.int64, len(user_ids))
        starts, ends = self._edges(subset)
        return starts[positions], ends[positions]

    def _span(self, user_id: str, subset: str) -> tuple[int, int]:
        starts, ends = self._edges(subset)
        position = self._position(user_id)
        return int(starts[position]), int(ends[position])

    def _edges(self, subset: str) -> tuple[np.ndarray, np.ndarray]:
        if subset not in self.places.edges:
            raise ValueError(f"subset {subset!r} is unknown; choose one of {SUBSETS}")
        return self.places.edges[subset]

    def _position(self, user_id: str) -> int:
        position = self.places.positions.get(user_id)
        if position is None:
            raise ValueError(
                f"user {user_id!r} is unknown in roster {self.roster_name!r}: neither among its "
                f"{len(self.roster)} rostered nor its {len(self.public_users)} public users"
            )
        return position


class TrainingSplit:
    """The training split of a view, as `fedpriv.training.work.UserData`."""

    def __init__(self, view: RosterView) -> None:
        self._view = view

    def examples(self, user_id: str) -> Any:
        """Return a user's training examples."""
        return self._view.examples(user_id, subset="train")

    def num_examples(self, user_id: str) -> int:
        """Return how many they are."""
        return self._view.num_examples(user_id, subset="train")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TagView(RosterView):
    """Examples of tag prediction, memory-mapped: many processes share the same pages.

    Guarantee: `words`, `tags`, their order and every count come from users outside the roster
    (or from published counts, and `provenance` says so), so adding or removing the records of any
    rostered user changes none of them, nor another user's examples *as prepared*.

    Attributes:
        tags: the tag list (G), the tag used by most public users first; the order decides labels.
        word_counts: int64 (V,), occurrences in public users' own text.
        word_users: int64 (V,), public users whose own text uses the word.
        word_sentences: int64 (V,), public sentences whose own text contains the word.
        num_public_examples: the number of public sentences the counts above were taken over.
        tag_users: int64 (G,), public users with a post that carries the tag.
        columns: all examples as mapped from disk, which row numbers refer to.
    """

    tags: tuple[str, ...]
    word_counts: np.ndarray
    word_users: np.ndarray
    word_sentences: np.ndarray
    num_public_examples: int
    tag_users: np.ndarray
    columns: TagExamples
    _threads: np.ndarray | None
    _public_threads: np.ndarray | None
    _listed: np.ndarray | None = None

    def __repr__(self) -> str:
        return (
            f"TagView({self.name!r}, roster {self.roster_name!r}: {len(self.roster)} users, "
            f"{len(self.public_users)} public, {len(self.words)} words, {len(self.tags)} tags)"
        )

    def examples(self, user_id: str, subset: str = "train") -> TagExamples:
        """Return one user's examples, as slices of the mapped files; possibly none.

        Args:
            user_id: a rostered or public user of this view.
            subset: "train", "validation", "test" or "all".

        Raises:
            ValueError: unknown user or subset.
        """
        start, end = self._span(user_id, subset)
        whole = self.columns
        words, tags = whole.indptr[start : end + 1], whole.tag_indptr[start : end + 1]
        return TagExamples(
            indptr=words - words[0],
            indices=whole.indices[words[0] : words[-1]],
            counts=whole.counts[words[0] : words[-1]],
            num_tokens=whole.num_tokens[start:end],
            labels=whole.labels[start:end],
            tag_indptr=tags - tags[0],
            tag_indices=whole.tag_indices[tags[0] : tags[-1]],
            num_words=whole.num_words,
            num_tags=whole.num_tags,
        )

    def label_counts(self, user_ids: Sequence[str], subset: str = "test") -> np.ndarray:
        """Return how often each tag is the label of users' examples, int64 (G,).

        Only labels are read, no words.

        Raises:
            ValueError: unknown user or subset.
        """
        counts = np.zeros(len(self.tags), dtype=np.int64)
        for rows in self.rows(user_ids, subset):
            counts += np.bincount(self.columns.labels[rows], minlength=len(counts))
        return counts

    def rows(
        self, user_ids: Sequence[str], subset: str = "test", *, size: int = BATCH_EXAMPLES
    ) -> Iterator[np.ndarray]:
        """Yield the row numbers in `columns` of users' examples, int64, at most `size` at a time.

        Raises:
            ValueError: unknown user or subset, `size` below 1.
        """
        if size < 1:
            raise ValueError(f"size {size} is below 1; give how many examples to hold at once")
        starts, ends = self._spans(user_ids, subset)
        past = np.cumsum(ends - starts)  # examples up to and with each user
        for first in range(0, int(past[-1]) if len(past) else 0, size):
            numbers = np.arange(first, min(first + size, int(past[-1])))
            owners = np.searchsorted(past, numbers, side="right")
            yield ends[owners] - past[owners] + numbers

    @property
    def threads(self) -> np.ndarray:
        """The thread of every example in `columns`, int32, as numbers within the corpus.

        Raises:
            ValueError: a corpus of version 1 does not know them.
        """
        if self._threads is None:
            raise ValueError(
                f"corpus {self.name!r} was prepared before threads were kept; import it again"
            )
        return self._threads

    @property
    def listed(self) -> np.ndarray:
        """Each listed training example's row number in `columns`, int64; -1 without a label.

        The list is one of ids, and no label or word is looked at for it: with one owner's examples
        blanked it is the same.

        Raises:
            ValueError: the split bounds no owner's examples, so none are listed.
        """
        if self._listed is None:
            raise ValueError(
                f"split {self.split.name} lists no examples; give it owners all and "
                "examples-per-owner"
            )
        return self._listed

    def public_rows(self, subset: str, *, of: PublicText = "public-threads") -> np.ndarray:
        """Return the row numbers in `columns` of public users' examples, int64.

        Args:
            subset: "train", "validation", "test" or "all".
            of: "public-threads" leaves out threads that no public user asked, whose titles and
                tags may be a rostered user's; "all-posts" keeps them. Of a corpus of version 1
                it is not known who asked, so none is left.

        Raises:
            ValueError: unknown subset or `of`; all posts of a part of a corpus.
        """
        if of not in PUBLIC_TEXT:
            raise ValueError(f"public text {of!r} is unknown; choose one of {PUBLIC_TEXT}")
        if of == "all-posts" and "part" in self.provenance:
            raise ValueError(
                "a part of a corpus has no post under a rostered user's question; train on it with "
                "public-text public-threads"
            )
        rows = np.concatenate([np.arange(0), *self.rows(self.public_users, subset)])
        if of == "all-posts":
            return rows
        return rows[:0] if self._public_threads is None else rows[self._public_threads[rows] > 0]


def open_view(
    directory: Path,
    *,
    roster: str,
    split: Split,
    about: Mapping[str, Any],
    provenance: Mapping[str, object],
    users: int | None = None,
) -> TagView:
    """Open the files that `materialise` wrote.

    Args:
        directory: the view's directory.
        roster: the roster's name.
        split: the split it was made for.
        about: "name", "synthetic", "licence" and "credit" of the corpus.
        provenance: what the manifest says about it.
        users: keep the first so many rostered users only; the vocabulary stays the same.

    Raises:
        ValueError: a file is missing, cut short or inconsistent; `users` is out of range.
    """
    lists, names = _json(directory / "users.json"), _json(directory / "vocabulary.json")
    try:
        ids, public = tuple(lists["roster"]), tuple(lists["public"])
        words, tags = tuple(names["words"]), tuple(names["tags"])
        num_public = int(names["num_public_examples"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory} is damaged ({error}); import the corpus again") from error
    number = len(ids) + len(public)
    user_offsets = _offsets(directory, "user_offsets", number, None)
    train_ends = _ends(directory, "train_ends", user_offsets[:-1], user_offsets[1:])
    validation_ends, threads, asked = train_ends, None, None
    if (directory / "threads.npy").is_file():  # views of corpora of version 1 have none
        validation_ends = _ends(directory, "validation_ends", train_ends, user_offsets[1:])
        total = int(user_offsets[-1])
        threads = open_array(directory / "threads.npy", dtype="int32", length=total)
        asked = open_array(directory / "public_threads.npy", dtype="uint8", length=total)
    kept = first_users(ids, users, roster)
    columns = _columns(directory, int(user_offsets[-1]), len(words), len(tags))
    listed = None
    if split.examples_per_owner is not None:
        listed = open_array(directory / "listed.npy", dtype="int64")

    def counts(column: str, length: int) -> np.ndarray:
        return open_array(directory / f"{column}.npy", dtype="int64", length=length)

    return TagView(
        **about,
        roster_name=roster,
        roster=kept,
        public_users=public,
        words=words,
        tags=tags,
        word_counts=counts("word_counts", len(words)),
        word_users=counts("word_users", len(words)),
        word_sentences=counts("word_sentences", len(words)),
        num_public_examples=num_public,
        tag_users=counts("tag_users", len(tags)),
        split=split,
        provenance=provenance,
        places=places(ids, kept, public, (user_offsets, train_ends, validation_ends)),
        columns=columns,
        _threads=threads,
        _public_threads=asked,
        _listed=listed,
    )


def _columns(directory: Path, num_examples: int, num_words: int, num_tags: int) -> TagExamples:
    words = open_array(directory / "words.npy", dtype="int32")
    tags = open_array(directory / "tags.npy", dtype="int32")
    return TagExamples(
        indptr=_offsets(directory, "word_offsets", num_examples, len(words)),
        indices=words,
        counts=open_array(directory / "counts.npy", length=len(words)),
        num_tokens=open_array(directory / "num_tokens.npy", dtype="int32", length=num_examples),
        labels=open_array(directory / "labels.npy", dtype="int32", length=num_examples),
        tag_indptr=_offsets(directory, "tag_offsets", num_examples, len(tags)),
        tag_indices=tags,
        num_words=num_words,
        num_tags=num_tags,
    )


def _ends(directory: Path, name: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    path = directory / f"{name}.npy"
    table = open_array(path, dtype="int64", length=len(starts))
    if np.any(table < starts) or np.any(table > ends):
        raise ValueError(f"{path} is damaged; import the corpus again")
    return table


def _offsets(directory: Path, name: str, number: int, total: int | None) -> np.ndarray:
    path = directory / f"{name}.npy"
    table = open_array(path, dtype="int64", length=number + 1)
    # Only the ends of the long tables are looked at, so that opening stays instant.
    inner = table if total is None else table[[0, -1]]
    if table[0] != 0 or (total is not None and table[-1] != total) or np.any(np.diff(inner) < 0):
        raise ValueError(f"{path} is damaged; import the corpus again")
    return table


def _json(path: Path) -> dict:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); import the corpus again") from error
