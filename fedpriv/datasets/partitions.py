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

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256

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


def split_users(
    ids: Sequence[str] | np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    *,
    public: float | Collection[str],
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], tuple[np.ndarray, np.ndarray]]:
    """Return rostered users' (inputs, labels) by id, and those of all public users together.

    Nothing of public users is protected: name people who have agreed, or whose data are public
    already. Who is public is a function of each id alone, so that no user's examples, and nobody
    who joins or leaves, moves another user from one side to the other.

    Args:
        ids: Each example's user (n,), as it stands in the data.
        x: Inputs, n rows.
        y: Labels (n,).
        public: The ids; or a share of all, above 0 and below 1, chosen by SHA-256 of each.

    Raises:
        ValueError: If numbers of rows differ, an id is empty, one of `public` is not among them, a
            share is out of range, or one side has no user.

    >>> users, public = split_users(["ann", "bob", "ann"], np.eye(3), np.arange(3), public=["bob"])
    >>> {user: labels.tolist() for user, (_, labels) in users.items()}, public[1].tolist()
    ({'ann': [0, 2]}, [1])
    """
    if not len(ids) == len(x) == len(y):
        raise ValueError(
            f"{len(ids):,} ids, {len(x):,} inputs and {len(y):,} labels; give one of each a row"
        )
    partition = split_by_ids(ids)
    if not all(user.strip() for user in partition):
        raise ValueError("a row's user is empty, and it is not known whose it is; leave it out")
    if isinstance(public, int | float):
        if not 0.0 < public < 1.0:
            raise ValueError(f"a public share of {public} is not between 0 and 1; give one as 0.1")
        chosen = {user for user in partition if _place(user) < public}
    else:
        chosen = set(public)
        if missing := sorted(chosen - set(partition)):
            raise ValueError(
                f"public user {missing[0]!r} has no row; give ids as they stand in the data"
            )
    if not 0 < len(chosen) < len(partition):
        raise ValueError(
            f"{len(chosen):,} of {len(partition):,} users are public, and neither side may be "
            "empty; give other ids, or another share"
        )
    rows = np.sort(np.concatenate([partition[user] for user in chosen]))
    rostered = {user: own for user, own in partition.items() if user not in chosen}
    return examples_by_user(x, y, rostered), (x[rows], y[rows])


def _place(user: str) -> float:
    """Return a number from 0 to 1 that is an id's own."""
    return int.from_bytes(sha256(b"public user\0" + user.encode()).digest()[:8], "big") / 2**64
