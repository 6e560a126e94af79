"""Partitions of labelled data sets among users, drawn from a key or by ids that the data have.

A partition maps each user's id to the positions of that user's examples: by labels (Dirichlet
mixtures, shards), by quantity, uniform, or natural. It is drawn from a key, so that a server and
its nodes, which make the task each for themselves, split the data set alike:

>>> from fedpriv.rng import Key
>>> labels = np.repeat(np.arange(10), 50)
>>> partition = split_by_dirichlet(labels, 20, alpha=0.5, key=Key.simulation(0))
>>> len(partition), [len(rows) for rows in partition.values()][:3]
(20, [25, 25, 25])
>>> print(LabelSummary.of_partition(labels, partition))
20 users, 500 examples of 10 labels
examples a user: 25 to 25, median 25
labels a user holds: 2 to 8 of 10, median 6
label entropy: 2.11 bits a user in the mean, 3.32 of all examples
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from fedpriv.datasets.user_ids import check_distinct, name_of, no_name, normalise_name
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
    _check_split(len(labels), num_users, key)
    rng = key.fold("partition by labels").generator()
    classes, numbers = np.unique(labels, return_inverse=True)
    pools = [rng.permutation(np.flatnonzero(numbers == c)) for c in range(len(classes))]
    left = np.bincount(numbers)
    partition = {}
    for user, size in zip(_names(num_users), _equal(len(labels), num_users), strict=True):
        mixture, taken = rng.dirichlet(np.full(len(classes), alpha)), np.zeros_like(left)
        while missing := int(size - taken.sum()):
            weights = np.where(left > taken, mixture, 0.0)
            if weights.sum() <= 0:  # none is left of the classes that the mixture holds
                weights = (left - taken).astype(float)
            drawn = rng.multinomial(missing, weights / weights.sum())
            taken = np.minimum(taken + drawn, left)
        found = [pools[c][left[c] - taken[c] : left[c]] for c in range(len(classes))]
        partition[user] = np.sort(np.concatenate(found))
        left = left - taken
    return partition


def split_by_shards(
    labels: np.ndarray, num_users: int, *, shards: int = 2, key: Key
) -> dict[str, np.ndarray]:
    """Return a partition in which each user has a few runs of the examples sorted by label.

    As in McMahan et al. 2017 (arXiv:1602.05629, section 3): examples are sorted by label, cut into
    `num_users * shards` runs of as many examples each, to within one, and each user is dealt
    `shards` of them at random. With 2 shards most users have examples of two labels only.

    Args:
        labels: Each example's class (n,); examples of one class are in random order.
        num_users: How many.
        shards: Of each user; `num_users * shards` is at most n.
        key: What is drawn from.

    Returns:
        As `split_by_dirichlet`.

    Raises:
        ValueError: If there are fewer examples than shards, or none, or the key is no `Key`.
    """
    if shards < 1:
        raise ValueError(f"shards {shards} must be at least 1")
    _check_split(len(labels), num_users, key)
    number = num_users * shards
    if number > len(labels):
        raise ValueError(
            f"{num_users:,} users of {shards:,} shards are more than the {len(labels):,} examples; "
            "give fewer of either"
        )
    key = key.fold("partition by shards")
    mixed = _permutation(len(labels), key.fold("examples"))
    ordered = mixed[np.argsort(np.asarray(labels)[mixed], kind="stable")]
    runs = np.split(ordered, np.cumsum(_equal(len(labels), number))[:-1])
    dealt = _permutation(number, key.fold("shards")).reshape(num_users, shards)
    return {
        user: np.sort(np.concatenate([runs[place] for place in places]))
        for user, places in zip(_names(num_users), dealt, strict=True)
    }


def split_uniformly(num_examples: int, num_users: int, *, key: Key) -> dict[str, np.ndarray]:
    """Return a partition of examples at random, as many to each user, to within one.

    Args:
        num_examples: n.
        num_users: At most n.
        key: What is drawn from.

    Returns:
        As `split_by_dirichlet`.

    Raises:
        ValueError: If there are more users than examples, or none, or the key is no `Key`.
    """
    _check_split(num_examples, num_users, key)
    return _dealt(_equal(num_examples, num_users), key.fold("partition at random"))


def split_by_quantity(
    num_examples: int,
    num_users: int,
    *,
    law: Literal["log-normal", "power-law"] = "log-normal",
    skew: float = 1.0,
    least: int = 1,
    key: Key,
) -> dict[str, np.ndarray]:
    """Return a partition of examples at random, with very different numbers of them to each user.

    Args:
        num_examples: n.
        num_users: How many; `num_users * least` is at most n.
        law: Of the numbers of examples: "log-normal", or "power-law", where the user of rank r has
            a share proportional to r^-skew.
        skew: At least 0: the standard deviation of the logarithm of the numbers, or the exponent of
            the power law; at 0 all are equal, to within one.
        least: Examples that each user has at least; the law divides the rest.
        key: What is drawn from.

    Returns:
        As `split_by_dirichlet`; ranks are dealt at random.

    Raises:
        ValueError: If there are not as many examples, the law is not known, the skew is not at
            least 0, or the key is no `Key`.
    """
    _check_split(num_examples, num_users, key)
    if not 0 <= skew < np.inf:
        raise ValueError(f"skew {skew} must be at least 0 and finite")
    if least < 0 or num_users * least > num_examples:
        raise ValueError(
            f"least {least:,} of {num_users:,} users is not between 0 and what {num_examples:,} "
            "examples allow; give a smaller one"
        )
    key = key.fold("partition by quantity")
    if law == "log-normal":
        logs = skew * key.fold("sizes").generator().standard_normal(num_users)
    elif law == "power-law":
        logs = -skew * np.log1p(_permutation(num_users, key.fold("sizes")))
    else:
        raise ValueError(f"law {law!r} is not known; use 'log-normal' or 'power-law'")
    weights = np.exp(logs - logs.max())
    wanted = weights / weights.sum() * (num_examples - num_users * least)
    sizes = np.floor(wanted).astype(np.int64)
    missing = num_examples - num_users * least - int(sizes.sum())
    sizes[np.argsort(sizes - wanted, kind="stable")[:missing]] += 1  # by largest remainders
    return _dealt(sizes + least, key)


def _check_split(num_examples: int, num_users: int, key: Key) -> None:
    if not 1 <= num_users <= num_examples:
        raise ValueError(
            f"users {num_users:,} is more than the {num_examples:,} examples; give at most that "
            "many"
            if num_users > 0
            else f"users {num_users:,} must be at least 1"
        )
    if not isinstance(key, Key):
        raise ValueError(f"key {key!r} must be a Key, such as Key.simulation(0)")


def _names(num_users: int) -> Iterator[str]:
    """Yield ids that sort by number."""
    digits = len(str(num_users - 1))
    return (f"user-{number:0{digits}d}" for number in range(num_users))


def _equal(num_examples: int, parts: int) -> np.ndarray:
    """Return sizes of parts that differ by one at most."""
    return np.diff(np.arange(parts + 1) * num_examples // parts)


def _permutation(size: int, key: Key) -> np.ndarray:
    # By raw words, because only those are guaranteed to be the same in every version of NumPy.
    return np.argsort(key.generator().bit_generator.random_raw(size), kind="stable")


def _dealt(sizes: np.ndarray, key: Key) -> dict[str, np.ndarray]:
    order = _permutation(int(sizes.sum()), key.fold("examples"))
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return {user: np.sort(rows) for user, rows in zip(_names(len(sizes)), parts, strict=True)}


def split_by_ids(
    ids: Sequence[Any] | np.ndarray,
    where: Callable[[int], str] = lambda row: f"the user of example {row + 1:,}",
) -> dict[str, np.ndarray]:
    """Return the partition by ids that the examples have, such as a writer's or a patient's.

    Ids that `normalise_name` makes one name, such as "ann" and "ann ", are one user's.

    Args:
        ids: Each example's user (n,), texts or whole numbers.
        where: What an error calls the id of a row, counted from 0.

    Returns:
        By normalised id, sorted, with increasing positions.

    Raises:
        ValueError: If an id names no one: an empty text, a float, None; says which example's.

    >>> {user: rows.tolist() for user, rows in split_by_ids(["b", "a", "b "]).items()}
    {'a': [1], 'b': [0, 2]}
    """
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "Uiu":
        distinct, numbers = np.unique(ids, return_inverse=True)
    else:  # as an array None and nan would be texts
        distinct, numbers = list(ids), np.arange(len(ids))
    names = list(map(name_of, distinct))
    if "" in names:
        blank = names.index("")
        row = int(np.flatnonzero(numbers == blank)[0])
        raise ValueError(f"{where(row)} {no_name(distinct[blank])}")
    users, merged = np.unique(np.array(names, np.str_), return_inverse=True)
    numbers = merged[numbers]
    ends = np.cumsum(np.bincount(numbers, minlength=len(users)))[:-1]
    rows = np.split(np.argsort(numbers, kind="stable"), ends)
    return dict(zip(users.tolist(), rows, strict=True)) if len(users) else {}


def examples_by_user(
    x: np.ndarray, y: np.ndarray, partition: Partition
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return each user's (inputs, labels), as a `ModuleTask` takes them."""
    return {user: (x[rows], y[rows]) for user, rows in partition.items()}


