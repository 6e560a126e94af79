"""Which training examples of a roster are kept, so that it is known what blanking an owner changes.

Every example keeps one rostered owner (`most` None), whose update alone its words then move; or no
owner has more than `most` examples, chosen greedily in the order of a hash of their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.data.owners.graph import NO_OWNER, Graph, bounded, hashes
from fedpriv.data.sentences.store import SentenceBatch


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
