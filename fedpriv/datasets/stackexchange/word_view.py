"""Next-word prediction on a corpus: the sentences of each user, word by word.

Files in a view's folder, next to that of the tag view it shares users, words and split with (users:
the roster in its order, then the public users; a user's sentences lie together, those for training
first):

    users.json, vocabulary.json  as in the tag view (`fedpriv.datasets.stackexchange.tag_view`)
    user_offsets int64 (U + 1), train_ends int64 (U), validation_ends int64 (U)    likewise
    threads      int32           each sentence's thread
    public_threads  uint8        1 where a public user asked that thread
    kinds        uint8           of its post (`fedpriv.datasets.stackexchange.sentence_store.KINDS`)
    starts       int64 (n + 1)   first word of each sentence in the file below
    words        int32           ranks in the vocabulary, -1 for a word outside it
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.arrays import ArrayWriter, offsets, open_array, ranges
from fedpriv.datasets.cache import cache_dir
from fedpriv.datasets.stackexchange import manifest as manifests
from fedpriv.datasets.stackexchange.corpus import READ_ONLY, Corpus
from fedpriv.datasets.stackexchange.rosters import RosterView, first_users, places
from fedpriv.datasets.stackexchange.sentence_store import SentenceStore, Sequences
from fedpriv.datasets.stackexchange.splits import BY_THREAD, TEST, TRAIN, VALIDATION, Split, divided
from fedpriv.output_paths import keep_private

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

    def take(self, index: np.ndarray) -> WordSequences:
        """Return the sentences at these positions, in that order (a copy)."""
        index = np.asarray(index, np.int64)
        lengths = self.starts[index + 1] - self.starts[index]
        return WordSequences(
            starts=offsets(lengths),
            words=np.asarray(self.words[ranges(self.starts[index], lengths)]),
            kinds=np.asarray(self.kinds[index]),
        )


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
    columns: WordSequences
    threads: np.ndarray
    _asked_in_public: np.ndarray

    def __repr__(self) -> str:
        return (
            f"WordView({self.name!r}, roster {self.roster_name!r}: {len(self.roster)} users, "
            f"{len(self.public_users)} public, {len(self.words)} words)"
        )

    def examples(self, user_id: str, subset: str = "train") -> WordSequences:
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
        return WordSequences(
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

    def users_of(self, user_ids: Sequence[str], subset: str) -> Iterator[tuple[str, WordSequences]]:
        """Yield users that have sentences of a subset, with those."""
        for user_id in user_ids:
            if self.num_examples(user_id, subset):
                yield user_id, self.examples(user_id, subset)


def _open_files(
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
        columns=WordSequences(starts=starts, words=found, kinds=column("kinds", "uint8", total)),
        threads=column("threads", "int32", total),
        _asked_in_public=column("public_threads", "uint8", total),
        places=places(ids, kept, public, (first, trained, chosen_on)),
    )


_SUFFIX = "-words"
_SHARED = ("users.json", "vocabulary.json", "word_counts.npy")
_KEPT = (
    "split", "roster_rule", "roster_how", "roster_looks_at_data", "words", "word_counts",
    "word_counts_source",
)  # fmt: skip


def open_word_view(
    corpus: Corpus, roster: str | None = None, users: int | None = None, split: Split = BY_THREAD
) -> WordView:
    """Open the sequences of one roster, split one way; they are made when first asked for.

    Args:
        corpus: a prepared corpus that keeps the order of words.
        roster: a name from its rosters; None for its default.
        users: keep only the first so many users of the roster; vocabulary and public users stay.
        split: what is for training, validation and testing.

    Raises:
        ValueError: as `Corpus.view`; a part of a corpus, or one that was prepared before the order
            of words was kept; a split that bounds what an owner has.
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
    tags = corpus.view(roster, users, split)
    folder = _found(corpus, corpus.view_folder(tags.roster_name, split), tags.roster_name, split)
    manifests.read_view(folder)
    about = {key: corpus.manifest[key] for key in ("name", "synthetic", "licence", "credit")}
    said: Mapping[str, Any] = {key: tags.provenance[key] for key in _KEPT}
    return _open_files(
        folder,
        roster=tags.roster_name,
        split=split,
        about=about,
        provenance={**said, "example": "a sentence, in its writer's words alone: no title, no tag"},
        users=users,
    )


