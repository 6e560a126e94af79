"""Sums of many users' bounded updates on one device, which only the sum leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import torch

from fedpriv import tree
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.sums import BITS, LONGEST
from fedpriv.training.bounded_sum import Stack
from fedpriv.tree import Params

# float64 copies of updates that are made at a time.
_BYTES_AT_A_TIME = 1 << 26
_USERS_IN_INT32 = 2 ** (31 - BITS) - 1
_USERS_IN_FLOAT64 = 2 ** (53 - BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedRows:
    """Row-sparse tensors of many users, with as many stored rows of each.

    Attributes:
        rows: int64 `(users, most rows)`; a user's own rows first, then any.
        values: float32 `(users, most rows, *tail)`, zeros behind a user's own rows.
        counts: How many rows are each user's own, all different.
        num_rows: Length of the first axis of the tensors that are meant.
    """

    rows: torch.Tensor = field(repr=False)
    values: torch.Tensor = field(repr=False)
    counts: Sequence[int] = field(repr=False)
    num_rows: int

    def __len__(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        """Device that holds the values."""
        return self.values.device

    def own(self, user: int) -> torch.Tensor:
        """Return the values of one user's rows, `(rows, *tail)`."""
        return self.values[user, : self.counts[user]]

    def take(self, users: Sequence[int]) -> StackedRows:
        """Return some of the users, in this order."""
        index = torch.tensor(users, dtype=torch.int64, device=self.device)
        return StackedRows(
            rows=self.rows[index],
            values=self.values[index],
            counts=[self.counts[user] for user in users],
            num_rows=self.num_rows,
        )

    def dense(self) -> torch.Tensor:
        """Return the users' tensors with all rows, `(users, num_rows, *tail)`."""
        shape = (len(self), self.num_rows, *self.values.shape[2:])
        found = torch.zeros(shape, dtype=self.values.dtype, device=self.device)
        for user, count in enumerate(self.counts):
            found[user, self.rows[user, :count]] = self.own(user)
        return found


Stacked = Mapping[str, torch.Tensor | StackedRows]
"""Tensors of many users by name: float32 `(users, *shape)`, or their rows."""


def own_values(tensor: torch.Tensor | StackedRows, user: int) -> torch.Tensor:
    """Return what a tensor stores of one user."""
    return tensor.own(user) if isinstance(tensor, StackedRows) else tensor[user]


def multiplied(tensors: Stacked, multiplier: Mapping[str, torch.Tensor]) -> Stacked:
    """Return users' tensors times float32 factors, which broadcast against each from its end.

    Of stored rows those of a factor with as many rows are picked, as `fedpriv.tree.multiply` does.
    """
    found: dict[str, torch.Tensor | StackedRows] = dict(tensors)
    for name, factor in multiplier.items():
        tensor = tensors[name]
        if not isinstance(tensor, StackedRows):
            found[name] = tensor * factor
            continue
        picked = factor[tensor.rows] if len(factor) == tensor.num_rows else factor
        found[name] = replace(tensor, values=tensor.values * picked)
    return found


def l2_norms(updates: Stacked) -> list[float]:
    """Return every user's l2 norm over all its tensors, taken in float64 on the device.

    On the CPU each is the very number that `tree.l2_norm` gives; on a GPU it is that to float64's
    rounding. NaN and infinities propagate.

    Args:
        updates: Every user's.
    """
    first = next(iter(updates.values()))
    if first.device.type == "cpu":
        return [
            tree.l2_norm({n: own_values(t, user).numpy() for n, t in updates.items()})
            for user in range(len(first))
        ]
    return _norms_on_device(updates)


def _norms_on_device(updates: Stacked) -> list[float]:
    first = next(iter(updates.values()))
    squares = torch.zeros(len(first), dtype=torch.float64, device=first.device)
    for user in range(len(first)):  # one by one: how a device adds depends on how many there are
        for tensor in updates.values():
            values = own_values(tensor, user).reshape(-1).double()
            squares[user] += torch.dot(values, values)
    # No square of a float32 overflows float64 or vanishes in it.
    return squares.sqrt().tolist()


