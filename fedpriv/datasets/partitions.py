"""Partitions of labelled data sets among users: by Dirichlet draws, or by ids that the data have.

A partition maps each user's id to the positions of that user's examples. It is drawn from a key, so
that a server and its nodes, which make the task each for themselves, split the data set alike:

>>> from fedpriv.rng import Key
>>> labels = np.repeat(np.arange(10), 50)
>>> partition = split_by_dirichlet(labels, 20, alpha=0.5, key=Key.simulation(0))
>>> len(partition), [len(rows) for rows in partition.values()][:3]
(20, [25, 25, 25])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedpriv.rng import Key

Partition = Mapping[str, np.ndarray]
"""Positions of each user's examples, int64, by user id."""


def split_by_dirichlet(
    labels: np.ndarray, num_users: int, *, alpha: float, key: Key
) -> dict[str, np.ndarray]:
    """Return a partition in which each user's mixture of labels is a draw of a Dirichlet.

    As in Hsu, Qi and Brown 2019 (arXiv:1909.06335, section 3): every user has as many examples, to
    within one, of classes in the proportions of a draw from Dirichlet(alpha, ..., alpha). Where a
    class is used up, the rest of the user's examples is of the others, in the same proportions.

    Args:
        labels: integers (n,), each example's class.
        num_users: At most n.
        alpha: Concentration, above 0: small for users of few classes each (0.1 is usual), large
            for users who are all alike.
        key: What is drawn from; the same key gives the same partition.

    Returns:
        "user-0", "user-1" and so on, zero-padded, with increasing positions. Each example is in
        exactly one user's.

    Raises:
        ValueError: If alpha is not above 0, there are more users than examples, or none, or the
            key is no `Key`.
    """
    if not alpha > 0:
        raise ValueError(f"alpha {alpha} must be above 0")
    if not 1 <= num_users <= len(labels):
        raise ValueError(
            f"users {num_users:,} is more than the {len(labels):,} examples; give at most that many"
            if num_users > 0
            else f"users {num_users:,} must be at least 1"
        )
    if not isinstance(key, Key):
        raise ValueError(f"key {key!r} must be a Key, such as Key.simulation(0)")
    rng = key.fold("partition by labels").generator()
    classes, numbers = np.unique(labels, return_inverse=True)
    pools = [rng.permutation(np.flatnonzero(numbers == c)) for c in range(len(classes))]
    left = np.bincount(numbers)
    partition = {}
    for user, size in enumerate(np.diff(np.arange(num_users + 1) * len(labels) // num_users)):
        mixture, taken = rng.dirichlet(np.full(len(classes), alpha)), np.zeros_like(left)
        while missing := int(size - taken.sum()):
            weights = np.where(left > taken, mixture, 0.0)
            if weights.sum() <= 0:  # none is left of the classes that the mixture holds
                weights = (left - taken).astype(float)
            drawn = rng.multinomial(missing, weights / weights.sum())
            taken = np.minimum(taken + drawn, left)
        found = [pools[c][left[c] - taken[c] : left[c]] for c in range(len(classes))]
        partition[f"user-{user:0{len(str(num_users - 1))}d}"] = np.sort(np.concatenate(found))
        left = left - taken
    return partition


def split_by_ids(ids: Sequence[str] | np.ndarray) -> dict[str, np.ndarray]:
    """Return the partition by ids that the examples have, such as a writer's or a patient's.

    Args:
        ids: Each example's user (n,).

    >>> {user: rows.tolist() for user, rows in split_by_ids(["b", "a", "b"]).items()}
    {'a': [1], 'b': [0, 2]}
    """
    users, numbers = np.unique(np.asarray(ids, np.str_), return_inverse=True)
    ends = np.cumsum(np.bincount(numbers, minlength=len(users)))[:-1]
    rows = np.split(np.argsort(numbers, kind="stable"), ends)
    return dict(zip(users.tolist(), rows, strict=True)) if len(users) else {}


def examples_by_user(
    x: np.ndarray, y: np.ndarray, partition: Partition
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return each user's (inputs, labels), as a `ModuleTask` takes them."""
    return {user: (x[rows], y[rows]) for user, rows in partition.items()}
