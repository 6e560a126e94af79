"""A roster's view of a corpus as sequences: each user's sentences, word by word.

Files in its folder, next to that of the tag view it shares users, words and split with (users: the
roster in its order, then the public users; a user's sentences lie together, those for training
first):

    users.json, vocabulary.json  as in the tag view (`fedpriv.data.corpus.materialise`)
    user_offsets int64 (U + 1), train_ends int64 (U), validation_ends int64 (U)    likewise
    threads      int32           each sentence's thread
    public_threads  uint8        1 where a public user asked that thread
    kinds        uint8           of its post (`fedpriv.data.sentences.sequences.KINDS`)
    starts       int64 (n + 1)   first word of each sentence in the file below
    words        int32           ranks in the vocabulary, -1 for a word outside it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.data.corpus.rosters import first_users, places
from fedpriv.data.corpus.splits import Split
from fedpriv.data.corpus.view import RosterView
from fedpriv.data.files.arrays import open_array
from fedpriv.data.words.sentences import Sentences

ENDS = ("train_ends", "validation_ends")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WordView(RosterView):
    """One roster of a prepared corpus as sequences of words, memory-mapped.

    Guarantee: `words` and their order come from users outside the roster (or from published counts,
    and `provenance` says so), and a sentence holds words of the account that wrote it alone. So
    adding or removing the records of a rostered user changes no other user's sentences as prepared.

    Attributes:
        word_counts: int64 (V,), occurrences in public users' own training text.
        columns: all sentences as mapped from disk, which row numbers refer to.
        threads: int32, each sentence's thread, as a number within the corpus.
    """

    word_counts: np.ndarray
    columns: Sentences
    threads: np.ndarray
    _asked_in_public: np.ndarray

    def __repr__(self) -> str:
        return (
            f"WordView({self.name!r}, roster {self.roster_name!r}: {len(self.roster)} users, "
            f"{len(self.public_users)} public, {len(self.words)} words)"
        )

    def examples(self, user_id: str, subset: str = "train") -> Sentences:
        """Return one user's sentences, as slices of the mapped files; possibly none.

        Args:
            user_id: a rostered or public user of this view.
            subset: "train", "validation", "test" or "all".

        Raises:
            ValueError: unknown user or subset.
        """
        start, end = self._span(user_id, subset)
        whole = self.columns
        starts = whole.starts[start : end + 1]
        return Sentences(
            starts=starts - starts[0],
            words=whole.words[starts[0] : starts[-1]],
            kinds=whole.kinds[start:end],
        )

    def rows(self, user_ids: Sequence[str], subset: str = "test") -> np.ndarray:
        """Return the row numbers in `columns` of users' sentences, int64.

        Raises:
            ValueError: unknown user or subset.
        """
        spans = [np.arange(*self._span(user_id, subset)) for user_id in user_ids]
        return np.concatenate([np.arange(0), *spans])

    def public_rows(self, subset: str) -> np.ndarray:
        """Return the row numbers in `columns` of public users' sentences, int64.

        They are all of them: whoever asked the question, a sentence's words are its writer's. By
        time only those in threads that a public user asked, because the day of a thread is a fact
        of whoever asked it.

        Raises:
            ValueError: unknown subset.
        """
        rows = self.rows(self.public_users, subset)
        return rows[self._asked_in_public[rows] > 0] if self.split.kind == "by-time" else rows

    def users_of(self, user_ids: Sequence[str], subset: str) -> Iterator[tuple[str, Sentences]]:
        """Yield users that have sentences of a subset, with those."""
        for user_id in user_ids:
            if self.num_examples(user_id, subset):
                yield user_id, self.examples(user_id, subset)


def open_word_view(
    directory: Path,
    *,
    roster: str,
    split: Split,
    about: Mapping[str, Any],
    provenance: Mapping[str, object],
    users: int | None = None,
) -> WordView:
    """Open the files of a view.

    Args:
        directory: the view's folder.
        roster: the roster's name.
        split: the split it was made for.
        about: "name", "synthetic", "licence" and "credit" of the corpus.
        provenance: what is said of it.
        users: keep the first so many rostered users only; the vocabulary stays the same.

    Raises:
        ValueError: a file is missing, cut short or inconsistent; `users` is out of range.
    """
    try:
        lists = json.loads((directory / "users.json").read_text("utf-8"))
        names = json.loads((directory / "vocabulary.json").read_text("utf-8"))
        ids, public = tuple(lists["roster"]), tuple(lists["public"])
        words = tuple(names["words"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory} is damaged ({error}); import the corpus again") from error
    number = len(ids) + len(public)

    def column(name: str, dtype: str, length: int | None = None) -> np.ndarray:
        return open_array(directory / f"{name}.npy", dtype=dtype, length=length)

    first = column("user_offsets", "int64", number + 1)
    trained, chosen_on = (column(name, "int64", number) for name in ENDS)
    total = int(first[-1])
    starts, found = column("starts", "int64", total + 1), column("words", "int32")
    ordered = (first[:-1] <= trained) & (trained <= chosen_on) & (chosen_on <= first[1:])
    if first[0] != 0 or not ordered.all() or starts[0] != 0 or starts[-1] != len(found):
        raise ValueError(f"{directory} is damaged; remove it, and it is made again")
    kept = first_users(ids, users, roster)
    return WordView(
        **about,
        roster_name=roster,
        roster=kept,
        public_users=public,
        words=words,
        word_counts=column("word_counts", "int64", len(words)),
        split=split,
        provenance=provenance,
        columns=Sentences(starts=starts, words=found, kinds=column("kinds", "uint8", total)),
        threads=column("threads", "int32", total),
        _asked_in_public=column("public_threads", "uint8", total),
        places=places(ids, kept, public, (first, trained, chosen_on)),
    )
