"""Bound on examples with several owners: the account that wrote them, and the one that asked.

An answer's example carries the title and tags of its question, which somebody else wrote. Who wrote
which sentence and who asked which thread is the *graph*: fixed, and public by assumption, as in
fixed-graph multi-owner privacy (arXiv:2503.03622). Neighbours blank the examples of one owner; the
graph stays, and so does who is on the roster. Everything here looks at the graph and at ids, never
at a word, a tag or a label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.datasets.stackexchange.rosters import ordinal_hashes
from fedpriv.datasets.stackexchange.sentence_store import ELSEWHERE, SentenceBatch, SentenceStore

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
        for user in np.unique(users).tolist():
            theirs = users == user
            authors[theirs] = store.position(roster[user])
            order[theirs] = hash_examples(roster[user], batch.ordinals[at[theirs]])
        found.append(np.stack([places, authors, askers], axis=1))
        orders.append(order)
    if most is None:
        return Kept(rows=rows, num_training=number, listed=None)
    examples = np.concatenate(found)
    listed = examples[choose_bounded(examples[:, 1:], np.concatenate(orders), most), 0]
    rows[listed] = True
    return Kept(rows=rows, num_training=number, listed=listed)
