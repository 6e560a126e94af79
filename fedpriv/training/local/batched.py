"""Batches of users that are trained at once: who shares one, its steps, and if users meet in it.

Users of one kind share a batch of slots. A kind, and how many slots its batches have, follow from
the model, the device and the user's *own* size alone. Empty slots, padding and users at their end
are computed too and thrown away, so that every user meets the same shapes whoever else is drawn,
and its update depends on it alone (`is_batch_invariant` tries that out on synthetic users).

How many slots: with few users a GPU waits for kernels to be launched, with many it computes blank
slots of a kind's last batch. `num_slots` takes as many as make a step's arithmetic last about as
long as its launches, from 4 to 32, so that blank slots cost no more than launches do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedpriv.rng import Key
from fedpriv.training.device_sum import Stacked, StackedRows
from fedpriv.training.failures import log_of_users
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.work import Users

_LOG = logging.getLogger(__name__)
# A GPU of today does it in about the time that launching a step's kernels takes, 50 to 100 us.
_FLOPS_OF_A_STEP = 2e9
_FEWEST_SLOTS, _MOST_SLOTS = 4, 32


def num_slots(flops: float, num_bytes: float, room: float) -> int:
    """Return how many users a batch has slots for: a power of two.

    Args:
        flops: Floating-point operations of one user's step.
        num_bytes: Memory that one user takes.
        room: Memory for all of them; fewer than 4 users where it holds no more.

    >>> num_slots(1e6, 1e3, 2e9), num_slots(2.5e8, 1e3, 2e9), num_slots(1e12, 1e3, 2e9)
    (32, 8, 4)
    >>> num_slots(1e6, 1.5e9, 2e9)
    1
    """
    wanted = min(max(_FLOPS_OF_A_STEP / max(flops, 1.0), _FEWEST_SLOTS), _MOST_SLOTS)
    return 1 << math.floor(math.log2(max(1.0, min(wanted, room / num_bytes))))


def power_of_two(number: int, most: int) -> int:
    """Return the least power of two that is at least a number, or `most` if that is less.

    >>> [power_of_two(n, 100) for n in (0, 1, 3, 64, 65, 500)]
    [0, 1, 4, 64, 100, 100]
    """
    return 0 if number == 0 else min(most, 1 << (number - 1).bit_length())


def batch_width(num_chosen: int, schedule: Schedule) -> int:
    """Return to how many examples a user's batches are padded.

    >>> schedule = Schedule(learning_rate=0.1, batch_size=100)
    >>> [batch_width(n, schedule) for n in (0, 1, 3, 64, 65, 500)]
    [0, 1, 4, 64, 100, 100]
    """
    return power_of_two(min(num_chosen, schedule.batch_size), schedule.batch_size)


#: Batch width, shape and dtype of an input, shape and dtype of a target.
Kind = tuple[int, tuple[int, ...], str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWork:
    """One user's chosen examples and the batch of every step.

    Attributes:
        examples: All its examples; None of a synthetic user.
        key: Its key of this round and attempt.
        x: Chosen inputs `(n, ...)`; `(n, most rows)` where the user has rows of its own.
        y: Chosen targets `(n, ...)`.
        batches: Positions among the chosen, one array a step.
        width: To how many examples its batches are padded; 0 without a step to take.
        rows: int64, the rows of a parameter that it trains; None for whole parameters.
    """

    examples: Any = field(repr=False)
    key: Key = field(repr=False)
    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    batches: Sequence[np.ndarray] = field(repr=False)
    width: int
    rows: np.ndarray | None = field(default=None, repr=False)

    @property
    def kind(self) -> Kind:
        """Key of the users that can share a batch; of its own size and the model alone."""
        x, y = self.x, self.y
        return self.width, x.shape[1:], str(x.dtype), y.shape[1:], str(y.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The steps of users of one kind, in the first slots.

    Attributes:
        index: int64 `(most steps, slots, width)`, positions of every step's batch. A shorter
            batch repeats its first example; a user at its end repeats its first of all.
        weight: float32 of that shape: 1/n for the n examples of a batch, 0 for padding.
        taken: bool `(most steps, slots)`, whose step it is.
    """

    index: torch.Tensor = field(repr=False)
    weight: torch.Tensor = field(repr=False)
    taken: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, works: Sequence[UserWork], slots: int, device: str | torch.device) -> Batches:
        """Return the steps of users on a device."""
        num_steps = max(len(work.batches) for work in works)
        index = np.zeros((num_steps, slots, works[0].width), np.int64)
        weight = np.zeros(index.shape, np.float32)
        taken = np.zeros((num_steps, slots), bool)
        for slot, work in enumerate(works):
            for step, batch in enumerate(work.batches):
                index[step, slot] = batch[0]
                index[step, slot, : len(batch)] = batch
                weight[step, slot, : len(batch)] = 1 / len(batch)
                taken[step, slot] = True
        return cls(
            index=torch.from_numpy(index).to(device),
            weight=torch.from_numpy(weight).to(device),
            taken=taken,
        )


