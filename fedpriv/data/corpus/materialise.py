"""Make the memory-mapped files of one roster's view from the sentences of a corpus.

Files in a view's folder (users: the roster in its order, then the public users; a user's examples
lie together, those for training first):

    users.json                  {"roster": [...], "public": [...]}
    vocabulary.json             {"words": [...], "tags": [...], "num_public_examples", "source"}
    word_counts, word_users, word_sentences, tag_users      int64, see `vocabulary.RosterVocabulary`
    user_offsets int64 (U + 1)  first example of each user
    train_ends   int64 (U)      end of each user's training examples
    validation_ends   int64 (U) end of each user's validation examples; then come those for testing
    threads      int32          each example's thread, its number in the corpus
    public_threads    uint8     of public users: 1 where a public user asked that thread
    word_offsets, words, counts, num_tokens, labels, tag_offsets, tags    see `TagExamples`
    listed       int64          of views that bound an owner's examples: each listed example's
                                number here, -1 for one without a label
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpriv.data.corpus.division import TEST, TRAIN, VALIDATION, Division
from fedpriv.data.corpus.examples import row_positions
from fedpriv.data.corpus.vocabulary import RosterVocabulary
from fedpriv.data.files.arrays import ArrayWriter, offsets, smallest_unsigned
from fedpriv.data.files.unpack import Progress
from fedpriv.data.sentences.store import OWN, SentenceBatch, SentenceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the manifest publishes about a materialised roster.

    Attributes:
        num_examples: examples of rostered users.
        num_public_examples: examples (with a label) of public users.
        without_label: sentences of rostered and of public users left out, for want of a tag
            from the tag list, or because the split has no side for them.
        foreign_titles: rostered users' examples that carry another account's title.
        rostered_titles: those among them whose title is another rostered user's.
        subsets: examples of rostered users for training, validation and testing.
        public_subsets: likewise of public users, in threads that a public user asked.
        without_training: rostered users with no example to train on.
    """

    num_examples: int
    num_public_examples: int
    without_label: tuple[int, int]
    foreign_titles: int
    rostered_titles: int
    subsets: tuple[int, int, int]
    public_subsets: tuple[int, int, int]
    without_training: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Examples of a batch, ready to be appended."""

    users: np.ndarray
    ordinals: np.ndarray
    word_lengths: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    num_tokens: np.ndarray
    labels: np.ndarray
    tag_lengths: np.ndarray
    tags: np.ndarray
    title_users: np.ndarray
    threads: np.ndarray
    subsets: np.ndarray
    public_threads: np.ndarray


def materialise(
    store: SentenceStore,
    directory: Path,
    *,
    roster: Sequence[str],
    public_users: Sequence[str],
    vocabulary: RosterVocabulary,
    sizes: tuple[int, int],
    largest_count: int,
    division: Division,
    listed: np.ndarray | None = None,
    progress: Progress | None = None,
) -> Facts:
    """Write the files of one view into the existing, empty `directory`.

    Args:
        store: the corpus' sentences.
        directory: where to write.
        roster: the rostered ids, in order.
        public_users: all other users of the corpus, sorted.
        vocabulary: the roster's words and tags.
        sizes: numbers of distinct words and tags in the corpus.
        largest_count: no word occurs more often in an example; sets the type of the counts.
        division: says what each sentence is for.
        listed: rows of the store that training examples are listed of, if they are.
        progress: called with (sentences done, sentences).
    """
    users = (*roster, *public_users)
    _write_small(directory, roster, public_users, vocabulary)
    ranks = _ranks(vocabulary.word_numbers, sizes[0]), _ranks(vocabulary.tag_numbers, sizes[1])
    rostered = np.zeros(len(store.users), dtype=bool)
    rostered[[number for user in roster if (number := store.position(user)) >= 0]] = True
    by_subset = np.zeros((3, len(users)), dtype=np.int64)
    in_public = np.zeros(3, dtype=np.int64)
    sentences = np.zeros(len(users), dtype=np.int64)
    foreign = by_roster = 0
    trained = [np.zeros((0, 2), np.int64)]
    with ExitStack() as stack:

        def column(name: str, dtype: np.typing.DTypeLike) -> ArrayWriter:
            return stack.enter_context(ArrayWriter(directory / f"{name}.npy", dtype))

        words = column("words", np.int32)
        counts = column("counts", smallest_unsigned(largest_count))
        num_tokens, labels = column("num_tokens", np.int32), column("labels", np.int32)
        tags = column("tags", np.int32)
        threads, asked = column("threads", np.int32), column("public_threads", np.uint8)
        word_offsets = column("word_offsets", np.int64)
        tag_offsets = column("tag_offsets", np.int64)
        word_offsets.append(np.zeros(1, dtype=np.int64))
        tag_offsets.append(np.zeros(1, dtype=np.int64))
        for batch in store.batches(users):
            rows = _rows(batch, users, ranks, division)
            if listed is not None:
                trained.append(_trained(store, users, batch, rows, labels.length))
            word_offsets.append(words.length + np.cumsum(rows.word_lengths))
            tag_offsets.append(tags.length + np.cumsum(rows.tag_lengths))
            words.append(rows.words)
            counts.append(rows.counts)
            num_tokens.append(rows.num_tokens)
            labels.append(rows.labels)
            tags.append(rows.tags)
            threads.append(rows.threads)
            asked.append(rows.public_threads)
            for subset in (TRAIN, VALIDATION, TEST):
                here = rows.subsets == subset
                by_subset[subset] += np.bincount(rows.users[here], minlength=len(users))
                here &= (rows.users >= len(roster)) & (rows.public_threads > 0)
                in_public[subset] += np.count_nonzero(here)
            sentences += np.bincount(batch.users, minlength=len(users))
            titles = rows.title_users[(rows.users < len(roster)) & (rows.title_users != OWN)]
            foreign += len(titles)
            by_roster += int(np.count_nonzero(rostered[titles[titles >= 0]]))
            if progress is not None:
                progress(int(sentences.sum()), int(store.offsets[-1]))
    if listed is not None:
        np.save(directory / "listed.npy", _numbers(listed, np.concatenate(trained)))
    examples = by_subset.sum(axis=0)
    user_offsets = offsets(examples)
    np.save(directory / "user_offsets.npy", user_offsets)
    np.save(directory / "train_ends.npy", user_offsets[:-1] + by_subset[TRAIN])
    np.save(directory / "validation_ends.npy", user_offsets[1:] - by_subset[TEST])
    missing = sentences - examples
    of_roster = by_subset[:, : len(roster)]
    return Facts(
        num_examples=int(examples[: len(roster)].sum()),
        num_public_examples=int(examples[len(roster) :].sum()),
        without_label=(int(missing[: len(roster)].sum()), int(missing[len(roster) :].sum())),
        foreign_titles=foreign,
        rostered_titles=by_roster,
        subsets=_three(of_roster.sum(axis=1)),
        public_subsets=_three(in_public),
        without_training=int(np.count_nonzero(of_roster[TRAIN] == 0)),
    )


def _trained(
    store: SentenceStore, users: Sequence[str], batch: SentenceBatch, rows: _Rows, first: int
) -> np.ndarray:
    """Return store row and number of a batch's training examples, int64 (n, 2)."""
    at = np.flatnonzero(rows.subsets == TRAIN)
    starts = [store.offsets[store.position(users[int(user)])] for user in rows.users[at].tolist()]
    return np.stack([np.array(starts, np.int64) + rows.ordinals[at], first + at], axis=1)


