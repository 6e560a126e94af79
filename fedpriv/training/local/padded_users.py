"""Users of different sizes side by side, in a shape that depends on none of the others.

A chunk has a fixed number of slots, filled or not, and every batch in it a fixed width. Which
kernels run, and in which order they add, depends on these shapes; so a user must find the same
ones whatever its batch is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedpriv.rng import Key
from fedpriv.training.local.dtypes import model_inputs, model_targets
from fedpriv.training.local.trainer import Schedule

#: Batch width, shape and dtype of an input, shape and dtype of a target.
Kind = tuple[int, tuple[int, ...], str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one user is going to do: its chosen examples and the batch of every step.

    Attributes:
        user: Which of the users given it is.
        examples: All its examples.
        key: Its key of this round and attempt.
        x: Chosen inputs `(n, ...)`.
        y: Chosen targets `(n, ...)`.
        batches: Positions among the chosen, one array a step.
        width: To how many examples its batches are padded; 0 without a step to take.
    """

    user: int
    examples: Any = field(repr=False)
    key: Key = field(repr=False)
    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    batches: Sequence[np.ndarray] = field(repr=False)
    width: int

    @classmethod
    def of(cls, user: int, examples: Any, key: Key, schedule: Schedule) -> Work:
        """Return the work that `ModuleTrainer` does with the same key."""
        rng = key.generator()
        chosen = examples.take(schedule.choose(len(examples), rng))
        x, y = model_inputs(chosen.x), model_targets(chosen.y)
        batches = schedule.batches(len(chosen), rng)
        width = batch_width(len(chosen), schedule)
        return cls(user=user, examples=examples, key=key, x=x, y=y, batches=batches, width=width)

    @property
    def kind(self) -> Kind:
        """What decides, together with the number of slots, which kernels it runs on."""
        x, y = self.x, self.y
        return self.width, x.shape[1:], str(x.dtype), y.shape[1:], str(y.dtype)


def batch_width(num_chosen: int, schedule: Schedule) -> int:
    """Return the least power of two that holds a user's largest batch, or the batch size.

    >>> schedule = Schedule(learning_rate=0.1, batch_size=100)
    >>> [batch_width(n, schedule) for n in (0, 1, 3, 64, 65, 500)]
    [0, 1, 4, 64, 100, 100]
    """
    largest = min(num_chosen, schedule.batch_size)
    return 0 if largest == 0 else min(schedule.batch_size, 1 << (largest - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a chunk.

    Attributes:
        x: Inputs `(slots, width, ...)`.
        y: Targets `(slots, width, ...)`.
        weight: float32 `(slots, width)`: 1/n for the n examples of a batch, 0 for padding.
        taken: bool `(slots,)`, whose step it is; None when it is everybody's.
    """

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    weight: torch.Tensor = field(repr=False)
    taken: torch.Tensor | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedUsers:
    """A chunk of users of one kind on the device.

    Attributes:
        x: Inputs `(slots, most examples, ...)`, zeros where there is none; never looked at.
        y: Targets `(slots, most examples, ...)`.
        index: int64 `(most steps, slots, width)`, positions of every step's batch. A shorter
            batch repeats its first example; a user at its end repeats its first of all.
        weight: float32 of that shape.
        taken: bool `(most steps, slots)`.
    """

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    index: torch.Tensor = field(repr=False)
    weight: torch.Tensor = field(repr=False)
    taken: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, works: Sequence[Work], slots: int, device: str | torch.device) -> PaddedUsers:
        """Return users of one kind, in the first slots of a chunk, on a device."""
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
            x=torch.from_numpy(_padded([work.x for work in works], slots)).to(device),
            y=torch.from_numpy(_padded([work.y for work in works], slots)).to(device),
            index=torch.from_numpy(index).to(device),
            weight=torch.from_numpy(weight).to(device),
            taken=taken,
        )

    def steps(self) -> Iterator[Step]:
        """Yield what every step works on; all have the same shapes."""
        slots = torch.arange(len(self.x), device=self.x.device).unsqueeze(1)
        for index, weight, taken in zip(self.index, self.weight, self.taken, strict=True):
            rows = None if taken.all() else torch.from_numpy(taken).to(self.x.device)
            yield Step(x=self.x[slots, index], y=self.y[slots, index], weight=weight, taken=rows)


def _padded(arrays: Sequence[np.ndarray], slots: int) -> np.ndarray:
    """Return arrays of different lengths as one, with zeros behind the shorter ones."""
    first = arrays[0]
    out = np.zeros((slots, max(map(len, arrays)), *first.shape[1:]), first.dtype)
    for row, array in zip(out, arrays, strict=False):
        row[: len(array)] = array
    return out