#: From works in their slots to every slot's update.
Train = Callable[[Sequence[UserWork]], Stacked]
#: From a number, and `steps=` and `scale=`, to a synthetic user of a kind.
Synthetic = Callable[..., UserWork]

_STEPS = 3


def is_batch_invariant(train: Train, synthetic: Synthetic, slots: int) -> bool:
    """Return whether a synthetic user gets the same bits in every slot and any batch.

    It is trained in all slots at once, alone in the first, and in the first, a middle and the
    last one among others that take more steps and blow up. No user's data is looked at, so the
    answer is as public as the model.

    Args:
        train: Trains a batch; what it raises is logged, and a no.
        synthetic: Makes users of the kind that waits for the answer.
        slots: In a batch.
    """
    try:
        user = synthetic(0, steps=_STEPS - 1)
        others = [synthetic(n, steps=_STEPS, scale=10.0 ** (n % 7)) for n in range(1, slots + 1)]
        places = sorted({0, slots // 2, slots - 1})
        mixed = [user if slot in places else others[slot] for slot in range(slots)]
        expected = _bits(train([user] * slots))
        alone, among = _bits(train([user])), _bits(train(mixed))
    except Exception as error:
        end_if_interrupted(error)
        # The text is of synthetic users, but that this kind is tried reveals who was drawn.
        said = "users cannot be trained in a batch: %s: %s"
        log_of_users(_LOG, logging.WARNING, said, type(error).__name__, error)
        return False
    found = [*expected, alone[0], *(among[place] for place in places)]
    return all(np.array_equal(row, expected[0], equal_nan=True) for row in found)


def _bits(updates: Stacked) -> list[np.ndarray]:
    """Return every slot's bits, all tensors one after the other."""
    values = [t.values if isinstance(t, StackedRows) else t for t in updates.values()]
    flat = [t.flatten(1).cpu().numpy().view(np.uint32) for t in values]
    return list(np.concatenate(flat, axis=1))


def take_users(tensor: torch.Tensor | StackedRows, rows: list[int]) -> torch.Tensor | StackedRows:
    """Return the tensors of users in some slots."""
    if isinstance(tensor, StackedRows):
        return tensor.take(rows)
    return tensor[: len(rows)] if rows == list(range(len(rows))) else tensor[rows]


def by_size(users: Users, schedule: Schedule) -> list[str]:
    """Return users with like ones next to each other: a batch takes as many steps as its longest.

    They are counted, not looked at.
    """

    def size(user_id: str) -> int:
        try:
            if users.data is None:
                return 0
            return -min(users.data.num_examples(user_id), schedule.max_examples)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            end_if_interrupted(error)
            return 0  # its examples cannot be had either, which is said there

    return sorted(users.ids, key=size)
