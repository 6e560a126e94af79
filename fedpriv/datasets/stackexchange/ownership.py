"""Examples of several owners: whoever wrote the sentence, and whoever asked the question.

An answer's example carries the title and tags of its question, which somebody else wrote. Who wrote
which sentence and who asked which thread is the *graph*: fixed, and public by assumption, as in
fixed-graph multi-owner privacy (arXiv:2503.03622). Neighbours blank the examples of one owner; the
graph stays, and so does who is on the roster. Everything here looks at the graph and at ids, never
at a word, a tag or a label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.datasets.stackexchange.sentence_store import ELSEWHERE, SentenceBatch, SentenceStore

NO_OWNER = -1
"""In place of an owner's number, where an example has no further one on the roster."""

_SALT = "fedpriv owners 1"  # fixed for ever: changing it changes which examples train


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Who of a roster owns what.

    Attributes:
        store: The corpus's sentences.
        rostered: bool (U,), which of the store's users are on the roster.
        elsewhere_rostered: Whether an asker without any sentence in the corpus may be on the
            roster, as on one that was declared. It is a matter of the roster's rule, not of who
            has sentences: else emptying one user would change what others train on.
    """

    store: SentenceStore
    rostered: np.ndarray
    elsewhere_rostered: bool

    @classmethod
    def of(cls, store: SentenceStore, roster: Iterable[str], *, elsewhere_rostered: bool) -> Graph:
        """Return the graph of a roster."""
        rostered = np.zeros(len(store.users), dtype=bool)
        rostered[[number for user in roster if (number := store.position(user)) >= 0]] = True
        return cls(store=store, rostered=rostered, elsewhere_rostered=elsewhere_rostered)

    def askers(self, batch: SentenceBatch) -> np.ndarray:
        """Return the other rostered account that owns each sentence, int64 (S,).

        Returns:
            The store's number of who asked, `NO_OWNER` where that is the sentence's own user or is
            known to be off the roster, or U, one beyond the users, where it may be anybody.
        """
        asked = batch.askers.astype(np.int64)
        known = (asked >= 0) & self.rostered[np.maximum(asked, 0)]
        found = np.where(known, asked, NO_OWNER)
        if self.elsewhere_rostered:
            found[asked == ELSEWHERE] = len(self.rostered)
        return found

    def rows(self, batch: SentenceBatch, users: Sequence[str]) -> np.ndarray:
        """Return each sentence's row in the store, int64 (S,).

        Args:
            batch: Sentences.
            users: The users that `batch.users` are positions in.
        """
        numbers, inverse = np.unique(batch.users, return_inverse=True)
        starts = [
            self.store.offsets[self.store.position(users[int(number)])]
            for number in numbers.tolist()
        ]
        return np.array(starts, dtype=np.int64)[inverse] + batch.ordinals


def hashes(user_id: str, ordinals: np.ndarray) -> np.ndarray:
    """Return one uint64 per example of a user: a hash of its id, which is user and ordinal.

    It is a function of its arguments alone: SHA-256 of the user's id keys a bijection of the
    ordinals (SplitMix64's finaliser).
    """
    key = hashlib.sha256(f"{_SALT}\0{user_id}".encode()).digest()[:8]
    mixed = ordinals.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(int.from_bytes(key, "big"))  # wraps around, as intended
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def bounded(owners: np.ndarray, order: np.ndarray, most: int) -> np.ndarray:
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
    """What is kept of rostered users' sentences in training threads, with a label or without.

    Attributes:
        graph: Who owns what.
        rows: bool (S,), by the store's rows; those that are for testing, of public users or of
            nobody here are False.
        num_training: Rostered users' sentences in training threads.
        listed: int64 (n,), the store's row of each example of the bounded list, user by user in
            the roster's order; None where none is bounded. The list is of ids: a sentence without
            a label has its place there, too, and contributes nothing.
    """

    graph: Graph
    rows: np.ndarray
    num_training: int
    listed: np.ndarray | None

    @property
    def share_dropped(self) -> float:
        """How much of rostered users' sentences in training threads is dropped: of the graph."""
        return 1.0 - float(np.count_nonzero(self.rows)) / max(self.num_training, 1)

    def of(self, batch: SentenceBatch, users: Sequence[str]) -> np.ndarray:
        """Return which sentences are kept, bool (S,); see `Graph.rows`."""
        return self.rows[self.graph.rows(batch, users)]


def kept(
    graph: Graph,
    roster: Sequence[str],
    training: Callable[[SentenceBatch, Sequence[str]], np.ndarray],
    most: int | None,
) -> Kept:
    """Return what is kept.

    Args:
        graph: Who owns what.
        roster: The rostered ids, in order.
        training: From sentences, and the users they are of, to which are for training; it looks at
            threads and ids only.
        most: Examples an owner may have; None keeps those of one rostered owner.

    Raises:
        ValueError: `most` is below 1.
    """
    rows = np.zeros(int(graph.store.offsets[-1]), dtype=bool)
    number, found = 0, [np.zeros((0, 3), np.int64)]
    orders = [np.zeros(0, np.uint64)]
    for batch in graph.store.batches(roster):
        at = np.flatnonzero(training(batch, roster))
        places, askers = graph.rows(batch, roster)[at], graph.askers(batch)[at]
        number += len(at)
        if most is None:
            rows[places[askers == NO_OWNER]] = True
            continue
        users = batch.users[at]
        names = [roster[int(user)] for user in users.tolist()]
        authors = np.array([graph.store.position(name) for name in names], np.int64)
        order = np.zeros(len(at), np.uint64)
        for user in np.unique(users).tolist():
            theirs = users == user
            order[theirs] = hashes(roster[int(user)], batch.ordinals[at[theirs]])
        found.append(np.stack([places, authors, askers], axis=1))
        orders.append(order)
    if most is None:
        return Kept(graph=graph, rows=rows, num_training=number, listed=None)
    examples = np.concatenate(found)
    listed = examples[bounded(examples[:, 1:], np.concatenate(orders), most), 0]
    rows[listed] = True
    return Kept(graph=graph, rows=rows, num_training=number, listed=listed)
