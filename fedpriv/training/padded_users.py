"""Users of different sizes side by side: padded examples and batches, and who is still at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedpriv.rng import Key
from fedpriv.training.local import Schedule


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
    """

    user: int
    examples: Any = field(repr=False)
    key: Key = field(repr=False)
    x: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    batches: Sequence[np.ndarray] = field(repr=False)

    @classmethod
    def of(cls, user: int, examples: Any, key: Key, schedule: Schedule) -> Work:
        """Return the work that `ModuleTrainer` does with the same key."""
        rng = key.generator()
        chosen = examples.take(schedule.choose(len(examples), rng))
        x, y = np.asarray(chosen.x), np.asarray(chosen.y)
        batches = schedule.batches(len(chosen), rng)
        return cls(user=user, examples=examples, key=key, x=x, y=y, batches=batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedUsers:
    """A chunk of users on the device, those with most steps first.

    Attributes:
        x: Inputs `(users, most examples, ...)`, zeros where a user has fewer; never looked at.
        y: Targets `(users, most examples, ...)`.
        index: int64 `(most steps, users, largest batch)`, positions of every step's batch. A
            shorter batch repeats its first example.
        weight: float32 of that shape: 1/n for the n examples of a batch, 0 for repetitions.
        num_active: For each step, how many users have it.
    """

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    index: torch.Tensor = field(repr=False)
    weight: torch.Tensor = field(repr=False)
    num_active: tuple[int, ...]

    @classmethod
    def of(cls, works: Sequence[Work], device: str | torch.device) -> PaddedUsers:
        """Return users, sorted by falling number of steps, each of at least one, on a device.

        Raises:
            ValueError: If their examples are not of one shape and type.
        """
        num_steps = len(works[0].batches)
        largest = max(len(batch) for work in works for batch in work.batches)
        index = np.zeros((num_steps, len(works), largest), np.int64)
        weight = np.zeros(index.shape, np.float32)
        num_active = [0] * num_steps
        for user, work in enumerate(works):
            for step, batch in enumerate(work.batches):
                index[step, user] = batch[0]
                index[step, user, : len(batch)] = batch
                weight[step, user, : len(batch)] = 1 / len(batch)
                num_active[step] += 1
        return cls(
            x=torch.from_numpy(_padded([work.x for work in works])).to(device),
            y=torch.from_numpy(_padded([work.y for work in works])).to(device),
            index=torch.from_numpy(index).to(device),
            weight=torch.from_numpy(weight).to(device),
            num_active=tuple(num_active),
        )

    def steps(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield, step by step, how many users take it, their inputs, targets and weights."""
        users = torch.arange(len(self.x), device=self.x.device).unsqueeze(1)
        for step, num in enumerate(self.num_active):
            taken = users[:num], self.index[step, :num]
            yield num, self.x[taken], self.y[taken], self.weight[step, :num]


def _padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays of different lengths as one, with zeros behind the shorter ones."""
    first = arrays[0]
    out = np.zeros((len(arrays), max(map(len, arrays)), *first.shape[1:]), first.dtype)
    for row, array in zip(out, arrays, strict=True):
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"examples {array.dtype}{array.shape[1:]} beside {first.dtype}{first.shape[1:]}"
            )
        row[: len(array)] = array
    return out
