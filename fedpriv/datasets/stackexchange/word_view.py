"""Next-word prediction on a corpus: the sentences of each user, word by word.

Files in a view's folder, besides those of every view (`roster_view`), next to that of the tag view
it shares users, words and split with:

    kinds        uint8           of its post (`sentence_store.KINDS`)
    starts       int64 (n + 1)   first word of each sentence in the file below
    words        int32           ranks in the vocabulary, -1 for a word outside it
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpriv.datasets.arrays import array_writers, offsets, open_array, ranges
from fedpriv.datasets.cache import new_folder
from fedpriv.datasets.stackexchange import manifest as manifests
from fedpriv.datasets.stackexchange.corpus import Corpus
from fedpriv.datasets.stackexchange.roster_view import (
    RosterView,
    open_users,
    save_user_rows,
)
from fedpriv.datasets.stackexchange.sentence_store import SentenceStore
from fedpriv.datasets.stackexchange.splits import (
    BY_THREAD,
    SUBSETS,
    TEST,
    TRAIN,
    VALIDATION,
    Split,
    divide,
)

UNKNOWN = -1
"""Number of a word that is not in the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordSequences:
    """n sentences; arrays may be read-only views of a file.

    Attributes:
        starts: int64 (n + 1,), where each begins in `words`, from 0.
        words: int32 (total,), ranks in the view's vocabulary, 0 for the commonest; UNKNOWN for a
            word outside it.
        kinds: uint8 (n,), of the posts they stand in (`sentences.KINDS`).
    """

    starts: np.ndarray
    words: np.ndarray
    kinds: np.ndarray

    def __len__(self) -> int:
        return len(self.kinds)

    def part(self, start: int, end: int) -> WordSequences:
        """Return a run of sentences, as slices."""
        starts = self.starts[start : end + 1]
        words = self.words[starts[0] : starts[-1]]
        return WordSequences(starts=starts - starts[0], words=words, kinds=self.kinds[start:end])

    def take(self, index: np.ndarray) -> WordSequences:
        """Return the sentences at these positions, in that order (a copy)."""
        index = np.asarray(index, np.int64)
        lengths = self.starts[index + 1] - self.starts[index]
        return WordSequences(
            starts=offsets(lengths),
            words=np.asarray(self.words[ranges(self.starts[index], lengths)]),
            kinds=np.asarray(self.kinds[index]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WordView(RosterView[WordSequences]):
    """One roster of a prepared corpus as sequences of words, memory-mapped.

    Guarantee: `words` and their order come from users outside the roster (or from published counts,
    and `provenance` says so), and a sentence holds words of the account that wrote it alone. So
    adding or removing the records of a rostered user changes no other user's sentences as prepared.
    """

    def public_rows(self, subset: str) -> np.ndarray:
        """Return the row numbers in `columns` of public users' sentences, int64.

        They are all of them: a sentence's words are its writer's, no matter who asked the question.
        By time only those in threads that a public user asked, because the day of a thread is a
        fact of the user who asked it.

        Raises:
            ValueError: unknown subset.
        """
        rows = self.all_rows(self.public_users, subset)
        return rows[self._public_threads[rows] > 0] if self.split.kind == "by-time" else rows


_SHARED = ("users.json", "vocabulary.json", "word_counts.npy")
_PROVENANCE = (
    "split", "roster_rule", "roster_how", "roster_looks_at_data", "words", "word_counts",
    "word_counts_source",
)  # fmt: skip


def open_word_view(
    corpus: Corpus, roster: str | None = None, users: int | None = None, split: Split = BY_THREAD
) -> WordView:
    """Open the sequences of one roster, split one way; they are made when first asked for.

    Args:
        corpus: a prepared corpus.
        roster: a name from its rosters; None for its default.
        users: keep only the first so many users of the roster; vocabulary and public users stay.
        split: what is for training, validation and testing.

    Raises:
        ValueError: as `Corpus.view`; a part of a corpus; a split that bounds what an owner has.
    """
    if corpus.is_part:
        raise ValueError(
            f"{corpus.directory} is a part of a corpus, and parts do not keep the order of words; "
            "give the whole corpus"
        )
    if split.owners != "account":
        raise ValueError(
            f"owners {split.owners!r}: a sentence has one owner, who wrote it; leave it out"
        )
    tag_view = corpus.view(roster, users, split)
    name = tag_view.roster_name

    def make(folder: Path) -> None:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new_folder(folder, complete=manifests.VIEW_FILE) as unready:
            for shared in _SHARED:
                shutil.copyfile(corpus.view_folder(name, split) / shared, unready / shared)
            manifests.write_view(unready, _write(corpus, unready, split))

    folder = corpus.find_view(name, f"{split.name}-words", make)
    manifests.read_view(folder)
    provenance = {key: tag_view.provenance[key] for key in _PROVENANCE}
    provenance["example"] = "a sentence, in its writer's words alone: no title, no tag"
    fields, _ = open_users(folder, corpus.manifest, name, split, provenance, users)

    def column(name: str) -> np.ndarray:
        return open_array(folder / f"{name}.npy")

    return WordView(
        **fields,
        columns=WordSequences(
            starts=column("starts"), words=column("words"), kinds=column("kinds")
        ),
    )


def _write(corpus: Corpus, directory: Path, split: Split) -> dict[str, object]:
    store, manifest = SentenceStore(corpus.directory), corpus.manifest
    lists = json.loads((directory / "users.json").read_text("utf-8"))
    names = json.loads((directory / "vocabulary.json").read_text("utf-8"))["words"]
    roster, public = lists["roster"], lists["public"]
    users = (*roster, *public)
    division = divide(split, store, roster, public, manifest["split_seed"])
    ranks = np.full(manifest["totals"]["words"], UNKNOWN, np.int32)
    numbers = store.numbers("words", names)
    for rank, name in enumerate(names):
        if name in numbers:  # published words may never occur
            ranks[numbers[name]] = rank
    by_subset = np.zeros((3, len(users)), np.int64)
    dtypes = {
        "words": np.int32,
        "threads": np.int32,
        "kinds": np.uint8,
        "public_threads": np.uint8,
    }
    with array_writers(directory, dtypes, offsets=("starts",)) as files:
        for batch in store.batches(users):
            rows, subsets = division.subsets(batch, users, np.arange(len(batch)))
            found, lengths = store.sequences(batch.rows[rows])
            files["starts"].append_ends(lengths)
            files["words"].append(ranks[found])
            files["threads"].append(batch.threads[rows])
            files["kinds"].append(store.kinds(batch.rows[rows]))
            files["public_threads"].append(division.asked_in_public(batch)[rows].astype(np.uint8))
            for subset in (TRAIN, VALIDATION, TEST):
                here = batch.users[rows[subsets == subset]]
                by_subset[subset] += np.bincount(here, minlength=len(users))
    save_user_rows(directory, by_subset)
    of_roster = by_subset[:, : len(roster)]
    return {
        "split": split.name,
        "sentences_by_subset": dict(zip(SUBSETS, of_roster.sum(axis=1).tolist(), strict=True)),
        "users_without_training_sentences": int(np.count_nonzero(of_roster[TRAIN] == 0)),
    }
