"""Overlap between the training and the measured text of a split: threads, titles and labels.

Where a sentence that is measured has its title and its label in training text, a model is asked
what it was trained on. Near-duplicates are what is left of that where whole threads are held out: a
question that somebody asked again in nearly the same words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np

from fedpriv.datasets.stackexchange.tag_view import TagView

NEAR = (0.8, 0.6)
"""Jaccard similarities of two titles' sets of words from which they are near-duplicates."""

_ROUNDING = 1e-9  # of a similarity times a number of words


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Amount of text: users with any, sentences, threads, and tokens of sentences and titles."""

    users: int
    sentences: int
    threads: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The share of measured sentences, 0 to 1, of which something is in training text.

    Attributes:
        same_user: in the training text of the user who wrote the sentence.
        anyone: in that of any rostered user.
    """

    same_user: float
    anyone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Overlap between rostered users' measured text and their training text.

    Attributes:
        split: the split's name.
        training: rostered users' text for training.
        measured: rostered users' text that is measured.
        public: public users' training text, in threads that a public user asked.
        users_without_training: rostered users with nothing to train on.
        measured_without_training: those of them who have text that is measured.
        thread: sentences whose thread is in training text.
        title: sentences whose title is, be it another thread's; None where titles were not kept.
        label_and_title: sentences whose title is, with the same label; likewise.
        near: by Jaccard similarity, the share of measured threads whose title has one so similar,
            or the same, among titles of training text; None where titles were not kept.
    """

    split: str
    training: Size
    measured: Size
    public: Size
    users_without_training: int
    measured_without_training: int
    thread: Shared
    title: Shared | None
    label_and_title: Shared | None
    near: dict[float, float] | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        values = asdict(self)
        if self.near is not None:
            values["near"] = {str(similarity): share for similarity, share in self.near.items()}
        return values


def measure_overlap(view: TagView, titles: Sequence[str] | None) -> Overlap:
    """Measure the overlap of the sides of a view.

    Args:
        view: a roster seen through a split.
        titles: every thread's title, its words apart by spaces, "" for none; by thread number.

    Raises:
        ValueError: the corpus does not know its threads.
    """
    trained = _Side.of(view, view.roster, "train")
    measured = _Side.of(view, view.roster, view.split.measured_on)
    public = _Side.of(view, view.public_users, "train", view.public_rows("train"))
    title = label_and_title = near = None
    if titles is not None:
        numbers = _numbers(titles)
        pairs = [(numbers[s.threads], s.labels, s.users) for s in (measured, trained)]
        title = _shared(*((found, users) for found, _, users in pairs))
        label_and_title = _shared(
            *(
                (np.where(found < 0, -1, found * len(view.tags) + labels), users)
                for found, labels, users in pairs
            )
        )
        near = find_near_duplicates(
            [titles[int(number)] for number in np.unique(measured.threads)],
            [titles[int(number)] for number in np.unique(trained.threads)],
        )
    without = set(range(len(view.roster))) - set(trained.users.tolist())
    return Overlap(
        split=view.split.name,
        training=trained.size(),
        measured=measured.size(),
        public=public.size(),
        users_without_training=len(without),
        measured_without_training=len(without & set(measured.users.tolist())),
        thread=_shared((measured.threads, measured.users), (trained.threads, trained.users)),
        title=title,
        label_and_title=label_and_title,
        near=near,
    )


def find_near_duplicates(
    measured: Iterable[str], trained: Iterable[str], similarities: Sequence[float] = NEAR
) -> dict[float, float]:
    """Return the share of measured titles that have one so similar among those of training.

    The similarity is Jaccard's of their sets of words: words in both over words in either; signs
    are no words, and a title without words is similar to none.

    >>> find_near_duplicates(["how to sue ?", "a name"], ["how to sue", "the name"], [1.0, 0.3])
    {1.0: 0.5, 0.3: 1.0}
    """
    asked = [_words(title) for title in measured]
    known = sorted({_words(title) for title in trained} - {frozenset()}, key=sorted)
    uses = Counter(word for words in (*asked, *known) for word in words)
    least = min(similarities)

    def rare(words: frozenset[str]) -> list[str]:
        # Two sets as similar as that share one of so many of the rarest words of each: what is
        # left out of either is less than what they must have in common.
        ordered = sorted(words, key=lambda word: (uses[word], word))
        return ordered[: len(words) - ceil(least * len(words) - _ROUNDING) + 1]

    index: dict[str, list[frozenset[str]]] = {}
    for words in known:
        for word in rare(words):
            index.setdefault(word, []).append(words)
    best: dict[frozenset[str], float] = {}
    for words in set(asked):
        found = {other for word in rare(words) for other in index.get(word, ())}
        best[words] = max((len(words & o) / len(words | o) for o in found), default=0.0)
    return {
        similarity: sum(best[words] >= similarity for words in asked) / max(len(asked), 1)
        for similarity in similarities
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Side:
    """One side's examples: int64 columns, `users` as positions in the list asked for."""

    users: np.ndarray
    threads: np.ndarray
    labels: np.ndarray
    tokens: int

    @classmethod
    def of(
        cls, view: TagView, users: Sequence[str], subset: str, only: np.ndarray | None = None
    ) -> _Side:
        rows = view.all_rows(users, subset)
        owners = np.repeat(
            np.arange(len(users)), [view.num_examples(user, subset) for user in users]
        )
        if only is not None:
            kept = np.isin(rows, only)
            rows, owners = rows[kept], owners[kept]
        return cls(
            users=owners,
            threads=view.threads[rows].astype(np.int64),
            labels=view.columns.labels[rows].astype(np.int64),
            tokens=int(view.columns.num_tokens[rows].sum()),
        )

    def size(self) -> Size:
        return Size(
            users=len(np.unique(self.users)),
            sentences=len(self.users),
            threads=len(np.unique(self.threads)),
            tokens=self.tokens,
        )


def _numbers(titles: Sequence[str]) -> np.ndarray:
    """Return a number for every thread's title, the same for the same one; -1 for none."""
    known: dict[str, int] = {}
    numbers = (known.setdefault(title, len(known)) if title else -1 for title in titles)
    return np.fromiter(numbers, np.int64, len(titles))


def _shared(
    measured: tuple[np.ndarray, np.ndarray], trained: tuple[np.ndarray, np.ndarray]
) -> Shared:
    """Return how many measured keys are in training; each side is (keys, users), -1 for no key."""
    keys, users = measured
    known, owners = (column[trained[0] >= 0] for column in trained)
    size = int(max(keys.max(initial=0), known.max(initial=0))) + 1
    has = keys >= 0
    number = max(len(keys), 1)
    same = has & np.isin(users * size + keys, owners * size + known)
    return Shared(
        same_user=int(np.count_nonzero(same)) / number,
        anyone=int(np.count_nonzero(has & np.isin(keys, known))) / number,
    )


def _words(title: str) -> frozenset[str]:
    return frozenset(word for word in title.split() if any(map(str.isalnum, word)))
