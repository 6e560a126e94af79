"""Check that users are trained apart: no user changes what another one contributes.

A bound holds for one user's contribution. Where something of that user is kept for the next (the
momentum of an optimiser, a cache, a generator that was made once), the next one's moves too, past
the bound. Nothing of this is found by looking at one user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedpriv import tree
from fedpriv.training.failures import KeepsStateError
from fedpriv.tree import Tree

_SAME = 1e-4


def refuse_dependence(
    train: Callable[[Sequence[str]], Sequence[Tree]],
    users: Sequence[str],
    *,
    of: str,
    whole: bool = False,
    passes: int = 2,
) -> dict[str, Tree]:
    """Refuse training in which one user changes what another one contributes.

    Each user is trained alone, and then all of them several times one after the other, and twice in
    the other order: each must contribute the same.

    Not found is what shows on none of these users: what is kept of particular examples, or after
    more of them, and what they change by less than 1e-4 of an update.

    Args:
        train: From users to their contributions, trained in this order and with equal keys each
            time. It begins with nothing kept of those that it trained before.
        users: Of no one on a roster, three or more.
        of: What trains them, for the message.
        whole: Whether contributions are rounded to whole numbers.
        passes: How often all users are trained one after the other, in the order given.

    Returns:
        What each user contributes alone, by name.

    Raises:
        Exception: What the training raises.
        KeepsStateError: If a user contributes another update after others.
    """
    known = {user: train([user])[0] for user in users}
    for order in ([*users] * passes, [*users[::-1]] * 2):
        for user, found in zip(order, train(order), strict=True):
            if differs(known[user], found, whole=whole):
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
        left = tree.to_dense_tensor(total[name]).astype(np.float64)
        for part in parts:
            right = tree.to_dense_tensor(part[name]).astype(np.float64)
            size += float(np.vdot(right, right))
            left -= right
        gap += float(np.vdot(left, left))
        if whole:  # each whole number may be rounded to its other side
            size += left.size / _SAME**2
    return gap > _SAME**2 * size
