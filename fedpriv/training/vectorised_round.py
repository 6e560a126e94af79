"""`partial_sum` for users that are trained many at once: only their sum leaves the device."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fedpriv import tree
from fedpriv.mechanisms.bound import Bound, allowed_length
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.device_sum import DeviceSum, l2_norms
from fedpriv.training.vectorised import VectorisedTrainer
from fedpriv.tree import Params

_LOG = logging.getLogger(__name__)


class _Users(Protocol):
    def examples(self, user_id: str) -> Any: ...


def vectorised_partial_sum(
    *,
    params: Params,
    bound: Bound,
    trainer: VectorisedTrainer,
    data: _Users,
    user_ids: Sequence[str],
    key: Key,
) -> PartialSum:
    """Train users in chunks, bound each update, and return one unweighted sum.

    Arguments and guarantees are those of `fedpriv.training.round.partial_sum`: each user moves the
    sum by at most `bound.l2_bound`, and one that fails contributes zero, alone. The params are
    copied to the device once, the examples chunk by chunk, and an update never leaves it.

    Under a bound every chunk is one user. What a user shares a chunk with changes the last bits of
    what it learns, and steep local training can make of such bits more than the bound: then one
    user would move the sum by what it contributes *and* by what it did to its company.
    """
    at_once = trainer.users_at_once if math.isinf(bound.l2_bound) else 1
    start = trainer.alone.start(params)
    multiplier = {n: _float32(trainer, m) for n, m in bound.multiplier.items() if n in start}
    num_elements = tree.num_elements(params)
    running, failed = DeviceSum(start, bound.unit), 0
    for chunk in _chunks(user_ids, at_once):
        examples, keys = [], []
        for user_id in chunk:
            try:
                examples.append(data.examples(user_id))
                keys.append(key.fold(user_id))
            except (Exception, SystemExit) as error:
                failed += _refused(error)
        if not examples:
            continue
        updates = trainer.train_many(start, examples, keys)
        for name, factor in multiplier.items():
            updates.tensors[name].mul_(factor)
        factors = []
        for row, norm in enumerate(l2_norms(updates.tensors)):
            factor = 0.0
            if row in updates.failed:
                failed += 1
            else:
                try:
                    factor = _factor(bound, norm, num_elements)
                except ValueError as error:
                    failed += _refused(error)
            factors.append(factor)
        running.add(updates.tensors, factors)
    return PartialSum(
        total=running.result(), num_users=len(user_ids), num_failed=failed, unit=bound.unit
    )


def _factor(bound: Bound, norm: float, num_elements: int) -> float:
    """Return what an update of this norm is multiplied by, as `mechanisms.bound.scaled`."""
    if norm == 0.0:
        return 0.0
    return allowed_length(bound, norm, num_elements) / norm


def _float32(trainer: VectorisedTrainer, multiplier: np.ndarray) -> torch.Tensor:
    """Return a multiplier on the device, in the dtype in which `tree.multiply` multiplies."""
    return trainer.alone.on_device(np.asarray(multiplier, np.float32))


def _chunks(user_ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(user_ids), size):
        yield user_ids[start : start + size]


def _refused(error: BaseException) -> int:
    # The text of an error may hold a user's data: only its kind is worth a warning.
    _LOG.warning("a user contributes zero: %s", type(error).__name__)
    _LOG.debug("why it does", exc_info=True)
    return 1