def _numbers(listed: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Return the number of each listed row's example, -1 where it has none."""
    trained = trained[np.argsort(trained[:, 0])]
    places = np.searchsorted(trained[:, 0], listed)
    within = np.minimum(places, max(len(trained) - 1, 0))
    if not len(trained):
        return np.full(len(listed), -1, np.int64)
    return np.where(trained[within, 0] == listed, trained[within, 1], -1)


def _three(numbers: np.ndarray) -> tuple[int, int, int]:
    first, second, third = numbers.tolist()
    return first, second, third


def _write_small(
    directory: Path,
    roster: Sequence[str],
    public_users: Sequence[str],
    vocabulary: RosterVocabulary,
) -> None:
    users = {"roster": list(roster), "public": list(public_users)}
    (directory / "users.json").write_text(json.dumps(users), "utf-8")
    names = {
        "words": list(vocabulary.words),
        "tags": list(vocabulary.tags),
        "num_public_examples": vocabulary.num_sentences,
        "source": vocabulary.source,
    }
    (directory / "vocabulary.json").write_text(json.dumps(names), "utf-8")
    for name in ("word_counts", "word_users", "word_sentences", "tag_users"):
        np.save(directory / f"{name}.npy", getattr(vocabulary, name).astype(np.int64))


def _ranks(numbers: np.ndarray, size: int) -> np.ndarray:
    """Return the rank of every corpus number, -1 for those that were not chosen."""
    ranks = np.full(size, -1, dtype=np.int32)
    used = numbers >= 0
    ranks[numbers[used]] = np.flatnonzero(used)
    return ranks


def _rows(
    batch: SentenceBatch,
    users: Sequence[str],
    ranks: tuple[np.ndarray, np.ndarray],
    division: Division,
) -> _Rows:
    word_ranks, tag_ranks = ranks
    tag_offsets, tags, _ = _in_list(batch.tag_rows, tag_ranks[batch.tags], len(batch))
    word_offsets, words, counts = _in_list(
        batch.word_rows, word_ranks[batch.words], len(batch), batch.counts
    )
    labelled = np.flatnonzero(np.diff(tag_offsets))
    keep, subsets = division.subsets(batch, users, labelled)
    new_words, word_entries = row_positions(word_offsets, keep)
    new_tags, tag_entries = row_positions(tag_offsets, keep)
    return _Rows(
        users=batch.users[keep],
        ordinals=batch.ordinals[keep],
        word_lengths=np.diff(new_words),
        words=words[word_entries],
        counts=counts[word_entries],
        num_tokens=batch.num_tokens[keep],
        labels=tags[tag_offsets[keep]],  # tags increase within a row: the first is the label
        tag_lengths=np.diff(new_tags),
        tags=tags[tag_entries],
        title_users=batch.title_users[keep],
        threads=batch.threads[keep],
        subsets=subsets,
        public_threads=division.asked_in_public(batch)[keep].astype(np.uint8),
    )


def _in_list(
    rows: np.ndarray, ranks: np.ndarray, num_rows: int, values: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Drop entries that are not in the list, sort each row by rank; return offsets and columns."""
    inside = ranks >= 0
    rows, ranks = rows[inside], ranks[inside]
    order = np.argsort(rows * (int(ranks.max(initial=0)) + 1) + ranks)
    counts = ranks if values is None else values[inside]
    return offsets(np.bincount(rows, minlength=num_rows)), ranks[order], counts[order]
