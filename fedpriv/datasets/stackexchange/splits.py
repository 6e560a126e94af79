"""Splits: which of a corpus's examples are for training, for validation and for testing.

An example is a sentence with its question's title, and its label comes from the question's tags.
Where a user's sentences are divided at random, those of one post, with one title and one label,
stand on both sides, and what is measured is memory. So the default holds out whole *threads*, a
question with all its answers: whoever wrote a sentence of a held-out thread, no training set has
it, and neither has what is counted for words, tags and side information.

What counts as *public* is narrower, too: an answer carries its asker's title and tags, so only
sentences of public users in threads that a public user asked are no other user's. Words, tags,
their order, side information and the default public start are made of those alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

from fedpriv.datasets.stackexchange.ownership import Kept
from fedpriv.datasets.stackexchange.sentence_store import OWN, SentenceBatch, SentenceStore

Measured = Literal["test", "validation"]
Kind = Literal["by-thread", "by-sentence", "by-time", "by-user", "as-published"]
KINDS: tuple[Kind, ...] = ("by-thread", "by-sentence", "by-time", "by-user", "as-published")
_FOLDED = ("by-thread", "by-user", "as-published")
Owners = Literal["account", "all"]
"""Who owns an example: the account that wrote its sentence, or also who asked the question."""
PublicText = Literal["public-threads", "all-posts"]
PUBLIC_TEXT: tuple[PublicText, ...] = ("public-threads", "all-posts")
"""What of public users' posts: in threads that a public user asked, or all of them."""

NUM_FOLDS = 5

