"""The words and tags of a roster: chosen and counted by public users, or published by others.

Counting looks at users outside the roster only, and for words only at text those users wrote
themselves (their sentences and their own titles), because an answer carries a title that a
rostered user may have written. Tags are counted as the posts carry them. A split that holds out
threads lets neither look at those, nor at threads that no public user asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.datasets.stackexchange.sentence_store import SentenceStore
from fedpriv.datasets.stackexchange.splits import Division

PUBLIC = "public-users"
PRIVATE = "private"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RosterVocabulary:
    """The V words and G tags of a roster, with what public users' text says about them.

    Attributes:
        words: V words; those used by most public users first, ties in sorted order (or, with
            published counts, highest published count first).
        tags: G tags, ordered in the same way; this order decides labels.
        word_numbers: int32 (V,), the words' numbers in the corpus, -1 for one it never uses.
        tag_numbers: int32 (G,), likewise.
        word_counts: int64 (V,), occurrences in public users' own text (or the published counts).
        word_users: int64 (V,), public users whose own text uses the word.
        word_sentences: int64 (V,), public sentences whose own text contains it.
        tag_users: int64 (G,), public users with a post that carries the tag.
        num_sentences: public sentences counted.
        source: "public-users", or "private" with published counts, which include rostered users.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    word_numbers: np.ndarray
    tag_numbers: np.ndarray
    word_counts: np.ndarray
    word_users: np.ndarray
    word_sentences: np.ndarray
    tag_users: np.ndarray
    num_sentences: int
    source: str


def build_vocabulary(
    store: SentenceStore,
    public_users: Sequence[str],
    *,
    manifest: Mapping[str, Any],
    division: Division,
    published: Mapping[str, Mapping[str, int]] | None = None,
) -> RosterVocabulary:
    """Choose and count the words and tags of a roster.

    Args:
        store: the corpus' sentences.
        public_users: the users outside the roster; no other sentences are read.
        manifest: the corpus's, with its numbers of distinct words and tags, and the sizes of the
            vocabulary and of the tag list, which are less where public users use fewer.
        division: says which of their sentences may be counted.
        published: `{"words": counts, "tags": counts}` published with the data; they replace
            the choice made by public users.

    Raises:
        ValueError: no public user, or public users without words or tags, and nothing published.
    """
    totals, max_words, max_tags = (manifest[key] for key in ("totals", "max_words", "max_tags"))
    word_counts, word_users, word_sentences = np.zeros((3, totals["words"]), np.int64)
    tag_users = np.zeros(totals["tags"], np.int64)
    num_sentences = 0
    for batch in store.batches(public_users):
        counted = division.counted(batch)
        own = (batch.own_counts > 0) & counted[batch.word_rows]
        tagged = counted[batch.tag_rows]
        chosen = batch.words[own]
        np.add.at(word_counts, chosen, batch.own_counts[own].astype(np.int64))
        np.add.at(word_sentences, chosen, 1)
        _add_users(word_users, batch.users[batch.word_rows[own]], chosen)
        _add_users(tag_users, batch.users[batch.tag_rows[tagged]], batch.tags[tagged])
        num_sentences += int(np.count_nonzero(counted))
    if published:
        kept = most_counted(published["words"], max_words)
        words, tags = tuple(kept), tuple(most_counted(published["tags"], max_tags))
        word_numbers, tag_numbers = _numbers(store, "words", words), _numbers(store, "tags", tags)
        counts = np.array(list(kept.values()), dtype=np.int64)
    else:
        word_numbers = _most_used(word_users, max_words)
        tag_numbers = _most_used(tag_users, max_tags)
        words, tags = store.names("words", word_numbers), store.names("tags", tag_numbers)
        counts = word_counts[word_numbers]
    if not words or not tags:
        raise ValueError(
            f"the {len(public_users)} users outside the roster give {len(words)} words and "
            f"{len(tags)} tags {division.where}: leave more users outside it, import with "
            "published counts, or split by-sentence"
        )
    return RosterVocabulary(
        words=words,
        tags=tags,
        word_numbers=word_numbers,
        tag_numbers=tag_numbers,
        word_counts=counts,
        word_users=_known(word_users, word_numbers),
        word_sentences=_known(word_sentences, word_numbers),
        tag_users=_known(tag_users, tag_numbers),
        num_sentences=num_sentences,
        source=PRIVATE if published else PUBLIC,
    )


def most_counted(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Return the `size` highest counts, highest first, ties in the order given (as TFF does).

    >>> most_counted({"a": 1, "c": 5, "b": 5}, 2)
    {'c': 5, 'b': 5}
    """
    return dict(sorted(counts.items(), key=lambda pair: -pair[1])[:size])


def _add_users(totals: np.ndarray, users: np.ndarray, items: np.ndarray) -> None:
    """Add, for every item, the number of different users that have it."""
    pairs = np.unique(users.astype(np.int64) * len(totals) + items)
    np.add.at(totals, pairs % max(len(totals), 1), 1)


def _most_used(users: np.ndarray, size: int) -> np.ndarray:
    # Numbers are in sorted order of the strings, so a stable sort breaks ties by string.
    order = np.argsort(-users, kind="stable")[:size]
    return order[users[order] > 0].astype(np.int32)


def _numbers(store: SentenceStore, kind: str, names: tuple[str, ...]) -> np.ndarray:
    found = store.numbers(kind, names)
    return np.array([found.get(name, -1) for name in names], dtype=np.int32)


def _known(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    if not len(values):
        return np.zeros(len(numbers), dtype=np.int64)
    return np.where(numbers < 0, 0, values[numbers])
