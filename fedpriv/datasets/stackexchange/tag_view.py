"""Tag prediction on a corpus: sparse word counts and tags of each sentence, by user.

`write_tag_view` writes one roster's view from the sentences of a corpus, `open_view` maps it.
Files in a view's folder, besides those of every view (`roster_view`):

    word_users, word_sentences, tag_users      int64, see `vocabulary.RosterVocabulary`
    word_offsets, words, counts, num_tokens, labels, tag_offsets, tags    see `TagExamples`
    sentences    int64          each example's row in the corpus's sentences
    titles       int64          of a part of a corpus: each example's row in its titles
    listed       int64          of views that bound an owner's examples: each listed example's
                                number here, -1 for one without a label
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from fedpriv.datasets.arrays import array_writers, offsets, open_array, ranges
from fedpriv.datasets.stackexchange.roster_view import (
    RosterView,
    save_user_rows,
)
from fedpriv.datasets.stackexchange.sentence_store import OWN, SentenceStore
from fedpriv.datasets.stackexchange.splits import (
    PUBLIC_TEXT,
    SUBSETS,
    TEST,
    TRAIN,
    VALIDATION,
    Division,
    PublicText,
)
from fedpriv.datasets.stackexchange.vocabulary import RosterVocabulary
from fedpriv.hashes import Progress

if TYPE_CHECKING:
    from scipy import sparse


# SciPy is slow to import: what builds a matrix loads it, `fedpriv --help` does not.

INPUTS = ("tff", "unit-norm")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TagExamples:
    """n examples in compressed sparse rows; arrays may be read-only views of a file.

    Attributes:
        indptr: int64 (n + 1,), row starts in `indices`, from 0.
        indices: int32 (nnz,), word numbers, strictly increasing within a row.
        counts: unsigned integer (nnz,), occurrences of the word in sentence and title; float32
            values of `with_features`.
        num_tokens: int32 (n,), all tokens of sentence and title, out-of-vocabulary included.
        labels: int32 (n,), the post's tag that comes first in the tag order.
        tag_indptr: int64 (n + 1,), row starts in `tag_indices`, from 0.
        tag_indices: int32, the post's tags that are in the tag list, strictly increasing.
        num_words: size of the vocabulary, with the rows of pairs where there are any.
        num_tags: size of the tag list.
        texts: int64 (n, 2), where `Corpus.texts` has the sentence and the title, -1 where a part
            of a corpus keeps neither; None where no example's is known.
    """

    indptr: np.ndarray
    indices: np.ndarray
    counts: np.ndarray
    num_tokens: np.ndarray
    labels: np.ndarray
    tag_indptr: np.ndarray
    tag_indices: np.ndarray
    num_words: int
    num_tags: int
    texts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, end: int) -> TagExamples:
        """Return a run of examples, as slices."""
        words, tags = self.indptr[start : end + 1], self.tag_indptr[start : end + 1]
        return TagExamples(
            indptr=words - words[0],
            indices=self.indices[words[0] : words[-1]],
            counts=self.counts[words[0] : words[-1]],
            num_tokens=self.num_tokens[start:end],
            labels=self.labels[start:end],
            tag_indptr=tags - tags[0],
            tag_indices=self.tag_indices[tags[0] : tags[-1]],
            num_words=self.num_words,
            num_tags=self.num_tags,
            texts=None if self.texts is None else self.texts[start:end],
        )

    def take(self, rows: np.ndarray) -> TagExamples:
        """Return the examples at the given row numbers, in that order (a copy)."""
        rows = np.asarray(rows, dtype=np.int64)
        indptr, words = row_positions(self.indptr, rows)
        tag_indptr, tags = row_positions(self.tag_indptr, rows)
        return TagExamples(
            indptr=indptr,
            indices=self.indices[words],
            counts=self.counts[words],
            num_tokens=self.num_tokens[rows],
            labels=self.labels[rows],
            tag_indptr=tag_indptr,
            tag_indices=self.tag_indices[tags],
            num_words=self.num_words,
            num_tags=self.num_tags,
            texts=None if self.texts is None else self.texts[rows],
        )

    def with_features(self, features: Features | None, rows: np.ndarray) -> TagExamples:
        """Return the examples at the given row numbers with other inputs (a copy).

        Their `counts` are float32 and to be scaled to unit norm. Only these rows are read. Without
        features it is `take`.

        Raises:
            ValueError: a word is outside the vocabulary.
        """
        chosen = self.take(rows)
        if features is None:
            return chosen
        indptr, indices, values = features.inputs(chosen)
        return replace(
            chosen, indptr=indptr, indices=indices, counts=values, num_words=features.num_rows
        )

    def features(self, inputs: str = "tff") -> sparse.csr_array:
        """Return the model's inputs, float32 (n, num_words).

        Args:
            inputs: "tff" is TensorFlow Federated's mean of one-hot words over the tokens that are
                in the vocabulary, so a row sums to 1 (TFF 0.87, value for value; versions before
                counted unknown tokens too); "unit-norm" scales every row to L2 norm 1. Rows
                without a known word stay zero.

        Raises:
            ValueError: unknown `inputs`.
        """
        from scipy import sparse

        return sparse.csr_array(
            (self.values(inputs), self.indices, self.indptr), shape=(len(self), self.num_words)
        )

    def values(self, inputs: str = "tff") -> np.ndarray:
        """Return the stored entries of `features`, float32 (nnz,), without building a matrix.

        Raises:
            ValueError: unknown `inputs`.
        """
        values = self.counts.astype(np.float32)
        lengths = np.diff(self.indptr)
        if inputs == "tff":
            sizes = _row_sums(values, lengths)
        elif inputs == "unit-norm":
            sizes = np.sqrt(_row_sums(np.square(values), lengths))
        else:
            raise ValueError(f"inputs {inputs!r} is unknown; choose one of {INPUTS}")
        return values / np.repeat(np.where(sizes > 0.0, sizes, np.float32(1.0)), lengths)


class Features(Protocol):
    """Map from examples to a model's inputs, each a function of its own example alone."""

    @property
    def num_rows(self) -> int:
        """Number of inputs of a model."""
        ...

    def inputs(self, examples: TagExamples, /) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return row starts int64, rows int32 and values float32, before rows get unit norm."""
        ...


@runtime_checkable
class DenseFeatures(Features, Protocol):
    """Features of which no row is blank, so that dense products serve them better."""

    def dense(self, examples: TagExamples, chosen: np.ndarray | None = None, /) -> np.ndarray:
        """Return inputs of some examples, or all, scaled to unit norm, float32 `(n, num_rows)`."""
        ...


def row_positions(indptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the new row starts, and where the entries of `rows` lie, for a gather.

    >>> starts, entries = row_positions(np.array([0, 2, 2, 5]), np.array([2, 0]))
    >>> starts.tolist(), entries.tolist()
    ([0, 3, 5], [2, 3, 4, 0, 1])
    """
    lengths = indptr[rows + 1] - indptr[rows]
    return offsets(lengths), ranges(indptr[rows], lengths)


