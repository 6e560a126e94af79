"""Sums of many users' bounded updates on one device, which only the sum leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import torch

from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.sums import BITS, LONGEST
from fedpriv.training.bounded_sum import Stack
from fedpriv.tree import Params

# float64 copies of updates that are made at a time.
_BYTES_AT_A_TIME = 1 << 26
_USERS_IN_INT32 = 2 ** (31 - BITS) - 1
_USERS_IN_FLOAT64 = 2 ** (53 - BITS)


Tensors = Mapping[str, torch.Tensor]
_NO_ROWS: Tensors = MappingProxyType({})


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
        updates: Tensors,
        factors: Sequence[float] | np.ndarray,
        besides: Mapping[str, np.ndarray] = MappingProxyType({}),
        rows: Tensors = _NO_ROWS,
    ) -> list[int]:
        """Add `factors[u] * updates[u]` for every user u; return who was longer than its bound.

        Args:
            updates: Of as many users, finite where the factor is not 0. With a granularity, no
                coordinate of a product may exceed `2**BITS` granularities.
            factors: What the bound multiplies each update by; 0 leaves a user out, whatever its
                update holds.
            besides: float64 (users, ...) by name, added as they are; bounded with the updates.
            rows: As of `DeviceStack`.

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
        squared = self._add(updates, scales, taken, rows) + self._add(others, units, taken)
        if self._granularity is None:
            return []
        beyond = taken[~(squared <= LONGEST)]
        if beyond.size:
            self._add(updates, -scales, beyond, rows)  # to the bit: rounding to even is odd
            self._add(others, -units, beyond)
        return beyond.tolist()

    def _add(
        self, updates: Tensors, scales: np.ndarray, taken: np.ndarray, rows: Tensors = _NO_ROWS
    ) -> np.ndarray:
        """Add some users' products; return the sums of squares of their whole numbers."""
        squared = np.zeros(len(taken))
        for name, tensor in updates.items():
            kept, stored = tensor, rows.get(name)
            if len(taken) < len(scales):
                index = torch.from_numpy(taken).to(tensor.device)
                kept, stored = kept[index], None if stored is None else stored[index]
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
                if stored is None:
                    self._total[name] += terms.sum(dim=0)
                else:
                    own = stored[users].flatten()
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
        updates: Float (users, *shape) by name, of what is in `rows` (users, r, *tail); they may
            hold numbers that are not finite.
        rows: int64 (users, r) by name, of a tensor that is mostly zero: which rows are meant. A
            user's own rows are all different, and others have values of 0.
    """

    updates: Tensors = field(repr=False)
    rows: Tensors = field(default_factory=dict, repr=False)

    def take(self, users: Sequence[int]) -> DeviceStack:
        """Return some of the users, in this order."""
        index = torch.tensor(
            users, dtype=torch.int64, device=next(iter(self.updates.values())).device
        )
        return DeviceStack(
            {name: tensor[index] for name, tensor in self.updates.items()},
            {name: rows[index] for name, rows in self.rows.items()},
        )

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> DeviceStack:
        return replace(self, updates={name: change(t) for name, t in self.updates.items()})

    def mixed(self, mixture: Mixture) -> DeviceStack:
        """Return own · Δ + offset, dense."""
        found: dict[str, torch.Tensor] = {}
        for name, tensor in self.updates.items():
            offset, users = on_device(tensor.device, mixture.offset[name]), len(tensor)
            if name in self.rows:
                found[name] = offset.repeat(users, *(1,) * offset.ndim)
                whose = torch.arange(users, device=tensor.device).unsqueeze(1)
                place = (whose, self.rows[name])
                found[name].index_put_(place, mixture.own * tensor, accumulate=True)
            else:
                found[name] = tensor * mixture.own + offset
        return DeviceStack(found)

    def times(self, multiplier: Params) -> DeviceStack:
        """Return the contributions times factors by name, float32."""
        found = dict(self.updates)
        for name in found.keys() & multiplier.keys():
            tensor, rows = found[name], self.rows.get(name)
            factor = on_device(tensor.device, np.asarray(multiplier[name], np.float32))
            if rows is not None and factor.ndim == tensor.ndim - 1 and len(factor) > 1:
                factor = factor[rows]
            found[name] = tensor * factor
        return replace(self, updates=found)

    def limited(self, low: float, high: float) -> DeviceStack:
        """Return every coordinate within limits, float64; what is not finite stays so."""
        return self._each(lambda t: torch.where(t.isfinite(), t.double().clamp(low, high), t))

    def multiples_of(self, spacing: float) -> DeviceStack:
        """Return every coordinate rounded."""
        return self._each(lambda t: ((t.double() / spacing).round_() * spacing).to(t.dtype))

    def norms(self) -> np.ndarray:
        """Return the norms, taken in float64: no square of a float32 overflows or vanishes."""
        first = next(iter(self.updates.values()))
        squares = torch.zeros(len(first), dtype=torch.float64, device=first.device)
        for user in range(len(first)):  # one by one: how a device adds depends on how many
            for tensor in self.updates.values():
                values = tensor[user].reshape(-1).double()
                squares[user] += torch.dot(values, values)
        return squares.sqrt().cpu().numpy()

    def add_to(
        self, total: DeviceSum, factors: np.ndarray, besides: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Add the contributions."""
        return np.array(total.add(self.updates, factors, besides, self.rows), np.int64)


def on_device(device: torch.device, array: np.ndarray) -> torch.Tensor:
    """Return a copy of an array on a device."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
