"""Raw sums that outlive one answer: held within a `with`, or seen by a program.

They print as nothing, and neither copy nor travel; what may be done with one goes back to the door.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NoReturn

import numpy as np

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound
from fedpriv.mechanisms.privatizer import Privatizer
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.work import TRAIN
from fedpriv.tree import Params

_Make = Callable[[Params, str, Bound | None, Sequence[int] | None], PartialSum]


class _Opaque:
    """Private: it prints as nothing, and neither copies nor travels."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a raw sum does not leave the process, nor the block that holds it")


class HeldSum(_Opaque):
    """A raw sum within its `with`. A `fedpriv.training.algorithm.Held`.

    Args:
        total: The raw sum.
        answer: The first answer.
        again: Charges another answer, of a number from 2, and makes it of a copy of the sum.
    """

    __slots__ = ("_again", "_answer", "_num", "_total")

    def __init__(
        self,
        total: PartialSum,
        answer: Any,
        again: Callable[[int, Privatizer, PartialSum], Any],
    ) -> None:
        self._total: PartialSum | None = total
        self._answer, self._again, self._num = answer, again, 1

    @property
    def answer(self) -> Any:
        """The first answer."""
        return self._answer

    def release(self, privatizer: Privatizer) -> Any:
        """Return another answer of the same sum, charged for itself.

        Raises:
            BudgetSpentError: If the plan does not pay for it.
            ValueError: If the sum is not held any more.
        """
        if self._total is None:
            raise ValueError("the sum is not held any more; ask again within a new `with`")
        self._num += 1
        return self._again(self._num, privatizer, copied(self._total))

    def close(self) -> None:
        """Let go of the sum."""
        self._total = None


class Passes(_Opaque):
    """Raw sums within a program. A `fedpriv.training.algorithm.RawSums`.

    Args:
        make: Makes one of params, the name of a work, a bound and places of users.
        key: Secret, for the program's own choices.
        num_users: How many users the query is asked of.
    """

    __slots__ = ("_key", "_make", "_num_users")

    def __init__(self, make: _Make, key: Key, num_users: int) -> None:
        self._make: _Make | None = make
        self._key, self._num_users = key, num_users

    @property
    def num_users(self) -> int:
        """How many users the query is asked of."""
        return self._num_users

    def sum(
        self,
        params: Params,
        *,
        work: str = TRAIN,
        bound: Bound | None = None,
        among: Sequence[int] | None = None,
    ) -> PartialSum:
        """Return one raw sum over users of the query; it must not leave the program.

        Raises:
            ValueError: If the program has ended, or a place is named twice or is nobody's.
        """
        if self._make is None:
            raise ValueError("the program has ended; its raw sums are gone")
        if among is not None:
            places = sorted(among)
            if len(set(places)) < len(places) or not all(0 <= p < self._num_users for p in places):
                raise ValueError(f"places {among!r} must be distinct, and below {self._num_users}")
        return self._make(params, work, bound, among)

    def key(self, stream: str) -> Key:
        """Return a secret key for the program's own choices."""
        return self._key.fold(stream)

    def close(self) -> None:
        """End: no further sum is made."""
        self._make = None


def copied(total: PartialSum) -> PartialSum:
    """Return a sum that a privatizer may use up while the raw one is still held."""
    return replace(total, total={name: _copy(tensor) for name, tensor in total.total.items()})


def _copy(tensor: Any) -> Any:
    return tensor.copy() if isinstance(tensor, np.ndarray) else tensor


def digest_of(total: PartialSum) -> bytes:
    """Return what tells one raw sum from another; secret like the sum."""
    found = sha256()
    for name, array in sorted(tree.to_dense(total.total).items()):
        found.update(f"{name} {array.dtype} {array.shape} {total.granularity}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()