_SAID = {
    "by-thread": (
        "whole threads held out: a fifth of the questions, by a hash (fold {fold} of 0 to 4), is "
        "in no training set"
    ),
    "by-sentence": (
        "by sentence, as the papers did: a fifth of each user's sentences for testing, whose "
        "threads, titles and labels are in training too"
    ),
    "by-time": "by time: the last fifth of the threads is in no training set",
    "by-user": (
        "by user and thread: a fifth of the users (fold {fold} of 0 to 4) train nothing, and are "
        "tested on in threads held out"
    ),
    "as-published": (
        "by user, as published with the data, and by thread (fold {fold} of 0 to 4): users whom "
        "the source holds out train nothing, and are tested on in threads held out"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How examples are divided.

    Attributes:
        kind: "by-thread", the default; "by-sentence", as the papers did; "by-time", of threads;
            "by-user", of users and threads; "as-published", of users that the data's source holds
            out, as TFF does, and threads.
        fold: which fifth is for testing, 0 to 4; "by-sentence" and "by-time" have none.
        measured_on: "test" trains on every other thread. "validation" is for choosing settings: a
            fifth of the other threads is in no training set and no count either, and is what is
            measured, so that nothing is chosen by looking at the test threads.
        public_users: how many users outside the roster count as public, the first by a hash of
            their ids, so that fewer are among more; the others are in nothing. None for all.
        owners: "account", or "all", so that blanking a person's words wherever they stand changes
            little: training examples of rostered users that another rostered user asked are
            dropped. What is held out stays as it is.
        examples_per_owner: with all owners, drop nothing for having two, but leave no owner more
            training examples than that. None drops them.
        selecting: rostered users train on no example in a thread that a public user asked, so that
            public users' examples there can judge what was trained (`fedpriv.tasks.tag_prediction`).

    Raises:
        ValueError: unknown kind, a fold that there is not, validation by sentence, fewer than
            no public users, all owners by sentence, a bound without them, or selecting by sentence.
    """

    kind: Kind = "by-thread"
    fold: int = 0
    measured_on: Measured = "test"
    public_users: int | None = None
    owners: Owners = "account"
    examples_per_owner: int | None = None
    selecting: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"split {self.kind!r} is unknown; choose one of {', '.join(KINDS)}")
        if not 0 <= self.fold < NUM_FOLDS:
            raise ValueError(f"fold {self.fold}: there are {NUM_FOLDS}; give 0 to {NUM_FOLDS - 1}")
        if self.fold and self.kind not in _FOLDED:
            raise ValueError(f"split {self.kind!r} has no folds; leave fold {self.fold} out")
        if self.measured_on not in ("test", "validation"):
            raise ValueError(f"measured-on {self.measured_on!r}: choose 'test' or 'validation'")
        if self.measured_on == "validation" and self.kind == "by-sentence":
            raise ValueError("split by-sentence has no validation threads; measure on test")
        if self.public_users is not None and self.public_users < 0:
            raise ValueError(f"public-users {self.public_users}: give 0 or more, or none for all")
        if self.owners not in ("account", "all"):
            raise ValueError(f"owners {self.owners!r}: choose 'account' or 'all'")
        if self.owners == "all" and self.kind == "by-sentence":
            raise ValueError(
                "owners all does not go with split by-sentence: what others' tags leave of a "
                "user's sentences would decide which of them train; hold threads out"
            )
        if self.selecting and self.kind == "by-sentence":
            raise ValueError(
                "split by-sentence shares threads between training and public examples, so they "
                "can select no model; set select last, or hold threads out"
            )
        most = self.examples_per_owner
        if most is not None and (self.owners != "all" or most < 1):
            raise ValueError(
                f"examples-per-owner {most}: give at least 1, with owners all, or leave it out"
            )

    @property
    def name(self) -> str:
        """The split's name in files."""
        name = f"{self.kind}-{self.fold}" if self.kind in _FOLDED else self.kind
        if self.public_users is not None:
            name = f"{name}-public-{self.public_users}"
        if self.owners == "all":
            most = self.examples_per_owner
            name = f"{name}-owners-{'all' if most is None else most}"
        if self.selecting:
            name = f"{name}-selecting"
        return name if self.measured_on == "test" else f"{name}-validation"

    @property
    def shares_threads(self) -> bool:
        """Whether training and test share threads, titles and labels."""
        return self.kind == "by-sentence"

    def describe(self) -> str:
        """Return a sentence about the split for reports."""
        said = _SAID[self.kind].format(fold=self.fold)
        if self.public_users is not None:
            said = f"{said}; {self.public_users} of the users outside the roster count as public"
        if self.owners == "all" and self.examples_per_owner is None:
            said = f"{said}; training examples that another rostered user asked are dropped"
        if self.examples_per_owner is not None:
            said = f"{said}; at most {self.examples_per_owner} training examples an owner"
        if self.selecting:
            said = f"{said}; rostered users train on no thread that a public user asked"
        if self.measured_on == "test":
            return said
        return f"{said}; a fifth of the other threads held out too, and measured on"

    def choosing(self) -> Split:
        """Return the split that settings are chosen by."""
        return replace(self, measured_on="validation")


BY_THREAD = Split()
BY_SENTENCE = Split(kind="by-sentence")


TRAIN, VALIDATION, TEST, LEFT_OUT = 0, 1, 2, 3
"""What a sentence is for. Left out is what would stand on neither side."""

TRAIN_SHARE = 0.8


class Division(Protocol):
    """Divides the sentences of a corpus; made by `divided`."""

    @property
    def where(self) -> str:
        """Where public text is counted, for messages."""
        ...

    def counted(self, batch: SentenceBatch) -> np.ndarray:
        """Return which sentences of public users may be counted for words and tags, bool (S,)."""
        ...

    def subsets(
        self, batch: SentenceBatch, users: Sequence[str], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows ordered by user and subset, and the subset of each (int8).

        Args:
            batch: whole users.
            users: the users that `batch.users` are positions in.
            rows: int64, the sentences that make examples.
        """
        ...

    def asked_in_public(self, batch: SentenceBatch) -> np.ndarray:
        """Return which sentences stand in threads that a public user asked, bool (S,).

        That holds of public users' sentences: one in a user's own thread is taken to be such.
        """
        ...


def divided(
    split: Split,
    store: SentenceStore,
    roster: Iterable[str],
    public_users: Sequence[str],
    seed: int,
) -> Division:
    """Return what divides a corpus's sentences.

    Args:
        split: how.
        store: the sentences.
        roster: the rostered ids.
        public_users: all other users.
        seed: the corpus's own.

    Raises:
        ValueError: the corpus does not know its threads, no thread that a public user asked has a
            date, or the data's source holds no user of the roster out.
    """
    public = np.zeros(len(store.users), dtype=bool)
    public[[store.position(user) for user in public_users]] = True
    if split.kind == "by-sentence":
        return _BySentence(public=public, seed=seed)
    validation = split.measured_on == "validation"
    if split.kind == "by-time":
        cuts = _cuts(store, public_users, public, validation)
        return _ByTime(public=public, cuts=cuts)
    held = None
    if split.kind == "by-user":
        held = frozenset(user for user in roster if _fold(f"users {seed}", user) == split.fold)
    if split.kind == "as-published":
        held = store.held_users() & set(roster)
        if not held:
            raise ValueError(
                "this roster has no users that the data's source holds out, so it cannot be split "
                "as-published; import the corpus with --tff-split, or choose split by-user"
            )
    keys = store.thread_keys()
    parts = np.fromiter((thread_part(key, split.fold, seed) for key in keys), np.int8)
    if not validation:
        parts[parts == VALIDATION] = TRAIN
    trained = None if held is None else frozenset(roster) - held
    return _ByThread(public=public, parts=parts, held=held, trained=trained)


def of_users(batch: SentenceBatch, users: Sequence[str], chosen: frozenset[str]) -> np.ndarray:
    """Return which sentences of a batch some users wrote, bool (S,)."""
    numbers, inverse = np.unique(batch.users, return_inverse=True)
    return np.array([users[number] in chosen for number in numbers.tolist()], bool)[inverse]


def training(division: Division, batch: SentenceBatch, users: Sequence[str]) -> np.ndarray:
    """Return which sentences are for training, with a label or without, bool (S,)."""
    rows, subsets = division.subsets(batch, users, np.arange(len(batch)))
    found = np.zeros(len(batch), dtype=bool)
    found[rows[subsets == TRAIN]] = True
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LessTraining:
    """A division without some training examples of rostered users.

    What is held out stays, and so does all that public users wrote.

    Attributes:
        whole: What is divided.
        roster: The rostered ids.
        left_out: From whole users' sentences, and the users they are of, to those left out.
    """

    whole: Division
    roster: frozenset[str]
    left_out: Callable[[SentenceBatch, Sequence[str]], np.ndarray]

    @property
    def where(self) -> str:
        return self.whole.where

    def counted(self, batch: SentenceBatch) -> np.ndarray:
        return self.whole.counted(batch)

    def asked_in_public(self, batch: SentenceBatch) -> np.ndarray:
        return self.whole.asked_in_public(batch)

    def subsets(
        self, batch: SentenceBatch, users: Sequence[str], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, subsets = self.whole.subsets(batch, users, rows)
        left_out = of_users(batch, users, self.roster) & self.left_out(batch, users)
        stays = ~((subsets == TRAIN) & left_out[rows])
        return rows[stays], subsets[stays]


def without_public_threads(
    whole: Division, store: SentenceStore, roster: Iterable[str], public_users: Sequence[str]
) -> Division:
    """Return a division in which rostered users train on no thread that a public user asked.

    It looks at threads and at who asked them; what other rostered users wrote changes nothing.
    """
    threads = np.zeros(sum(1 for _ in store.thread_keys()), bool)
    for batch in store.batches(public_users):
        threads[batch.threads[whole.asked_in_public(batch)]] = True
    return _LessTraining(
        whole=whole,
        roster=frozenset(roster),
        left_out=lambda batch, users: threads[batch.threads],
    )


def with_kept(whole: Division, kept: Kept, roster: Iterable[str]) -> Division:
    """Return a division in which rostered users train on the examples that are kept."""
    return _LessTraining(
        whole=whole,
        roster=frozenset(roster),
        left_out=lambda batch, users: ~kept.of(batch, users),
    )


def thread_part(thread: str, fold: int, seed: int) -> int:
    """Return what a thread is for; it looks at its key and at nothing else.

    Returns:
        TEST for a fifth, VALIDATION for a fifth of the others, TRAIN for the rest.
    """
    if _fold(f"threads {seed}", thread) == fold:
        return TEST
    return VALIDATION if _fold(f"validation {seed}", thread) == 0 else TRAIN


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


def num_train(examples: np.ndarray) -> np.ndarray:
    """Return how many of a user's examples are for training: 80 %, at least one if any.

    >>> num_train(np.array([0, 1, 2, 3, 4, 5, 10])).tolist()
    [0, 1, 2, 2, 3, 4, 8]
    """
    return np.rint(TRAIN_SHARE * examples).astype(np.int64)


def _asked_by(batch: SentenceBatch, public: np.ndarray) -> np.ndarray:
    known = batch.askers >= 0
    return (batch.askers == OWN) | (known & public[np.maximum(batch.askers, 0)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _BySentence:
    """Each user's sentences by a hash of the user and the ordinal; every user has one to train on.

    It looks at no other user.
    """

    public: np.ndarray
    seed: int

    @property
    def where(self) -> str:
        return "in their posts"

    def counted(self, batch: SentenceBatch) -> np.ndarray:
        return np.ones(len(batch), dtype=bool)

    def asked_in_public(self, batch: SentenceBatch) -> np.ndarray:
        return _asked_by(batch, self.public)

    def subsets(
        self, batch: SentenceBatch, users: Sequence[str], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        owners = batch.users[rows]
        keys = np.empty(len(rows), dtype=np.uint64)
        edges = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))
        lengths = np.diff(edges)
        for first, last in pairwise(edges.tolist()):
            ordinals = batch.ordinals[rows[first:last]]
            keys[first:last] = split_order(self.seed, users[int(owners[first])], ordinals)
        place = np.arange(len(rows)) - np.repeat(edges[:-1], lengths)
        trained = place < np.repeat(num_train(lengths), lengths)
        return rows[np.lexsort((keys, owners))], np.where(trained, TRAIN, TEST).astype(np.int8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ByThread:
    """Whole threads by a hash of their keys.

    Where users are held out, `held` are those, who train nothing, and `trained` the others on the
    roster, who are not tested on. Public users are neither: what is released is measured on them.
    """

    public: np.ndarray
    parts: np.ndarray
    held: frozenset[str] | None
    trained: frozenset[str] | None

    @property
    def where(self) -> str:
        return "in the training threads that they asked"

    def counted(self, batch: SentenceBatch) -> np.ndarray:
        return (self.parts[batch.threads] == TRAIN) & self.asked_in_public(batch)

    def asked_in_public(self, batch: SentenceBatch) -> np.ndarray:
        return _asked_by(batch, self.public)

    def subsets(
        self, batch: SentenceBatch, users: Sequence[str], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        found = self.parts[batch.threads[rows]]
        if self.held is not None and self.trained is not None:
            names = [users[owner] for owner in batch.users[rows].tolist()]
            no_training = np.array([name in self.held for name in names], dtype=bool)
            no_testing = np.array([name in self.trained for name in names], dtype=bool)
            left_out = np.where(found == TEST, no_testing, no_training)
            found = np.where(left_out, LEFT_OUT, found).astype(np.int8)
        return _ordered(batch, rows, found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ByTime:
    """Whole threads by the day when they were begun."""

    public: np.ndarray
    cuts: tuple[int, int]

    @property
    def where(self) -> str:
        return "in the training threads that they asked"

    def counted(self, batch: SentenceBatch) -> np.ndarray:
        return (self._parts(batch) == TRAIN) & self.asked_in_public(batch)

    def asked_in_public(self, batch: SentenceBatch) -> np.ndarray:
        return _asked_by(batch, self.public)

    def subsets(
        self, batch: SentenceBatch, users: Sequence[str], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return _ordered(batch, rows, self._parts(batch)[rows])

    def _parts(self, batch: SentenceBatch) -> np.ndarray:
        found = np.searchsorted(np.array(self.cuts), batch.days, side="right").astype(np.int8)
        return np.where(batch.days < 0, LEFT_OUT, found).astype(np.int8)


def _ordered(
    batch: SentenceBatch, rows: np.ndarray, subsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    kept = subsets != LEFT_OUT
    rows, subsets = rows[kept], subsets[kept]
    order = np.lexsort((batch.ordinals[rows], subsets, batch.users[rows]))
    return rows[order], subsets[order]


def _cuts(
    store: SentenceStore, public_users: Sequence[str], public: np.ndarray, validation: bool
) -> tuple[int, int]:
    """Return the days from which threads are for validation and for testing.

    They are quantiles of the threads that public users asked, so no rostered user moves them.
    """
    days: dict[int, int] = {}
    for batch in store.batches(public_users):
        asked = _asked_by(batch, public) & (batch.days >= 0)
        days.update(zip(batch.threads[asked].tolist(), batch.days[asked].tolist(), strict=True))
    if not days:
        raise ValueError(
            "this corpus has no dates, so it cannot be split by-time; choose split by-thread"
        )
    ordered = sorted(days.values())
    number = len(ordered)
    last = ordered[min(int(TRAIN_SHARE * number), number - 1)]
    return (ordered[int(TRAIN_SHARE**2 * number)] if validation else last), last


def _fold(what: str, key: str) -> int:
    digest = hashlib.sha256(f"fedpriv fold of {what}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") * NUM_FOLDS >> 64
