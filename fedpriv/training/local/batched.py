"""Batches of users that are trained at once: who shares one, its steps, and if users meet in it.

Users of one kind share a batch of slots. A kind, and how many slots its batches have, follow from
the model, the device and the user's *own* size alone. Empty slots, padding and users at their end
are computed too and thrown away, so that every user meets the same shapes in any cohort,
and its update depends on it alone (`is_batch_invariant` tries that out on synthetic users).

How many slots: with few users a GPU waits for kernels to be launched, with many it computes blank
slots of a kind's last batch. `num_slots` takes as many as make a step's arithmetic last about as
long as its launches, from 4 to 32, so that blank slots cost no more than launches do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedpriv.rng import Key
from fedpriv.training.device_sum import Tensors
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


Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Inputs, targets and weights of a step, and whose it is; None if everybody's."""


def steps_of(works: Sequence[UserWork], slots: int, device: torch.device) -> Iterator[Step]:
    """Yield the steps of users of one kind, in the first slots.

    A shorter batch repeats its first example, of weight 0; the others' weight is 1/n. A user at its
    end repeats its first example of all.
    """
    num_steps = max(len(work.batches) for work in works)
    index = np.zeros((num_steps, slots, works[0].width), np.int64)
    weight, taken = np.zeros(index.shape, np.float32), np.zeros((num_steps, slots), bool)
    for slot, work in enumerate(works):
        for step, batch in enumerate(work.batches):
            index[step, slot] = batch[0]
            index[step, slot, : len(batch)] = batch
            weight[step, slot, : len(batch)] = 1 / len(batch)
            taken[step, slot] = True
    x = _padded([work.x for work in works], slots)
    y = _padded([work.y for work in works], slots)
    x, y, index, weight = (torch.from_numpy(array).to(device) for array in (x, y, index, weight))
    places = torch.arange(slots, device=device).unsqueeze(1)
    for batch, share, own in zip(index, weight, taken, strict=True):
        whose = None if own.all() else torch.from_numpy(own).to(device)
        yield x[places, batch], y[places, batch], share, whose


def _padded(arrays: Sequence[np.ndarray], slots: int) -> np.ndarray:
    """Return arrays of different lengths as one, with zeros behind the shorter ones."""
    first = arrays[0]
    out = np.zeros((slots, max(map(len, arrays)), *first.shape[1:]), first.dtype)
    for row, array in zip(out, arrays, strict=False):
        row[: len(array)] = array
    return out


#: From works in their slots to every slot's update.
Train = Callable[[Sequence[UserWork]], Tensors]
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


def _bits(updates: Tensors) -> list[np.ndarray]:
    """Return every slot's bits, all tensors one after the other."""
    flat = [t.flatten(1).cpu().numpy().view(np.uint32) for t in updates.values()]
    return list(np.concatenate(flat, axis=1))


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