def _row_sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows, weights=values, minlength=len(lengths)).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TagView(RosterView[TagExamples]):
    """Examples of tag prediction, memory-mapped: many processes share the same pages.

    Guarantee: `words`, `tags`, their order and every count come from users outside the roster
    (or from published counts, and `provenance` says so), so adding or removing the records of any
    rostered user changes none of them, nor another user's examples *as prepared*.

    Attributes:
        tags: the tag list (G), the tag used by most public users first; the order decides labels.
        word_users: int64 (V,), public users whose own text uses the word.
        word_sentences: int64 (V,), public sentences whose own text contains the word.
        num_public_examples: the number of public sentences the counts above were taken over.
        tag_users: int64 (G,), public users with a post that carries the tag.
    """

    tags: tuple[str, ...]
    word_users: np.ndarray
    word_sentences: np.ndarray
    num_public_examples: int
    tag_users: np.ndarray
    _listed: np.ndarray | None = None

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
                tags may be a rostered user's; "all-posts" keeps them.

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
        rows = self.all_rows(self.public_users, subset)
        if of == "all-posts":
            return rows
        return rows[self._public_threads[rows] > 0]


def open_view(directory: Path, fields: Mapping[str, Any], vocabulary: Mapping[str, Any]) -> TagView:
    """Open the files that `write_tag_view` wrote.

    Args:
        directory: the view's folder.
        fields: what every view has; of `roster_view.open_users`, as the vocabulary.
        vocabulary: its words and tags.

    Raises:
        ValueError: a file is missing or cut short.
    """

    def column(name: str) -> np.ndarray:
        return open_array(directory / f"{name}.npy")

    titles = column("titles") if (directory / "titles.npy").is_file() else fields["threads"]
    return TagView(
        **fields,
        tags=tuple(vocabulary["tags"]),
        word_users=column("word_users"),
        word_sentences=column("word_sentences"),
        num_public_examples=int(vocabulary["num_public_examples"]),
        tag_users=column("tag_users"),
        columns=TagExamples(
            indptr=column("word_offsets"),
            indices=column("words"),
            counts=column("counts"),
            num_tokens=column("num_tokens"),
            labels=column("labels"),
            tag_indptr=column("tag_offsets"),
            tag_indices=column("tags"),
            num_words=len(fields["words"]),
            num_tags=len(vocabulary["tags"]),
            texts=np.stack([column("sentences"), titles], axis=1),
        ),
        _listed=None if fields["split"].examples_per_owner is None else column("listed"),
    )