class UserRows(Mapping[str, tuple[np.ndarray, np.ndarray]]):
    """Users' examples as rows of one array, which are made inputs when they are asked for.

    What many images take in memory is then their bytes, not float32.

    Args:
        x: Rows of all users, as they are kept.
        y: Their labels.
        partition: Each user's rows.
        inputs: From some rows of x to a model's inputs, row by row.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        partition: Partition,
        inputs: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> None:
        self._x, self._y, self._partition, self._inputs = x, y, partition, inputs

    def __getitem__(self, user_id: str) -> tuple[np.ndarray, np.ndarray]:
        rows = self._partition[user_id]
        return self._inputs(self._x[rows]), self._y[rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._partition)

    def __len__(self) -> int:
        return len(self._partition)


def split_users(
    ids: Sequence[Any] | np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    *,
    public: float | Collection[str],
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], tuple[np.ndarray, np.ndarray]]:
    """Return rostered users' (inputs, labels) by id, and those of all public users together.

    Nothing of public users is protected: name people who have agreed, or whose data are public
    already. Who is public is a function of each id alone, so that no user's examples, and no one
    who joins or leaves, moves another user from one side to the other.

    Args:
        ids: Each example's user (n,), as of `split_by_ids`: one person's ids, however they are
            encoded, are one user's.
        x: Inputs, n rows.
        y: Labels (n,).
        public: The ids; or a share of all, above 0 and below 1, chosen by SHA-256 of each.

    Raises:
        ValueError: If numbers of rows differ, an id names no one, one of `public` is not among
            them, a share is out of range, or one side has no user.

    >>> users, public = split_users(["ann", "bob", "ann"], np.eye(3), np.arange(3), public=["bob"])
    >>> {user: labels.tolist() for user, (_, labels) in users.items()}, public[1].tolist()
    ({'ann': [0, 2]}, [1])
    """
    if not len(ids) == len(x) == len(y):
        raise ValueError(
            f"{len(ids):,} ids, {len(x):,} inputs and {len(y):,} labels; give one of each a row"
        )
    partition = split_by_ids(ids)
    chosen = choose_public_users(partition, public)
    rows = np.sort(np.concatenate([partition[user] for user in chosen]))
    rostered = {user: own for user, own in partition.items() if user not in chosen}
    return examples_by_user(x, y, rostered), (x[rows], y[rows])


def choose_public_users(users: Collection[str], public: float | Collection[str]) -> set[str]:
    """Return the ids of the public ones among users.

    Args:
        users: All ids, each one person's.
        public: As of `split_users`.

    Raises:
        ValueError: As there, and if two ids are one person's.
    """
    check_distinct(users)
    if isinstance(public, int | float):
        if not 0.0 < public < 1.0:
            raise ValueError(f"a public share of {public} is not between 0 and 1; give one as 0.1")
        chosen = {user for user in users if _place(normalise_name(user)) < public}
    else:
        if isinstance(public, str):
            raise ValueError(f"public {public!r} is one text; give a list of ids, or a share")
        known = {normalise_name(user): user for user in users}
        if missing := [user for user in public if name_of(user) not in known]:
            raise ValueError(
                f"public user {missing[0]!r} has no row; give ids as they stand in the data"
            )
        chosen = {known[name_of(user)] for user in public}
    if not 0 < len(chosen) < len(users):
        raise ValueError(
            f"{len(chosen):,} of {len(users):,} users are public, and neither side may be "
            "empty; give other ids, or another share"
        )
    return chosen


def hold_out_public_users(
    users: Mapping[str, tuple[np.ndarray, np.ndarray]], *, public: float | Collection[str]
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], tuple[np.ndarray, np.ndarray]]:
    """Return rostered users' (inputs, labels) by id, and those of all public users together.

    As `split_users`, of what the readers of data sets by user return.

    Args:
        users: (inputs, labels) by id.
        public: As there.

    Raises:
        ValueError: As there.

    >>> users = {"ann": (np.zeros((2, 3)), np.array([0, 2])), "bob": (np.ones((1, 3)), np.ones(1))}
    >>> rostered, public = hold_out_public_users(users, public=["bob"])
    >>> list(rostered), public[0].shape
    (['ann'], (1, 3))
    """
    chosen = choose_public_users(users, public)
    theirs = [users[user] for user in sorted(chosen)]
    joined = np.concatenate([x for x, _ in theirs]), np.concatenate([y for _, y in theirs])
    return {user: own for user, own in users.items() if user not in chosen}, joined


def _place(user: str) -> float:
    """Return a number from 0 to 1 that is an id's own."""
    return int.from_bytes(sha256(b"public user\0" + user.encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelSummary:
    """Summary of how labels are spread over users; its text is `str(summary)`.

    Of private users it is a diagnostic that no ε covers.

    Attributes:
        users: Ids (users,), sorted.
        labels: The distinct labels (labels,), sorted.
        counts: Examples of each user and label, int64 (users, labels).
    """

    users: tuple[str, ...] = field(repr=False)
    labels: tuple[Any, ...] = field(repr=False)
    counts: np.ndarray = field(repr=False)

    @classmethod
    def of_partition(cls, labels: np.ndarray, partition: Partition) -> LabelSummary:
        """Return the summary of a partition of examples with these labels (n,)."""
        labels = np.asarray(labels)
        return cls._of({user: labels[rows] for user, rows in partition.items()})

    @classmethod
    def of_users(cls, users: Mapping[str, tuple[Any, np.ndarray]]) -> LabelSummary:
        """Return the summary of (inputs, labels) by id, as a `ModuleTask` takes them."""
        return cls._of({user: np.asarray(y) for user, (_, y) in users.items()})

    @classmethod
    def _of(cls, labels: Mapping[str, np.ndarray]) -> LabelSummary:
        users = tuple(sorted(labels))
        if not users or any(labels[user].ndim != 1 for user in users):
            raise ValueError("there is no user, or labels are not one a row; give each example one")
        found, numbers = np.unique(
            np.concatenate([labels[user] for user in users]), return_inverse=True
        )
        owner = np.repeat(np.arange(len(users)), [len(labels[user]) for user in users])
        counts = np.zeros((len(users), len(found)), np.int64)
        np.add.at(counts, (owner, numbers), 1)
        return cls(users=users, labels=tuple(found.tolist()), counts=counts)

    @property
    def examples(self) -> np.ndarray:
        """Examples of each user, int64 (users,)."""
        return self.counts.sum(axis=1)

    @property
    def labels_held(self) -> np.ndarray:
        """Number of labels that each user has examples of, int64 (users,)."""
        return (self.counts > 0).sum(axis=1)

    @property
    def entropies(self) -> np.ndarray:
        """Entropy of each user's labels in bits, float64 (users,); 0 without examples."""
        return np.array([_entropy(counts) for counts in self.counts])

    @property
    def entropy(self) -> float:
        """Entropy in bits of the labels of all users' examples together."""
        return _entropy(self.counts.sum(axis=0))

    def __str__(self) -> str:
        examples, held = self.examples, self.labels_held
        return (
            f"{len(self.users):,} users, {examples.sum():,} examples of {len(self.labels):,} "
            f"labels\nexamples a user: {examples.min():,} to {examples.max():,}, median "
            f"{np.median(examples):,g}\nlabels a user holds: {held.min():,} to {held.max():,} of "
            f"{len(self.labels):,}, median {np.median(held):,g}\nlabel entropy: "
            f"{self.entropies.mean():.2f} bits a user in the mean, {self.entropy:.2f} of all "
            "examples"
        )


def _entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log2(shares)).sum()) + 0.0
