"""Local SGD on a `WordLSTM`, one user after another, on as many threads as a backend has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from fedpriv.rng import Key
from fedpriv.training.local.module import as_tensor
from fedpriv.training.local.trainer import Schedule
from fedpriv.training.words.gradients import gradients
from fedpriv.tree import Params, Tree

#: From a user's sentences to inputs and targets, int64 `(n, time)` each.
Encode = Callable[[Any], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTrainer:
    """What a user does: plain local SGD on its sentences, `fedpriv.training.words.gradients`.

    It is `ModuleTrainer` on a `WordLSTM` with `next_word_loss`, to a relative 1e-4 of the update
    (float32 in another order), and keeps no model of its own, so that threads may share it. Several
    users side by side were measured and are slower: every user has weights of its own, and a
    product of stacked matrices reads them just as often (`benchmarks/words.py` prints the ratio).

    Guarantees:
        * A user's update depends on the params, its examples and its key, and on no other user.
        * On one thread of one machine the same arguments give the same bits.

    Attributes:
        schedule: How much work.
        encode: From chosen sentences to tokens.
        multiplier: 1/A by parameter name, applied to every gradient before the step.
        device: Where, such as "cpu" or "cuda:0".
    """

    #: Nothing of it ever changes, so threads may share it.
    thread_safe: ClassVar[bool] = True

    schedule: Schedule
    encode: Encode
    multiplier: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    device: str | torch.device = "cpu"

    def train(self, params: Params, examples: Any, key: Key) -> Tree:
        """Return `local - global` params, float32; zeros of a user without sentences."""
        rng = key.generator()
        chosen = examples.take(self.schedule.choose(len(examples), rng))
        x, y = (torch.from_numpy(array).to(self.device) for array in self.encode(chosen))
        start = {n: as_tensor(np.ascontiguousarray(a)).to(self.device) for n, a in params.items()}
        local = {name: tensor.clone() for name, tensor in start.items()}
        factors = {name: self._leading(local[name], m) for name, m in self.multiplier.items()}
        with _one_thread_each():
            for batch in self.schedule.batches(len(chosen), rng):
                index = torch.from_numpy(batch).to(self.device)
                self._step(local, factors, x[index], y[index])
            # Subtracted in place: a copy of the whole model less.
            return {name: local[name].sub_(start[name]).cpu().numpy() for name in local}

    def _step(
        self,
        local: dict[str, torch.Tensor],
        factors: Mapping[str, torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        rate = self.schedule.learning_rate
        parts = gradients(local, x, y)
        with torch.no_grad():
            for name, part in parts:
                if name in factors:
                    local[name].sub_(part.dense(local[name]) * factors[name], alpha=rate)
                else:
                    part.step(local[name], rate)

    def _leading(self, parameter: torch.Tensor, factor: np.ndarray) -> torch.Tensor:
        """Return a multiplier on the device, its axes put against a parameter's first ones."""
        array = np.asarray(factor, np.float32)
        made = array.reshape(array.shape + (1,) * (parameter.ndim - array.ndim))
        return torch.from_numpy(made).to(self.device)


_LOCK = threading.Lock()
_WITHIN: list[int] = []


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Compute on one thread in each of the threads that are within at the same time.

    How an operation is split among threads shows in its last bits. PyTorch's number of threads is
    partly the process's, so whoever leaves last puts it back.
    """
    with _LOCK:
        _WITHIN.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            before = max(_WITHIN)
            _WITHIN.pop()
            if not _WITHIN:
                torch.set_num_threads(before)