def _found(corpus: Corpus, of_tags: Path, roster: str, split: Split) -> Path:
    """Return a view's folder, making it if need be; in the cache where the corpus is read-only."""
    name = f"{split.name}{_SUFFIX}"
    elsewhere = cache_dir() / "views" / corpus.manifest["manifest_sha256"][:16] / roster
    places = (of_tags.parent / name, elsewhere / name)
    for place in places:
        if (place / manifests.VIEW_FILE).is_file():
            return place
    try:
        _make(corpus, of_tags, places[0], split)
        return places[0]
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
    elsewhere.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make(corpus, of_tags, places[1], split)
    return places[1]


def _make(corpus: Corpus, of_tags: Path, folder: Path, split: Split) -> None:
    """Make a view's folder; of two processes that do, the second finds the first's."""
    unready = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        for name in _SHARED:
            shutil.copyfile(of_tags / name, unready / name)
        facts = _write(corpus, unready, split)
        manifests.write_view(unready, facts)
        keep_private(unready)
        try:
            unready.rename(folder)
        except OSError:
            if not (folder / manifests.VIEW_FILE).is_file():
                raise
            shutil.rmtree(unready)
    except BaseException:
        shutil.rmtree(unready, ignore_errors=True)
        raise


def _write(corpus: Corpus, directory: Path, split: Split) -> dict[str, object]:
    store, sequences = SentenceStore(corpus.directory), Sequences(corpus.directory)
    lists = json.loads((directory / "users.json").read_text("utf-8"))
    names = json.loads((directory / "vocabulary.json").read_text("utf-8"))["words"]
    users = (*lists["roster"], *lists["public"])
    division = divided(
        split, store, lists["roster"], lists["public"], corpus.manifest["split_seed"]
    )
    ranks = np.full(corpus.manifest["totals"]["words"], UNKNOWN, np.int32)
    numbers = store.numbers("words", names)
    for rank, name in enumerate(names):
        if name in numbers:  # published words may never occur
            ranks[numbers[name]] = rank
    by_subset = np.zeros((3, len(users)), np.int64)
    with ExitStack() as stack:

        def column(name: str, dtype: np.typing.DTypeLike) -> ArrayWriter:
            return stack.enter_context(ArrayWriter(directory / f"{name}.npy", dtype))

        starts, words = column("starts", np.int64), column("words", np.int32)
        threads, kinds = column("threads", np.int32), column("kinds", np.uint8)
        asked = column("public_threads", np.uint8)
        starts.append(np.zeros(1, np.int64))
        begin = store.offsets[[max(store.position(user), 0) for user in users]]
        for batch in store.batches(users):
            rows, subsets = division.subsets(batch, users, np.arange(len(batch)))
            stored = begin[batch.users[rows]] + batch.ordinals[rows]
            found, lengths = sequences.words(stored)
            starts.append(words.length + np.cumsum(lengths))
            words.append(ranks[found])
            threads.append(batch.threads[rows])
            kinds.append(sequences.kinds(stored))
            asked.append(division.asked_in_public(batch)[rows].astype(np.uint8))
            for subset in (TRAIN, VALIDATION, TEST):
                here = batch.users[rows[subsets == subset]]
                by_subset[subset] += np.bincount(here, minlength=len(users))
    examples = by_subset.sum(axis=0)
    first = offsets(examples)
    np.save(directory / "user_offsets.npy", first)
    np.save(directory / "train_ends.npy", first[:-1] + by_subset[TRAIN])
    np.save(directory / "validation_ends.npy", first[1:] - by_subset[TEST])
    of_roster = by_subset[:, : len(lists["roster"])]
    return {
        "split": split.name,
        "sentences_by_subset": dict(
            zip(("train", "validation", "test"), of_roster.sum(axis=1).tolist(), strict=True)
        ),
        "users_without_training_sentences": int(np.count_nonzero(of_roster[TRAIN] == 0)),
    }
