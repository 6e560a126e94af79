"""The running sum of bounded updates: exact where the bound puts them on a grid.

With a `granularity`, every coordinate of an update is rounded to a whole multiple of it and the sum
is of integers: it does not depend on the order of the users, on who adds which of them, or on how
many processes do. Without one the sum is of float64 numbers, equal to rounding.

A bounded update never exceeds `2**BITS` times the granularity, so an int32 holds the sum of
`2**(31 - BITS) - 1` users; after as many the sum is carried over into int64, which holds that of
2^39 users.

>>> import numpy as np
>>> running = RunningSum({"w": np.zeros(3, np.float32)}, granularity=0.5)
>>> running.add({"w": np.array([1.0, 0.7, -3.0], np.float32)}, 1.0)
>>> running.result()["w"]
array([ 2,  1, -6], dtype=int32)
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeGuard

import numpy as np

from fedpriv import tree
from fedpriv.tree import Params, RowSparse, Tensor, Tree

BITS = 24
LONGEST = 2.0 ** (2 * BITS)
"""The square of a bound in granularities: no contribution's whole numbers have more together."""

_PLAIN = ("A", "C")  # aligned and contiguous, as compiled code wants its arrays
_USERS_IN_INT32 = 2 ** (31 - BITS) - 1
_USERS_IN_INT64 = 2 ** (63 - BITS) - 1


