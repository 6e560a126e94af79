"""Check that users are trained apart: no user changes what another one contributes.

A bound holds for one user's contribution. Where something of that user is kept for the next (the
momentum of an optimiser, a cache, a generator that was made once), the next one's moves too, past
the bound. Nothing of this is found by looking at one user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedpriv import tree
from fedpriv.training.failures import KeepsStateError
from fedpriv.tree import RowSparse, Tree

_SAME = 1e-4


def refuse_dependence(
    train: Callable[[Sequence[str]], Sequence[Tree]],
    users: Sequence[str],
    *,
    of: str,
    whole: bool = False,
    passes: int = 1,
) -> dict[str, Tree]:
    """Refuse training in which one user changes what another one contributes.

    Users are trained in two orders, and without the first of them, each time from a state that has
    seen no user. So each of three users is once the first of all, and each comes after others.

    Not found is what shows on none of these users: what is kept of particular examples, or after
    more of them, and what they change by less than 1e-4 of an update.

    Args:
        train: From users to their contributions, trained in this order, one after the other and
            with equal keys each time. It begins with nothing kept of those that it trained before.
        users: Of no one on a roster, three or more.
        of: What trains them, for the message.
        whole: Whether contributions are rounded to whole numbers.
        passes: How often the first order is gone through, one pass after the other.

    Returns:
        What each user contributes, by name.

    Raises:
        Exception: What the training raises.
        KeepsStateError: If a contribution is another one in one of the orders.
    """
    known: dict[str, Tree] = {}
    without = [users[number:] for number in range(1, len(users) - 1)]
    for order in ([*users] * passes, users[::-1], *without):
        for user, found in zip(order, train(order), strict=True):
            if differs(known.setdefault(user, found), found, whole=whole):
                raise keeps_state(of)
    return known


def keeps_state(of: str) -> KeepsStateError:
    """Return the error of training in which users are not apart."""
    return KeepsStateError(
        f"what a user contributes by {of} depends on the user before it (or on a generator of its "
        "own, or Python's or NumPy's): one user would move the sum by more than the bound, and ε "
        "be wrong; keep nothing between users, and draw from the key or generator that training "
        "is given, or from torch's own generators"
    )


def differs(total: Tree, *parts: Tree, whole: bool) -> bool:
    """Return whether a sum is not that of its parts but for rounding, to `whole` numbers or not."""
    gap = size = 0.0
    for name in total:
        first, *others = _same_rows([total[name], *(part[name] for part in parts)])
        left = first.astype(np.float64)
        for right in others:
            right = right.astype(np.float64)
            size += float(np.vdot(right, right))
            left -= right
        gap += float(np.vdot(left, left))
        if whole:  # each whole number may be rounded to its other side
            size += left.size / _SAME**2
    return gap > _SAME**2 * size


def _same_rows(tensors: list[Any]) -> list[np.ndarray]:
    """Return tensors as arrays of one shape: of equal rows their values alone."""
    sparse = [one for one in tensors if isinstance(one, RowSparse)]
    if len(sparse) == len(tensors) and all(
        np.array_equal(one.rows, sparse[0].rows) for one in sparse
    ):
        return [one.values for one in sparse]
    return [tree.to_dense_tensor(one) for one in tensors]
