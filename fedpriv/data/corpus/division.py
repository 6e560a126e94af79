"""Dividing a corpus's sentences as a `Split` says, and what of them counts as public."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from fedpriv.data.corpus.splits import NUM_FOLDS, Split
from fedpriv.data.owners.kept import Kept
from fedpriv.data.sentences.store import OWN, SentenceBatch, SentenceStore

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
    if not store.knows_threads:
        raise ValueError(
            f"this corpus was prepared before threads were kept, so it cannot be split "
            f"{split.kind}; import it again, or choose split by-sentence"
        )
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
