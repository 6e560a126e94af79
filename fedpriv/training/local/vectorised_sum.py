"""`partial_sum` for users that are trained many at once: only their sum leaves the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fedpriv import tree
from fedpriv.mechanisms.bounds import Bound, scaling_factor
from fedpriv.rng import Key
from fedpriv.sums import PartialSum, beyond_bound
from fedpriv.training.failures import contributes_zero
from fedpriv.training.local.device_sum import DeviceSum, l2_norms
from fedpriv.training.local.module import ModuleTrainer
from fedpriv.training.local.padded_users import batch_width
from fedpriv.training.stopping import end_if_interrupted, stop_if_asked
from fedpriv.tree import Params


class Users(Protocol):
    """Examples by user, as `fedpriv.training.work.UserData`."""

    def examples(self, user_id: str) -> Any:
        """Return the user's training examples."""
        ...

    def num_examples(self, user_id: str) -> int:
        """Return how many there are."""
        ...


class Together(Protocol):
    """A trainer of many users at once, as `VectorisedTrainer`."""

    @property
    def alone(self) -> ModuleTrainer:
        """What trains a single user."""
        ...

    @property
    def users_at_once(self) -> int:
        """How many are trained together."""
        ...

    def train_many(
        self,
        start: Mapping[str, torch.Tensor],
        examples: Sequence[Any],
        keys: Sequence[Key],
        *,
        batch_invariant: bool = True,
    ) -> Any:
        """Return every user's update."""
        ...


def vectorised_partial_sum(
    *,
    params: Params,
    bound: Bound,
    trainer: Together,
    data: Users,
    user_ids: Sequence[str],
    key: Key,
) -> PartialSum:
    """Train users in chunks, bound each update, and return one unweighted sum.

    Arguments and guarantees are those of `fedpriv.training.work.Work`: each user moves the
    sum by at most `bound.l2_bound`, and one that fails contributes zero, alone. The params are
    copied to the device once, the examples chunk by chunk, and an update never leaves it.

    Under a bound users are trained side by side only where that is known not to move a bit of
    anybody's update: else one user would move the sum by what it contributes *and* by what it did
    to its batch, of which steep local training can make more than the bound.
    """
    batch_invariant = not math.isinf(bound.l2_bound)
    start = trainer.alone.start(params)
    multiplier = {n: _float32(trainer, m) for n, m in bound.multiplier.items() if n in start}
    mixture = bound.mixture
    offsets = {} if mixture is None else trainer.alone.start(dict(mixture.offset))
    num_elements = tree.num_elements(params)
    running, failed = DeviceSum(start, bound.granularity), 0
    for chunk in _chunks(_by_size(data, user_ids, trainer), trainer.users_at_once):
        examples, keys = [], []
        stop_if_asked()
        for user_id in chunk:
            try:
                examples.append(data.examples(user_id))
                keys.append(key.fold(user_id))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                contributes_zero(error)
                failed += 1
        if not examples:
            continue
        updates = trainer.train_many(start, examples, keys, batch_invariant=batch_invariant)
        if mixture is not None:
            for name, offset in offsets.items():
                updates.tensors[name].mul_(mixture.own).add_(offset)
        for name, factor in multiplier.items():
            updates.tensors[name].mul_(factor)
        factors = []
        for row, norm in enumerate(l2_norms(updates.tensors)):
            factor = 0.0
            if row in updates.failed:
                failed += 1
            else:
                try:
                    factor = scaling_factor(bound, norm, num_elements)
                except ValueError as error:
                    contributes_zero(error)
                    failed += 1
            factors.append(factor)
        for _ in running.add(updates.tensors, factors):
            contributes_zero(beyond_bound())
            failed += 1
    return PartialSum(
        total=running.result(),
        num_users=len(user_ids),
        num_failed=failed,
        granularity=bound.granularity,
    )


def _float32(trainer: Together, multiplier: np.ndarray) -> torch.Tensor:
    """Return a multiplier on the device, in the dtype in which `tree.multiply` multiplies."""
    return trainer.alone.on_device(np.asarray(multiplier, np.float32))


def _chunks(user_ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(user_ids), size):
        yield user_ids[start : start + size]


def _by_size(data: Users, user_ids: Sequence[str], trainer: Together) -> list[str]:
    """Return users with like ones next to each other, so that chunks are full."""

    def size(user_id: str) -> tuple[int, int]:
        schedule = trainer.alone.schedule
        try:
            num = min(data.num_examples(user_id), schedule.max_examples)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            end_if_interrupted(error)
            num = 0  # its examples cannot be had either, which is said there
        return -batch_width(num, schedule), -num

    return sorted(user_ids, key=size)