class DeviceSum:
    """Adds many bounded updates at once, in place, on one device, which only the sum leaves.

    It is float64 in either case: with a granularity every term is a whole number of at most 2^24,
    and float64 adds whole numbers below 2^53 exactly, in any order; so the sum is the integers that
    `fedpriv.sums.RunningSum` adds up, and handed out as such.

    Guarantees:
        * With a granularity: the sum of `rint(factor * update / granularity)`, exactly, whatever
          the order and however the users are put together.
        * Apart from the sum it takes no more than 64 MiB, or two updates where one is larger.

    Args:
        template: Names, shapes and device.
        granularity: The grid's spacing; None sums float64 numbers.
    """

    def __init__(self, template: Mapping[str, torch.Tensor], granularity: float | None) -> None:
        self._granularity = granularity
        self._total = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in template.items()}
        self._num_added = 0

    def add(
        self,
        updates: Stacked,
        factors: Sequence[float] | np.ndarray,
        besides: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> list[int]:
        """Add `factors[u] * updates[u]` for every user u; return who was longer than its bound.

        Args:
            updates: Of as many users, finite where the factor is not 0. With a granularity, no
                coordinate of a product may exceed `2**BITS` granularities.
            factors: What the bound multiplies each update by; 0 leaves a user out, whatever its
                update holds.
            besides: float64 (users, ...) by name, added as they are; bounded with the updates.

        Returns:
            Positions of users who add nothing: with a granularity, those whose whole numbers are
            together longer than 2^24, compared without tolerance.
        """
        self._num_added += len(factors)
        assert self._num_added < _USERS_IN_FLOAT64, "more users than whole float64 numbers hold"
        divisor = 1.0 if self._granularity is None else self._granularity
        scales = np.asarray(factors, np.float64) / divisor
        taken = np.flatnonzero(scales)
        units = np.full(len(scales), 1.0 / divisor)
        first = next(iter(self._total.values()))
        others = {name: on_device(first.device, rows) for name, rows in besides.items()}
        squared = self._add(updates, scales, taken) + self._add(others, units, taken)
        if self._granularity is None:
            return []
        beyond = taken[~(squared <= LONGEST)]
        if beyond.size:
            self._add(updates, -scales, beyond)  # to the bit: rounding to even is odd
            self._add(others, -units, beyond)
        return beyond.tolist()

    def _add(self, updates: Stacked, scales: np.ndarray, taken: np.ndarray) -> np.ndarray:
        """Add some users' products; return the sums of squares of their whole numbers."""
        squared = np.zeros(len(taken))
        for name, tensor in updates.items():
            everybody, rows = len(taken) == len(scales), None
            if isinstance(tensor, StackedRows):
                tensor = tensor if everybody else tensor.take(taken.tolist())
                kept, rows = tensor.values, tensor.rows
            else:
                kept = tensor if everybody else tensor[torch.from_numpy(taken).to(tensor.device)]
            factor = torch.from_numpy(scales[taken]).to(kept.device)
            factor = factor.reshape(-1, *(1,) * (kept.ndim - 1))
            for users in _blocks(kept):
                terms = kept[users].double() * factor[users]
                if self._granularity is not None:
                    terms.round_()  # to even, as np.rint
                    beyond = ~(terms.abs() <= 2.0**BITS)
                    terms.masked_fill_(beyond, 0.0)
                    found = terms.flatten(1).square().sum(dim=1)
                    found[beyond.flatten(1).any(dim=1)] = math.inf
                    squared[users] += found.cpu().numpy()
                if rows is None:
                    self._total[name] += terms.sum(dim=0)
                else:
                    own = rows[users].flatten()
                    self._total[name].index_add_(0, own, terms.flatten(0, 1))
        return squared

    def result(self) -> dict[str, np.ndarray]:
        """Return the sum off the device: float64, or int32 or int64 multiples of granularity."""
        kind = torch.float64
        if self._granularity is not None:
            kind = torch.int32 if self._num_added <= _USERS_IN_INT32 else torch.int64
        return {name: total.to(kind).cpu().numpy() for name, total in self._total.items()}


def _blocks(tensor: torch.Tensor) -> list[slice]:
    """Return slices of users whose float64 copies together stay small."""
    if not len(tensor):
        return []
    size = max(1, _BYTES_AT_A_TIME // max(1, 8 * tensor[0].numel()))
    return [slice(start, start + size) for start in range(0, len(tensor), size)]


@dataclass(frozen=True, slots=True)
class DeviceStack(Stack):
    """Contributions of several users on one device.

    Attributes:
        updates: Of every user; they may hold numbers that are not finite.
    """

    updates: Stacked = field(repr=False)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> DeviceStack:
        return DeviceStack(
            {
                name: replace(tensor, values=change(tensor.values))
                if isinstance(tensor, StackedRows)
                else change(tensor)
                for name, tensor in self.updates.items()
            }
        )

    def mixed(self, mixture: Mixture) -> DeviceStack:
        """Return own · Δ + offset, dense."""
        own = mixture.own
        return DeviceStack(
            {
                name: (t.dense() if isinstance(t, StackedRows) else t) * own
                + on_device(t.device, mixture.offset[name])
                for name, t in self.updates.items()
            }
        )

    def times(self, multiplier: Params) -> DeviceStack:
        """Return the contributions times factors by name, float32."""
        factors = {
            name: on_device(tensor.device, np.asarray(multiplier[name], np.float32))
            for name, tensor in self.updates.items()
            if name in multiplier
        }
        return DeviceStack(multiplied(self.updates, factors))

    def limited(self, low: float, high: float) -> DeviceStack:
        """Return every coordinate within limits, float64; what is not finite stays so."""
        return self._each(lambda t: torch.where(t.isfinite(), t.double().clamp(low, high), t))

    def multiples_of(self, spacing: float) -> DeviceStack:
        """Return every coordinate rounded."""
        return self._each(lambda t: ((t.double() / spacing).round_() * spacing).to(t.dtype))

    def norms(self) -> np.ndarray:
        """Return the norms."""
        return np.array(l2_norms(self.updates))

    def add_to(
        self, total: DeviceSum, factors: np.ndarray, besides: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Add the contributions."""
        return np.array(total.add(self.updates, factors, besides), np.int64)


def on_device(device: torch.device, array: np.ndarray) -> torch.Tensor:
    """Return a copy of an array on a device."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