def write_tag_view(
    store: SentenceStore,
    directory: Path,
    *,
    roster: Sequence[str],
    public_users: Sequence[str],
    vocabulary: RosterVocabulary,
    totals: Mapping[str, int],
    division: Division,
    listed: np.ndarray | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the files of one view into an empty folder, and return what is counted of it.

    Args:
        store: the corpus' sentences.
        directory: where to write.
        roster: the rostered ids, in order.
        public_users: all other users of the corpus, sorted.
        vocabulary: the roster's words and tags.
        totals: of the corpus: distinct "words" and "tags", and "most_tokens_in_a_sentence", above
            which no word is counted in an example.
        division: says what each sentence is for.
        listed: rows of the store that training examples are listed of, if they are.
        progress: called with (sentences done, sentences).

    Returns:
        Facts for the view's manifest: numbers of examples in all and by subset (of public users
        those in threads that a public user asked), rostered users with none to train on, sentences
        left out (for want of a tag from the tag list, or because the split has no side for them),
        and shares of rostered users' examples that carry another account's title.
    """
    users = (*roster, *public_users)
    _write_vocabulary(directory, roster, public_users, vocabulary)
    word_ranks = _ranks(vocabulary.word_numbers, totals["words"])
    tag_ranks = _ranks(vocabulary.tag_numbers, totals["tags"])
    rostered = store.contains(roster)
    by_subset = np.zeros((3, len(users)), dtype=np.int64)
    in_public = np.zeros(3, dtype=np.int64)
    sentences = np.zeros(len(users), dtype=np.int64)
    foreign = by_roster = 0
    trained = [np.zeros((0, 2), np.int64)]
    dtypes = {
        "words": np.int32,
        "counts": np.min_scalar_type(totals["most_tokens_in_a_sentence"]),
        "num_tokens": np.int32,
        "labels": np.int32,
        "tags": np.int32,
        "threads": np.int32,
        "public_threads": np.uint8,
        "sentences": np.int64,
    }
    with array_writers(directory, dtypes, offsets=("word_offsets", "tag_offsets")) as files:
        for batch in store.batches(users):
            tag_offsets, tags, _ = _in_list(batch.tag_rows, tag_ranks[batch.tags], len(batch))
            word_offsets, words, counts = _in_list(
                batch.word_rows, word_ranks[batch.words], len(batch), batch.counts
            )
            labelled = np.flatnonzero(np.diff(tag_offsets))
            keep, subsets = division.subsets(batch, users, labelled)
            word_starts, word_entries = row_positions(word_offsets, keep)
            tag_starts, tag_entries = row_positions(tag_offsets, keep)
            asked = division.asked_in_public(batch)[keep]
            if listed is not None:
                at = np.flatnonzero(subsets == TRAIN)
                trained.append(
                    np.stack([batch.rows[keep[at]], files["labels"].length + at], axis=1)
                )
            files["word_offsets"].append_ends(np.diff(word_starts))
            files["words"].append(words[word_entries])
            files["counts"].append(counts[word_entries])
            files["num_tokens"].append(batch.num_tokens[keep])
            # Tags increase within a row: the first is the label.
            files["labels"].append(tags[tag_offsets[keep]])
            files["tag_offsets"].append_ends(np.diff(tag_starts))
            files["tags"].append(tags[tag_entries])
            files["threads"].append(batch.threads[keep])
            files["public_threads"].append(asked.astype(np.uint8))
            files["sentences"].append(batch.rows[keep])
            owners, title_users = batch.users[keep], batch.title_users[keep]
            for subset in (TRAIN, VALIDATION, TEST):
                here = subsets == subset
                by_subset[subset] += np.bincount(owners[here], minlength=len(users))
                in_public[subset] += np.count_nonzero(here & asked & (owners >= len(roster)))
            sentences += np.bincount(batch.users, minlength=len(users))
            titles = title_users[(owners < len(roster)) & (title_users != OWN)]
            foreign += len(titles)
            by_roster += int(np.count_nonzero(rostered[titles[titles >= 0]]))
            if progress is not None:
                progress(int(sentences.sum()), int(store.offsets[-1]))
    if listed is not None:
        np.save(directory / "listed.npy", _numbers(listed, np.concatenate(trained)))
    save_user_rows(directory, by_subset)
    examples = by_subset.sum(axis=0)
    inside, outside = slice(None, len(roster)), slice(len(roster), None)
    missing, of_roster = sentences - examples, by_subset[:, inside]
    num_examples = int(examples[inside].sum())
    return {
        "num_examples": num_examples,
        "num_public_examples": int(examples[outside].sum()),
        "num_public_sentences": vocabulary.num_sentences,
        "examples_by_subset": dict(zip(SUBSETS, of_roster.sum(axis=1).tolist(), strict=True)),
        "examples_of_public_threads": dict(zip(SUBSETS, in_public.tolist(), strict=True)),
        "users_without_training_examples": int(np.count_nonzero(of_roster[TRAIN] == 0)),
        "sentences_without_label": {
            "rostered": int(missing[inside].sum()),
            "public": int(missing[outside].sum()),
        },
        "foreign_titles": {
            "share": foreign / max(num_examples, 1),
            "share_by_rostered_users": by_roster / max(num_examples, 1),
        },
    }


def _numbers(listed: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Return the number of each listed row's example, -1 where it has none."""
    trained = trained[np.argsort(trained[:, 0])]
    places = np.searchsorted(trained[:, 0], listed)
    within = np.minimum(places, max(len(trained) - 1, 0))
    if not len(trained):
        return np.full(len(listed), -1, np.int64)
    return np.where(trained[within, 0] == listed, trained[within, 1], -1)


def _write_vocabulary(
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


def _in_list(
    rows: np.ndarray, ranks: np.ndarray, num_rows: int, values: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Drop entries that are not in the list, sort each row by rank; return offsets and columns."""
    inside = ranks >= 0
    rows, ranks = rows[inside], ranks[inside]
    order = np.argsort(rows * (int(ranks.max(initial=0)) + 1) + ranks)
    counts = ranks if values is None else values[inside]
    return offsets(np.bincount(rows, minlength=num_rows)), ranks[order], counts[order]
