"""Sums of many users' bounded updates on one device, which only the sum leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch

from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.sums import BITS, LONGEST
from fedpriv.training.bounded_sum import Stack
from fedpriv.tree import Params

_USERS_IN_INT32 = 2 ** (31 - BITS) - 1
_USERS_IN_FLOAT64 = 2 ** (53 - BITS)

Tensors = Mapping[str, torch.Tensor]


class DeviceSum:
    """Adds bounded updates, in place, on one device, which only the sum leaves.

    It is float64 in either case: with a granularity every term is a whole number of at most 2^24,
    and float64 adds whole numbers below 2^53 exactly, in any order; so the sum is the integers that
    `fedpriv.sums.RunningSum` adds up, and handed out as such.

    Guarantees:
        * With a granularity: the sum of `rint(factor * update / granularity)`, exactly, whatever
          the order and however the users are put together.
        * Apart from the sum it takes no more than two float64 copies of one update.

    Args:
        template: Names, shapes and device.
        granularity: The grid's spacing; None sums float64 numbers.
    """

    def __init__(self, template: Tensors, granularity: float | None) -> None:
        self._granularity = granularity
        self._total = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in template.items()}
        self._num_added = 0

    def add(
        self,
        updates: Tensors,
        factors: Sequence[float] | np.ndarray,
        besides: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> list[int]:
        """Add `factors[u] * updates[u]` for every user u; return who was longer than its bound.

        Args:
            updates: Of as many users, finite where the factor is not 0.
            factors: What the bound multiplies each update by; 0 leaves a user out, whatever its
                update holds.
            besides: float64 (users, ...) by name, added as they are; bounded with the updates.

        Returns:
            Positions of users who add nothing: with a granularity, those whose whole numbers are
            together longer than 2^24, compared without tolerance.
        """
        self._num_added += len(factors)
        assert self._num_added < _USERS_IN_FLOAT64, "more users than whole float64 numbers hold"
        grid, beyond = self._granularity, list[int]()
        unit = 1.0 if grid is None else grid
        device = next(iter(self._total.values())).device
        others = {name: on_device(device, rows) for name, rows in besides.items()}
        for user in np.flatnonzero(factors).tolist():
            terms = {n: t[user].double() * (factors[user] / unit) for n, t in updates.items()}
            terms |= {n: rows[user] * (1.0 / unit) for n, rows in others.items()}
            if grid is not None:
                squares = [term.round_().square().sum() for term in terms.values()]  # as np.rint
                if not sum(squares) <= LONGEST:
                    beyond.append(user)
                    continue
            for name, term in terms.items():
                self._total[name] += term
        return beyond

    def result(self) -> dict[str, np.ndarray]:
        """Return the sum off the device: float64, or int32 or int64 multiples of granularity."""
        kind = torch.float64
        if self._granularity is not None:
            kind = torch.int32 if self._num_added <= _USERS_IN_INT32 else torch.int64
        return {name: total.to(kind).cpu().numpy() for name, total in self._total.items()}


@dataclass(frozen=True, slots=True)
class DeviceStack(Stack):
    """Contributions of several users on one device.

    Attributes:
        updates: Float (users, *shape) by name; they may hold numbers that are not finite.
    """

    updates: Tensors = field(repr=False)

    def _each(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> DeviceStack:
        return DeviceStack({name: change(name, t) for name, t in self.updates.items()})

    def take(self, users: Sequence[int]) -> DeviceStack:
        """Return some of the users, in this order."""
        return self._each(lambda _, t: t[torch.tensor(users, dtype=torch.int64, device=t.device)])

    def mixed(self, mixture: Mixture) -> DeviceStack:
        """Return own · Δ + offset."""
        return self._each(
            lambda name, t: t * mixture.own + on_device(t.device, mixture.offset[name])
        )

    def times(self, multiplier: Params) -> DeviceStack:
        """Return the contributions times factors by name, float32."""
        factors = {name: np.asarray(array, np.float32) for name, array in multiplier.items()}
        return self._each(
            lambda name, t: t * on_device(t.device, factors[name]) if name in factors else t
        )

    def limited(self, low: float, high: float) -> DeviceStack:
        """Return every coordinate within limits, float64; what is not finite stays so."""
        return self._each(lambda _, t: torch.where(t.isfinite(), t.double().clamp(low, high), t))

    def multiples_of(self, spacing: float) -> DeviceStack:
        """Return every coordinate rounded."""
        return self._each(lambda _, t: ((t.double() / spacing).round_() * spacing).to(t.dtype))

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
        return np.array(total.add(self.updates, factors, besides), np.int64)


def on_device(device: torch.device, array: np.ndarray) -> torch.Tensor:
    """Return a copy of an array on a device."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
