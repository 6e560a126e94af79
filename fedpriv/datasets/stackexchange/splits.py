"""Splits: which of a corpus's examples are for training, for validation and for testing.

An example is a sentence with its question's title, and its label comes from the question's tags.
Where a user's sentences are divided at random, those of one post, with one title and one label,
stand on both sides, and what is measured is memory. So the default holds out whole *threads*, a
question with all its answers: no training set has a sentence of a held-out thread, no matter who
wrote it, and neither has what is counted for words, tags and side information.

What counts as *public* is narrower, too: an answer carries its asker's title and tags, so only
sentences of public users in threads that a public user asked are no other user's. Words, tags,
their order, side information and the default public start are made of those alone.

Examples may have several owners: the account that wrote the sentence, and the one that asked the
question, whose title and tags an answer carries. Who wrote which sentence and who asked which
thread is the *graph*: fixed, and public by assumption, as in fixed-graph multi-owner privacy
(arXiv:2503.03622). Neighbours blank the examples of one owner; the graph stays, and so does who is
on the roster. What bounds an owner's examples (`keep_bounded`) looks at the graph and at ids, never
at a word, a tag or a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from fedpriv.datasets.stackexchange.rosters import hash64, ordinal_hashes
from fedpriv.datasets.stackexchange.sentence_store import (
    ELSEWHERE,
    OWN,
    SentenceBatch,
    SentenceStore,
)

Measured = Literal["test", "validation"]
Kind = Literal["by-thread", "by-sentence", "by-time", "by-user", "as-published"]
KINDS: tuple[Kind, ...] = ("by-thread", "by-sentence", "by-time", "by-user", "as-published")
_FOLDED = ("by-thread", "by-user", "as-published")
Owners = Literal["account", "all"]
"""Owners of an example: the account that wrote its sentence, or also the one that asked."""
PublicText = Literal["public-threads", "all-posts"]
PUBLIC_TEXT: tuple[PublicText, ...] = ("public-threads", "all-posts")
"""Part of public users' posts: in threads that a public user asked, or all of them."""

NUM_FOLDS = 5