def most_each(num_coordinates: int) -> int:
    """Return how many granularities each of n equal coordinates within the bound has: ⌊2^24/√n⌋."""
    return math.isqrt((1 << 2 * BITS) // num_coordinates)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSum:
    """The sum of some users' bounded updates. Private: it leaves a round only through noise.

    Attributes:
        total: Tensors, dense or row-sparse, of the params' shapes: int32 or int64 multiples of
            `granularity`, or float64.
        num_users: How many users were asked.
        num_failed: How many of them contributed zero because they failed (a diagnostic).
        first_error: What the first of them raised: a line, then the traceback where the users'
            data are in this process; None of a secure run, or where it is not known.
        granularity: The grid's spacing; None for a sum of floats.
        l2_bound: By how much one contribution moves it at most, in l2, as those who bounded them
            says; infinite where no one does.
        absent: Why users contributed zero without an error of theirs; None as of `first_error`.
    """

    total: Mapping[str, Tensor] = field(repr=False)
    num_users: int
    num_failed: int = 0
    granularity: float | None = None
    first_error: str | None = field(default=None, repr=False)
    l2_bound: float = math.inf
    absent: str | None = field(default=None, repr=False)

    def compact(self) -> PartialSum:
        """Return the same sum with every tensor in the smaller of its two forms."""
        return replace(self, total={name: _smaller(t) for name, t in self.total.items()})

    def real(self) -> dict[str, Tensor]:
        """Return the sum itself, float64; multiples of the granularity are exact below 2^53."""
        factor = 1.0 if self.granularity is None else self.granularity
        return {name: _real(tensor, factor) for name, tensor in self.total.items()}


def _real(tensor: Tensor, factor: float) -> Tensor:
    if isinstance(tensor, RowSparse):
        values = np.multiply(tensor.values, factor, dtype=np.float64)
        return RowSparse(rows=tensor.rows, values=values, num_rows=tensor.num_rows)
    return np.multiply(tensor, factor, dtype=np.float64)


def _smaller(tensor: Tensor) -> Tensor:
    if isinstance(tensor, RowSparse) or tensor.size == 0 or tensor.ndim == 0:
        return tensor
    rows = np.flatnonzero(tensor.reshape(len(tensor), -1).any(axis=1))
    if len(rows) * (rows.itemsize + tensor[0].nbytes) >= tensor.nbytes:
        return tensor
    return RowSparse(rows=rows, values=tensor[rows], num_rows=len(tensor))


class Sum(Protocol):
    """Running sum to which bounded contributions are added."""

    def result(self) -> Mapping[str, np.ndarray]:
        """Return the sum, dense; nothing may be added afterwards."""
        ...


class BeyondBound(ValueError):
    """A contribution whose whole numbers are longer than its bound. Nothing of it was added."""


def beyond_bound() -> BeyondBound:
    """Return the error that says so."""
    return BeyondBound(
        f"a contribution on the grid is longer than its bound of 2^{BITS} granularities; add what "
        "`fedpriv.training.bounded_sum` has bounded"
    )


class RunningSum:
    """Adds bounded updates of one user, or of several at once, in place.

    Guarantees:
        * With a granularity no update is longer than 2^24 of them, l2, whatever bounded it: its
          whole numbers are squared and summed without rounding, and compared without tolerance.
        * With a granularity: the sum of `rint(factor * update / granularity)`, exactly, whatever
          the order.
        * What an update touches is all that adding it costs: rows of a row-sparse tensor, and no
          copy of any.
        * Several threads may add to it, one at a time.

    Args:
        template: Names and shapes.
        granularity: The grid's spacing; None sums float64 numbers.
    """

    def __init__(self, template: Params, granularity: float | None) -> None:
        self._granularity = granularity
        kind = np.float64 if granularity is None else np.int32
        self._total: dict[str, np.ndarray] = tree.zeros(template, kind)
        self._carried: dict[str, np.ndarray] | None = None
        self._since_carry = self._num_added = 0
        self._lock = threading.Lock()

    def add(self, update: Tree, factor: float) -> None:
        """Add `factor * update`, which a bound has already been applied to.

        Args:
            update: Finite float tensors of the template's names and shapes.
            factor: What the bound multiplies it by. With a granularity, no coordinate of the
                product may exceed `2**BITS` of it.

        Raises:
            BeyondBound: If it is longer than the bound that the grid was made for, or not finite;
                nothing is added then.
            ValueError: If names or shapes are others, or the integers cannot hold one user more;
                nothing is added then.
        """
        _check_shapes(self._total, update)
        if len(self.add_block({n: rows_of(t) for n, t in update.items()}, np.array([factor]))):
            raise beyond_bound()

    def add_block(
        self,
        tensors: Mapping[str, Block | np.ndarray],
        factors: np.ndarray,
        besides: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> np.ndarray:
        """Add several users' contributions times their factors, and what comes besides.

        Args:
            tensors: The template's tensors by name, float (users, ...), or rows of them; finite
                where the factor is not 0.
            factors: float64 (users,); 0 leaves a user out, whatever its rows hold.
            besides: The template's other tensors, float64 (users, ...), added as they are and
                bounded together with the rest.

        Returns:
            Positions of users whose whole numbers are together longer than the bound, compared
            without tolerance; nothing of them is added.

        Raises:
            ValueError: If names, shapes or widths are not the template's (nothing is added then),
                rows lie outside the sum, or the integers cannot hold so many users.
        """
        if {*tensors, *besides} != self._total.keys():
            named = sorted({*tensors, *besides})
            raise ValueError(f"tensors {named} do not add to a sum of {sorted(self._total)}")
        blocks = {name: self._block(name, given) for name, given in tensors.items()}
        others = {name: self._block(name, rows) for name, rows in besides.items()}
        found: list[np.ndarray] = []
        for first in range(0, len(factors), _USERS_IN_INT32):
            users = slice(first, first + _USERS_IN_INT32)
            here = np.ascontiguousarray(factors[users], np.float64)
            there = np.where(here != 0.0, 1.0, 0.0)
            parts = [(name, block.part(users), here) for name, block in blocks.items()]
            parts += [(name, block.part(users), there) for name, block in others.items()]
            parts = [part for part in parts if part[1].values.size]
            with self._lock:
                found.append(first + self._add(parts, len(here)))
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _add(self, parts: Sequence[tuple[str, Block, np.ndarray]], number: int) -> np.ndarray:
        """Add contributions of as many users as an int32 holds at most; see `add_block`."""
        from fedpriv.kernels.sums import add_whole_block

        squared, grid = np.zeros(number), self._granularity
        if grid is None:
            for name, block, factors in parts:
                _add_real(self._matrix(name, block), block, factors)
        else:
            check_users_fit(self._num_added + number)
            if self._since_carry + number > _USERS_IN_INT32:
                self._carry()
            for name, block, factors in parts:
                scales = factors / grid
                add_whole_block(self._matrix(name, block), *block, scales, squared)
        beyond = ~(squared <= LONGEST)
        if grid is not None and beyond.any():  # taken away again, to the bit: rint is odd
            nothing = np.zeros(number)
            for name, block, factors in parts:
                scales = np.where(beyond, -factors / grid, 0.0)
                add_whole_block(self._matrix(name, block), *block, scales, nothing)
        self._since_carry += number
        self._num_added += number
        return np.flatnonzero(beyond)

    def _block(self, name: str, given: Block | np.ndarray) -> Block:
        """Return rows of a tensor of the sum, or all of it, as a block.

        Raises:
            ValueError: If they are of another width or shape.
        """
        shape = self._total[name].shape
        if isinstance(given, np.ndarray):
            if given.shape[1:] != shape:
                raise ValueError(
                    f"tensor {name!r} of shape {given.shape[1:]} a user does not add to {shape}"
                )
            return dense_block(given)
        if given.values.shape[1:] != shape[1:]:
            raise ValueError(
                f"rows of shape {given.values.shape[1:]} do not add to tensor {name!r} of {shape}"
            )
        return given._replace(values=_float32_or_64(given.values))

    def _matrix(self, name: str, block: Block) -> np.ndarray:
        """Return a tensor of the sum as rows as wide as the block's."""
        return self._total[name].reshape(-1, block.values.shape[1])

    def _carry(self) -> None:
        if self._carried is None:
            self._carried = tree.zeros(self._total, np.int64)
        for name, total in self._total.items():
            self._carried[name] += total
            total.fill(0)
        self._since_carry = 0

    def result(self) -> dict[str, np.ndarray]:
        """Return the sum, dense; nothing may be added afterwards."""
        if self._carried is None:
            return self._total
        self._carry()
        return self._carried


def _check_shapes(expected: Tree, found: Tree) -> None:
    """Refuse tensors of other names or shapes, which broadcasting might take."""
    if expected.keys() != found.keys():
        raise ValueError(f"tensors {sorted(found)} do not add to a sum of {sorted(expected)}")
    for name, tensor in found.items():
        if tensor.shape != expected[name].shape:
            shape = expected[name].shape
            raise ValueError(f"tensor {name!r} of shape {tensor.shape} does not add to {shape}")


def check_users_fit(num_users: int) -> None:
    """Refuse an exact sum over more users than int64 holds, at `2**BITS` granularities a user.

    Raises:
        ValueError: If there are more. The sum would wrap around, and look like any other.
    """
    if num_users > _USERS_IN_INT64:
        raise ValueError(
            f"{num_users} users of up to 2^{BITS} granularities each do not fit in int64, "
            f"which holds {_USERS_IN_INT64}; draw a smaller cohort, or sum floats (exact-sum false)"
        )


class Block(NamedTuple):
    """Rows of one tensor of several users; a dense tensor is a single row.

    Attributes:
        rows: int64, one user after another; those of one user are distinct.
        starts: int64 (users + 1,), where each user's rows start.
        values: Float (rows, ...).
    """

    rows: np.ndarray
    starts: np.ndarray
    values: np.ndarray

    @property
    def owners(self) -> np.ndarray:
        """The position of each row's user."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def part(self, users: slice) -> Block:
        """Return a run of the users."""
        if len(self.starts) - 1 <= users.stop - users.start:
            return self
        starts = self.starts[users.start : users.stop + 1]
        rows = slice(starts[0], starts[-1])
        return Block(self.rows[rows], starts - starts[0], self.values[rows])


def _add_real(total: np.ndarray, block: Block, factors: np.ndarray) -> None:
    """Add `factor * values` of several users to rows of a float64 matrix."""
    if block.rows.size and not 0 <= block.rows.min() <= block.rows.max() < len(total):
        raise ValueError("a row lies outside the sum")
    each, width = np.repeat(factors, np.diff(block.starts)), total.shape[1]
    kept = np.flatnonzero(each)
    if len(total) == 1:  # dense tensors, perhaps of thousands of examples
        total[0] += each[kept] @ block.values[kept]
        return
    terms = each[kept, np.newaxis] * block.values[kept]
    places = block.rows[kept, np.newaxis] * width + np.arange(width)
    np.add.at(total.reshape(-1), places.reshape(-1), terms.reshape(-1))


def dense_block(values: np.ndarray) -> Block:
    """Return a dense tensor of several users, (users, ...)."""
    number = len(values)
    return Block(np.zeros(number, np.int64), np.arange(number + 1), _float32_or_64(values))


def rows_of(tensor: Tensor) -> Block | np.ndarray:
    """Return one user's tensor, or its rows, as of several users."""
    if not isinstance(tensor, RowSparse):
        return tensor[np.newaxis]
    rows = np.require(tensor.rows, np.int64, _PLAIN)
    return Block(rows, np.array([0, len(rows)]), tensor.values)


def _float32_or_64(values: np.ndarray) -> np.ndarray:
    """Return rows as a matrix that compiled code takes."""
    values = values.reshape(len(values), math.prod(values.shape[1:]))
    wanted = values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)
    return np.require(wanted, requirements=_PLAIN)


def add_sum(total: Mapping[str, np.ndarray], part: Mapping[str, Tensor]) -> None:
    """Add a partial sum's tensors into a dense sum of the same kind (or wider), in place.

    Raises:
        ValueError: If names or shapes are others.
    """
    _check_shapes(total, part)
    for name, tensor in part.items():
        if isinstance(tensor, RowSparse):
            total[name][tensor.validate().rows] += tensor.values
        else:
            np.add(total[name], tensor, out=total[name])


def merged(template: Tree, parts: Sequence[PartialSum], *, reuse: bool = False) -> PartialSum:
    """Return the sum of partial sums.

    Args:
        template: Names and shapes.
        parts: Of disjoint users, all on one grid or all without; one at least.
        reuse: Whether the parts are given up, so that one of them may become the sum in place.

    Raises:
        ValueError: If their grids, names or shapes differ, or the integers cannot hold so many
            users.
    """
    for part in parts:
        _check_shapes(template, part.total)
    grids = {part.granularity for part in parts}
    if len(grids) > 1:
        raise ValueError(f"partial sums on different grids {sorted(map(str, grids))} do not add up")
    [granularity] = grids
    num_users = sum(part.num_users for part in parts)
    kind: type[np.generic] = np.float64
    if granularity is not None:
        check_users_fit(num_users)
        kind = np.int32 if num_users <= _USERS_IN_INT32 else np.int64
    total: dict[str, np.ndarray] = {}
    for name in template:
        tensors = sorted((part.total[name] for part in parts), key=_is_sparse)
        # The first becomes the sum to add to; a dense one, if there is any.
        if reuse and _is_own(tensors[0], kind):
            total[name] = tensors[0]
        else:
            total[name] = _copied(tensors[0], kind)
        for tensor in tensors[1:]:
            add_sum({name: total[name]}, {name: tensor})
    return PartialSum(
        total=total,
        num_users=num_users,
        num_failed=sum(part.num_failed for part in parts),
        granularity=granularity,
        first_error=next(filter(None, (part.first_error for part in parts)), None),
        l2_bound=max(part.l2_bound for part in parts),
    )


def _is_sparse(tensor: Tensor) -> bool:
    return isinstance(tensor, RowSparse)


def _is_own(tensor: Tensor, kind: type[np.generic]) -> TypeGuard[np.ndarray]:
    return isinstance(tensor, np.ndarray) and tensor.dtype == kind and tensor.flags.writeable


def _copied(tensor: Tensor, kind: type[np.generic]) -> np.ndarray:
    """Return a dense copy: a partial sum is a value, and may be a read-only view."""
    if isinstance(tensor, RowSparse):
        dense = np.zeros(tensor.shape, kind)
        dense[tensor.rows] = tensor.values
        return dense
    return tensor.astype(kind)
