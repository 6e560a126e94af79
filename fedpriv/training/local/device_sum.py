"""The running sum of many users' bounded updates, on the device where they were made.

Only the sum leaves the device. It is float64 in either case: with a `granularity` every term is a
whole number of at most 2^24, and float64 adds whole numbers below 2^53 exactly, in any order; so
the sum is the integers that `fedpriv.sums.RunningSum` adds up, and handed out as such.

>>> import torch
>>> running = DeviceSum({"w": torch.zeros(3)}, granularity=0.5)
>>> running.add({"w": torch.tensor([[1.0, 0.7, -3.0], [9.0, 9.0, 9.0]])}, [1.0, 0.0])
[]
>>> running.result()["w"]
array([ 2,  1, -6], dtype=int32)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedpriv import tree
from fedpriv.sums import BITS, LONGEST

# float64 copies of updates that are made at a time.
_BYTES_AT_A_TIME = 1 << 26
_USERS_IN_INT32 = 2 ** (31 - BITS) - 1
_USERS_IN_FLOAT64 = 2 ** (53 - BITS)


def l2_norms(updates: Mapping[str, torch.Tensor]) -> list[float]:
    """Return every user's l2 norm over all its tensors, taken in float64 on the device.

    On the CPU each is the very number that `tree.l2_norm` gives; on a GPU it is that to float64's
    rounding. NaN and infinities propagate.

    Args:
        updates: float32 tensors `(users, *shape)`.
    """
    first = next(iter(updates.values()))
    if first.device.type == "cpu":
        arrays = {name: tensor.numpy() for name, tensor in updates.items()}
        return [tree.l2_norm({n: a[user] for n, a in arrays.items()}) for user in range(len(first))]
    return _norms_on_device(updates)


def _norms_on_device(updates: Mapping[str, torch.Tensor]) -> list[float]:
    first = next(iter(updates.values()))
    squares = torch.zeros(len(first), dtype=torch.float64, device=first.device)
    for user in range(len(first)):  # one by one: how a device adds depends on how many there are
        for tensor in updates.values():
            values = tensor[user].reshape(-1).double()
            squares[user] += torch.dot(values, values)
    # No square of a float32 overflows float64 or vanishes in it.
    return squares.sqrt().tolist()


class DeviceSum:
    """Adds many bounded updates at once, in place, on one device.

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

    def add(self, updates: Mapping[str, torch.Tensor], factors: Sequence[float]) -> list[int]:
        """Add `factors[u] * updates[u]` for every user u; return who was longer than its bound.

        Args:
            updates: float32 tensors `(users, *shape)`, finite where the factor is not 0. With a
                granularity, no coordinate of a product may exceed `2**BITS` granularities.
            factors: What the bound multiplies each update by; 0 leaves a user out, whatever its
                update holds.

        Returns:
            Positions of users who add nothing: with a granularity, those whose whole numbers are
            together longer than 2^24, compared without tolerance.
        """
        self._num_added += len(factors)
        assert self._num_added < _USERS_IN_FLOAT64, "more users than whole float64 numbers hold"
        divisor = 1.0 if self._granularity is None else self._granularity
        scales = np.asarray(factors, np.float64) / divisor
        taken = np.flatnonzero(scales)
        squared = self._add(updates, scales, taken)
        if self._granularity is None:
            return []
        beyond = taken[~(squared <= LONGEST)]
        if beyond.size:
            self._add(updates, -scales, beyond)  # to the bit: rounding to even is odd
        return beyond.tolist()

    def _add(
        self, updates: Mapping[str, torch.Tensor], scales: np.ndarray, taken: np.ndarray
    ) -> np.ndarray:
        """Add some users' products; return the sums of squares of their whole numbers."""
        squared = np.zeros(len(taken))
        for name, tensor in updates.items():
            kept = tensor if len(taken) == len(scales) else tensor[torch.from_numpy(taken)]
            factor = torch.from_numpy(scales[taken]).to(tensor.device)
            factor = factor.reshape(-1, *(1,) * (tensor.ndim - 1))
            for users in _blocks(kept):
                terms = kept[users].double().mul_(factor[users])
                if self._granularity is not None:
                    terms.round_()  # to even, as np.rint
                    beyond = ~(terms.abs() <= 2.0**BITS)
                    terms.masked_fill_(beyond, 0.0)
                    rows = len(terms)
                    found = terms.reshape(rows, -1).square().sum(dim=1)
                    found[beyond.reshape(rows, -1).any(dim=1)] = math.inf
                    squared[users] += found.cpu().numpy()
                self._total[name] += terms.sum(dim=0)
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