_DESCRIPTIONS = {
    "by-thread": (
        "whole threads held out: a fifth of the questions, by a hash (fold {fold} of 0 to 4), is "
        "in no training set"
    ),
    "by-sentence": (
        "by sentence, as AdaDPS's code did: a fifth of each user's sentences for testing, whose "
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
    """Rule that divides examples.

    Attributes:
        kind: "by-thread", the default; "by-sentence", as AdaDPS's code did; "by-time", of threads;
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
            public users' examples there can judge what was trained (`TagPrediction.public_folds`).

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
        text = _DESCRIPTIONS[self.kind].format(fold=self.fold)
        if self.public_users is not None:
            text = f"{text}; {self.public_users} of the users outside the roster count as public"
        if self.owners == "all" and self.examples_per_owner is None:
            text = f"{text}; training examples that another rostered user asked are dropped"
        if self.examples_per_owner is not None:
            text = f"{text}; at most {self.examples_per_owner} training examples an owner"
        if self.selecting:
            text = f"{text}; rostered users train on no thread that a public user asked"
        if self.measured_on == "test":
            return text
        return f"{text}; a fifth of the other threads held out too, and measured on"

    def choosing(self) -> Split:
        """Return the split that settings are chosen by."""
        return replace(self, measured_on="validation")


BY_THREAD = Split()
BY_SENTENCE = Split(kind="by-sentence")


TRAIN, VALIDATION, TEST, LEFT_OUT = 0, 1, 2, 3
"""Subsets of sentences. Left out is what would stand on neither side."""

SUBSETS = ("train", "validation", "test")
"""Their names, but for what is left out."""

TRAIN_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Division:
    """Assignment of a corpus's sentences to training, validation and testing; made by `divide`.

    Attributes:
        public: bool (U,), which of the store's users are public.
        seed: The corpus's own.
        roster: The rostered ids.
        parts: int8, what each thread is for by a hash of its key; None where that is not asked.
        cuts: Days from which threads are for validation and for testing; None likewise. With
            neither parts nor cuts each user's sentences are divided by a hash of user and ordinal.
        held: Users who train nothing, while the others on the roster are not tested on; None for
            none. Public users are neither: what is released is measured on them.
        dropped: From whole users' sentences to those, bool (S,), that rostered users do not train
            on. What is held out stays, and so does all that public users wrote.
    """

    public: np.ndarray
    seed: int
    roster: frozenset[str]
    parts: np.ndarray | None = None
    cuts: tuple[int, int] | None = None
    held: frozenset[str] | None = None
    dropped: tuple[Callable[[SentenceBatch], np.ndarray], ...] = ()

    @property
    def where(self) -> str:
        """The place where public text is counted, for messages."""
        return "in their posts" if self._by_sentence else "in the training threads that they asked"

    @property
    def _by_sentence(self) -> bool:
        return self.parts is None and self.cuts is None

    def counted(self, batch: SentenceBatch) -> np.ndarray:
        """Return which sentences of public users may be counted for words and tags, bool (S,)."""
        if self._by_sentence:
            return np.ones(len(batch), dtype=bool)
        return (self._parts(batch) == TRAIN) & self.asked_in_public(batch)

    def asked_in_public(self, batch: SentenceBatch) -> np.ndarray:
        """Return which sentences are in threads that a public user asked, bool (S,).

        That holds of public users' sentences: one in a user's own thread is taken to be such.
        """
        known = batch.askers >= 0
        return (batch.askers == OWN) | (known & self.public[np.maximum(batch.askers, 0)])

    def without(self, drop: Callable[[SentenceBatch], np.ndarray]) -> Division:
        """Return the division in which rostered users do not train on more sentences, bool (S,)."""
        return replace(self, dropped=(*self.dropped, drop))

    def training(self, batch: SentenceBatch, users: Sequence[str]) -> np.ndarray:
        """Return which sentences are for training, with a label or without, bool (S,)."""
        rows, subsets = self.subsets(batch, users, np.arange(len(batch)))
        found = np.zeros(len(batch), dtype=bool)
        found[rows[subsets == TRAIN]] = True
        return found

    def subsets(
        self, batch: SentenceBatch, users: Sequence[str], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows ordered by user and subset, and the subset of each (int8).

        Args:
            batch: whole users.
            users: the users that `batch.users` are positions in.
            rows: int64, the sentences that make examples.
        """
        if self._by_sentence:
            return self._divide_users(batch, users, rows)
        subsets = self._parts(batch)[rows]
        rostered = _of_users(batch, users, self.roster)[rows]
        if self.held is not None:
            held = _of_users(batch, users, self.held)[rows]
            left_out = np.where(subsets == TEST, rostered & ~held, held)
            subsets = np.where(left_out, LEFT_OUT, subsets)
        for drop in self.dropped:
            left_out = (subsets == TRAIN) & rostered & drop(batch)[rows]
            subsets = np.where(left_out, LEFT_OUT, subsets)
        kept = subsets != LEFT_OUT
        rows, subsets = rows[kept], subsets[kept].astype(np.int8)
        order = np.lexsort((batch.ordinals[rows], subsets, batch.users[rows]))
        return rows[order], subsets[order]

    def _divide_users(
        self, batch: SentenceBatch, users: Sequence[str], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Divide each user's sentences 80/20 by a hash of user and ordinal; no other is looked at.

        Every user has one to train on.
        """
        owners = batch.users[rows]
        keys = np.empty(len(rows), dtype=np.uint64)
        edges = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))
        lengths = np.diff(edges)
        for first, last in pairwise(edges.tolist()):
            ordinals = batch.ordinals[rows[first:last]]
            user = users[int(owners[first])]
            keys[first:last] = ordinal_hashes(f"fedpriv split {self.seed}", user, ordinals)
        place = np.arange(len(rows)) - np.repeat(edges[:-1], lengths)
        trained = place < np.repeat(num_train(lengths), lengths)
        return rows[np.lexsort((keys, owners))], np.where(trained, TRAIN, TEST).astype(np.int8)

    def _parts(self, batch: SentenceBatch) -> np.ndarray:
        """Return what each sentence is for by its thread, int8 (S,)."""
        if self.parts is not None:
            return self.parts[batch.threads]
        found = np.searchsorted(np.array(self.cuts), batch.days, side="right")
        return np.where(batch.days < 0, LEFT_OUT, found).astype(np.int8)


def divide(
    split: Split,
    store: SentenceStore,
    roster: Iterable[str],
    public_users: Sequence[str],
    seed: int,
) -> Division:
    """Return the division of a corpus's sentences by a split, but for the bound of owners.

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
    whole = Division(public=store.contains(public_users), seed=seed, roster=frozenset(roster))
    validation = split.measured_on == "validation"
    if split.kind == "by-sentence":
        return whole
    if split.kind == "by-time":
        whole = replace(whole, cuts=_find_cuts(store, public_users, whole, validation))
    else:
        keys = store.thread_keys()
        parts = np.fromiter((thread_part(key, split.fold, seed) for key in keys), np.int8)
        if not validation:
            parts[parts == VALIDATION] = TRAIN
        whole = replace(whole, parts=parts, held=_find_held_users(split, store, whole))
    if not split.selecting:
        return whole
    threads = np.zeros(sum(1 for _ in store.thread_keys()), bool)
    for batch in store.batches(public_users):
        threads[batch.threads[whole.asked_in_public(batch)]] = True
    return whole.without(lambda batch: threads[batch.threads])


def _find_held_users(split: Split, store: SentenceStore, whole: Division) -> frozenset[str] | None:
    if split.kind == "by-user":
        salt = f"users {whole.seed}"
        return frozenset(user for user in whole.roster if _fold(salt, user) == split.fold)
    if split.kind != "as-published":
        return None
    if held := store.held_users() & whole.roster:
        return held
    raise ValueError(
        "this roster has no users that the data's source holds out, so it cannot be split "
        "as-published; import the corpus with --tff-split, or choose split by-user"
    )


def _of_users(batch: SentenceBatch, users: Sequence[str], chosen: frozenset[str]) -> np.ndarray:
    """Return which sentences of a batch some users wrote, bool (S,)."""
    numbers, inverse = np.unique(batch.users, return_inverse=True)
    return np.array([users[number] in chosen for number in numbers.tolist()], bool)[inverse]


def thread_part(thread: str, fold: int, seed: int) -> int:
    """Return what a thread is for; it looks at its key and at nothing else.

    Returns:
        TEST for a fifth, VALIDATION for a fifth of the others, TRAIN for the rest.
    """
    if _fold(f"threads {seed}", thread) == fold:
        return TEST
    return VALIDATION if _fold(f"validation {seed}", thread) == 0 else TRAIN


def num_train(examples: np.ndarray) -> np.ndarray:
    """Return how many of a user's examples are for training: 80 %, at least one if any.

    >>> num_train(np.array([0, 1, 2, 3, 4, 5, 10])).tolist()
    [0, 1, 2, 2, 3, 4, 8]
    """
    return np.rint(TRAIN_SHARE * examples).astype(np.int64)


def _find_cuts(
    store: SentenceStore, public_users: Sequence[str], division: Division, validation: bool
) -> tuple[int, int]:
    """Return the days from which threads are for validation and for testing.

    They are quantiles of the threads that public users asked, so no rostered user moves them.
    """
    days: dict[int, int] = {}
    for batch in store.batches(public_users):
        asked = division.asked_in_public(batch) & (batch.days >= 0)
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
    return hash64(f"fedpriv fold of {what}", key) * NUM_FOLDS >> 64


NO_OWNER = -1
"""In place of an owner's number, where an example has no further one on the roster."""

_SALT = "fedpriv owners 1"  # fixed for ever: changing it changes which examples train


def hash_examples(user_id: str, ordinals: np.ndarray) -> np.ndarray:
    """Return one uint64 per example of a user: a hash of its id, which is user and ordinal."""
    return ordinal_hashes(_SALT, user_id, ordinals)


def choose_bounded(owners: np.ndarray, order: np.ndarray, most: int) -> np.ndarray:
    """Return which examples are kept so that no owner has more than some of them, bool (n,).

    Greedy: examples are taken in the order of their hashes, and one is kept if each of its owners
    has room. What is left out could not be added: the choice is maximal.

    Args:
        owners: int64 (n, w), each example's owners, distinct; `NO_OWNER` in places that are empty.
        order: uint64 (n,), a hash of each example's id; ties go to the earlier example.
        most: Examples an owner may have, at least 1.

    Raises:
        ValueError: If `most` is below 1.
    """
    if most < 1:
        raise ValueError(f"examples-per-owner {most} leaves no example; give at least 1")
    kept = np.zeros(len(owners), dtype=bool)
    room = [most] * (int(owners.max(initial=NO_OWNER)) + 1)
    theirs: list[list[int]] = owners.tolist()
    for place in np.argsort(order, kind="stable").tolist():
        mine = [owner for owner in theirs[place] if owner != NO_OWNER]
        if all(room[owner] for owner in mine):
            kept[place] = True
            for owner in mine:
                room[owner] -= 1
    return kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """Rostered users' sentences in training threads that are kept, with a label or without.

    Attributes:
        rows: bool (S,), by the store's rows; those for testing or of public users are False.
        num_training: Rostered users' sentences in training threads.
        listed: int64 (n,), the store's row of each example of the bounded list, user by user in
            the roster's order; None where none is bounded. The list is of ids: a sentence without
            a label has its place there, too, and contributes nothing.
    """

    rows: np.ndarray
    num_training: int
    listed: np.ndarray | None

    @property
    def share_dropped(self) -> float:
        """Share of rostered users' sentences in training threads that is dropped, of the graph."""
        return 1.0 - float(np.count_nonzero(self.rows)) / max(self.num_training, 1)


def keep_bounded(
    store: SentenceStore,
    roster: Sequence[str],
    training: Callable[[SentenceBatch, Sequence[str]], np.ndarray],
    most: int | None,
    *,
    elsewhere_rostered: bool,
) -> Kept:
    """Return the training examples that are kept so that owners are bounded.

    Args:
        store: The corpus's sentences.
        roster: The rostered ids, in order.
        training: From sentences, and the users they are of, to which are for training; it looks at
            threads and ids only.
        most: Examples an owner may have; None keeps those of one rostered owner.
        elsewhere_rostered: Whether an asker without any sentence in the corpus may be on the
            roster, as on one that was declared. It is a matter of the roster's rule, not of who
            has sentences: else emptying one user would change what others train on.

    Raises:
        ValueError: `most` is below 1.
    """
    rostered = store.contains(roster)
    rows = np.zeros(int(store.offsets[-1]), dtype=bool)
    number, found = 0, [np.zeros((0, 3), np.int64)]
    orders = [np.zeros(0, np.uint64)]
    for batch in store.batches(roster):
        at = np.flatnonzero(training(batch, roster))
        places, users = batch.rows[at], batch.users[at]
        number += len(at)
        asked = batch.askers[at].astype(np.int64)
        # The other rostered account that owns the sentence: one beyond all where it may be anybody.
        askers = np.where((asked >= 0) & rostered[np.maximum(asked, 0)], asked, NO_OWNER)
        if elsewhere_rostered:
            askers[asked == ELSEWHERE] = len(rostered)
        if most is None:
            rows[places[askers == NO_OWNER]] = True
            continue
        authors, order = np.zeros(len(at), np.int64), np.zeros(len(at), np.uint64)
        for user in np.unique(users):
            theirs = users == user
            authors[theirs] = store.position(roster[int(user)])
            order[theirs] = hash_examples(roster[int(user)], batch.ordinals[at[theirs]])
        found.append(np.stack([places, authors, askers], axis=1))
        orders.append(order)
    if most is None:
        return Kept(rows=rows, num_training=number, listed=None)
    examples = np.concatenate(found)
    listed = examples[choose_bounded(examples[:, 1:], np.concatenate(orders), most), 0]
    rows[listed] = True
    return Kept(rows=rows, num_training=number, listed=listed)
