"""Make the memory-mapped files of one roster's view from the sentences of a corpus.

Files in `rosters/<name>/` (users: the roster in its order, then the public users; a user's
examples lie together, training examples first):

    users.json                  {"roster": [...], "public": [...]}
    vocabulary.json             {"words": [...], "tags": [...], "num_public_examples", "source"}
    word_counts, word_users, word_sentences, tag_users      int64, see `vocabulary.RosterVocabulary`
    user_offsets int64 (U + 1)  first example of each user
    train_ends   int64 (U)      end of each user's training examples
    word_offsets, words, counts, num_tokens, labels, tag_offsets, tags    see `TagExamples`

The 80/20 split is drawn by a hash of the split seed, the user's id and the sentence's ordinal
among the user's sentences. It looks at no other user, and every user with an example has one to
train on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedpriv.data.corpus.examples import row_positions
from fedpriv.data.corpus.store import OWN, SentenceBatch, SentenceStore
from fedpriv.data.corpus.vocabulary import RosterVocabulary
from fedpriv.data.files.arrays import ArrayWriter, offsets, smallest_unsigned

TRAIN_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the manifest publishes about a materialised roster.

    Attributes:
        num_examples: examples of rostered users.
        num_public_examples: examples (with a label) of public users.
        without_label: sentences of rostered and of public users left out, for want of a tag
            from the tag list.
        foreign_titles: rostered users' examples that carry another account's title.
        rostered_titles: those among them whose title is another rostered user's.
    """

    num_examples: int
    num_public_examples: int
    without_label: tuple[int, int]
    foreign_titles: int
    rostered_titles: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Examples of a batch, ready to be appended."""

    users: np.ndarray
    word_lengths: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    num_tokens: np.ndarray
    labels: np.ndarray
    tag_lengths: np.ndarray
    tags: np.ndarray
    title_users: np.ndarray


def materialise(
    store: SentenceStore,
    directory: Path,
    *,
    roster: Sequence[str],
    public_users: Sequence[str],
    vocabulary: RosterVocabulary,
    sizes: tuple[int, int],
    largest_count: int,
    split_seed: int,
) -> Facts:
    """Write the files of one roster into the existing, empty `directory`.

    Args:
        store: the corpus' sentences.
        directory: where to write.
        roster: the rostered ids, in order.
        public_users: all other users of the corpus, sorted.
        vocabulary: the roster's words and tags.
        sizes: numbers of distinct words and tags in the corpus.
        largest_count: no word occurs more often in an example; sets the type of the counts.
        split_seed: seed of the 80/20 split.
    """
    users = (*roster, *public_users)
    _write_small(directory, roster, public_users, vocabulary)
    ranks = _ranks(vocabulary.word_numbers, sizes[0]), _ranks(vocabulary.tag_numbers, sizes[1])
    rostered = np.zeros(len(store.users), dtype=bool)
    rostered[[number for user in roster if (number := store.position(user)) >= 0]] = True
    examples = np.zeros(len(users), dtype=np.int64)
    sentences = np.zeros(len(users), dtype=np.int64)
    foreign = by_roster = 0
    with ExitStack() as stack:

        def column(name: str, dtype: np.typing.DTypeLike) -> ArrayWriter:
            return stack.enter_context(ArrayWriter(directory / f"{name}.npy", dtype))

        words = column("words", np.int32)
        counts = column("counts", smallest_unsigned(largest_count))
        num_tokens, labels = column("num_tokens", np.int32), column("labels", np.int32)
        tags = column("tags", np.int32)
        word_offsets = column("word_offsets", np.int64)
        tag_offsets = column("tag_offsets", np.int64)
        word_offsets.append(np.zeros(1, dtype=np.int64))
        tag_offsets.append(np.zeros(1, dtype=np.int64))
        for batch in store.batches(users):
            rows = _rows(batch, users, ranks, split_seed)
            word_offsets.append(words.length + np.cumsum(rows.word_lengths))
            tag_offsets.append(tags.length + np.cumsum(rows.tag_lengths))
            words.append(rows.words)
            counts.append(rows.counts)
            num_tokens.append(rows.num_tokens)
            labels.append(rows.labels)
            tags.append(rows.tags)
            examples += np.bincount(rows.users, minlength=len(users))
            sentences += np.bincount(batch.users, minlength=len(users))
            titles = rows.title_users[(rows.users < len(roster)) & (rows.title_users != OWN)]
            foreign += len(titles)
            by_roster += int(np.count_nonzero(rostered[titles[titles >= 0]]))
    user_offsets = offsets(examples)
    np.save(directory / "user_offsets.npy", user_offsets)
    np.save(directory / "train_ends.npy", user_offsets[:-1] + num_train(examples))
    missing = sentences - examples
    return Facts(
        num_examples=int(examples[: len(roster)].sum()),
        num_public_examples=int(examples[len(roster) :].sum()),
        without_label=(int(missing[: len(roster)].sum()), int(missing[len(roster) :].sum())),
        foreign_titles=foreign,
        rostered_titles=by_roster,
    )


def num_train(examples: np.ndarray) -> np.ndarray:
    """Return how many of a user's examples are for training: 80 %, at least one if any.

    >>> num_train(np.array([0, 1, 2, 3, 4, 5, 10])).tolist()
    [0, 1, 2, 2, 3, 4, 8]
    """
    return np.rint(TRAIN_SHARE * examples).astype(np.int64)


def split_order(split_seed: int, user_id: str, ordinals: np.ndarray) -> np.ndarray:
    """Return one uint64 per sentence; a user's examples are sorted by it, then cut 80/20.

    The value is a function of its arguments alone (SHA-256 makes the user's key, SplitMix64's
    finaliser mixes in the ordinal).
    """
    key = hashlib.sha256(f"fedpriv split {split_seed}\0{user_id}".encode()).digest()[:8]
    mixed = ordinals.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(int.from_bytes(key, "big"))  # wraps around, as intended
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


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
    batch: SentenceBatch, users: Sequence[str], ranks: tuple[np.ndarray, np.ndarray], seed: int
) -> _Rows:
    word_ranks, tag_ranks = ranks
    tag_offsets, tags, _ = _in_list(batch.tag_rows, tag_ranks[batch.tags], len(batch))
    word_offsets, words, counts = _in_list(
        batch.word_rows, word_ranks[batch.words], len(batch), batch.counts
    )
    labelled = np.flatnonzero(np.diff(tag_offsets))
    keep = labelled[_example_order(batch, users, labelled, seed)]
    new_words, word_entries = row_positions(word_offsets, keep)
    new_tags, tag_entries = row_positions(tag_offsets, keep)
    return _Rows(
        users=batch.users[keep],
        word_lengths=np.diff(new_words),
        words=words[word_entries],
        counts=counts[word_entries],
        num_tokens=batch.num_tokens[keep],
        labels=tags[tag_offsets[keep]],  # tags increase within a row: the first is the label
        tag_lengths=np.diff(new_tags),
        tags=tags[tag_entries],
        title_users=batch.title_users[keep],
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


def _example_order(
    batch: SentenceBatch, users: Sequence[str], rows: np.ndarray, seed: int
) -> np.ndarray:
    owners = batch.users[rows]
    keys = np.empty(len(rows), dtype=np.uint64)
    edges = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))
    for first, last in pairwise(edges.tolist()):
        ordinals = batch.ordinals[rows[first:last]]
        keys[first:last] = split_order(seed, users[int(owners[first])], ordinals)
    return np.lexsort((keys, owners))
