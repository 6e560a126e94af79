"""Local SGD of many users at once, on one device: each step is one set of kernels for all of them.

A user's examples and batches are those that `ModuleTrainer` takes with the same key. Batches are
padded to the chunk's largest with examples of the user's own that weigh nothing, and users are put
in order of their number of steps, so that those still at work are always the first ones and
nobody waits for another by computing.

The loss is a mean over a batch; the padded mean needs it example by example, so it is called on
batches of one. Whether it is such a mean is checked on every batch of every user. A user for which
it is not (or whose loss is not finite), or with which PyTorch's vectorisation raises (dropout, an
operation without a rule) is trained by `ModuleTrainer` instead, alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.func import functional_call, grad, vmap

from fedpriv.rng import Key
from fedpriv.training.module import ModuleTrainer
from fedpriv.training.padded_users import PaddedUsers, Work
from fedpriv.training.users_at_once import random_layer

_LOG = logging.getLogger(__name__)

Stacked = dict[str, torch.Tensor]
# How far a mean over single examples may be from the loss of the batch: float32's rounding.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The raw updates of some users, on the device that made them. Private.

    Attributes:
        tensors: float32 `(users, *shape)` by parameter name. A row may hold numbers that are not
            finite; the row of a user that failed means nothing.
        users: For each row, which of the users given it is.
        failed: Rows of users whose training raised.
    """

    tensors: Stacked = field(repr=False)
    users: tuple[int, ...]
    failed: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorisedTrainer:
    """Trains a chunk of users at once; every user's update is `ModuleTrainer`'s to rounding.

    Guarantees:
        * Relative 1e-5 to training alone for steps as smooth as usual; not the same bits. Whose
          company a user is trained in may move its last bits: matrix kernels choose their way by
          sizes and by alignment. Bit-equality is claimed for training one by one only.
        * A user that raises, or diverges, changes nobody else's update by more than that.

    Attributes:
        alone: What trains a single user: module, loss, schedule, multiplier and device.
        users_at_once: How many users a chunk holds at most; 1 trains one by one, and only sums
            on the device.
    """

    alone: ModuleTrainer
    users_at_once: int
    _apart: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.users_at_once, bool) or self.users_at_once < 1:
            raise ValueError(f"users_at_once {self.users_at_once!r} must be at least 1")
        drawn = random_layer(self.alone.module)
        if drawn is not None and self.users_at_once > 1:
            # Each user has a stream of its own, which no draw for many users can repeat.
            _LOG.warning("layer %r draws at random: users are trained one by one", drawn)
        object.__setattr__(self, "_apart", drawn is not None or self.users_at_once == 1)

    def train(self, params: Any, examples: Any, key: Key) -> Any:
        """Return one user's update, as `ModuleTrainer.train`."""
        return self.alone.train(params, examples, key)

    def train_many(
        self, start: Mapping[str, torch.Tensor], examples: Sequence[Any], keys: Sequence[Key]
    ) -> Updates:
        """Return every user's update.

        Args:
            start: The global params on the device, as `ModuleTrainer.start` returned them.
            examples: Every user's examples; all are in memory at once.
            keys: Every user's key of this round and attempt.
        """
        works: list[Work] = []
        raised: list[int] = []
        for user, (own, key) in enumerate(zip(examples, keys, strict=True)):
            try:
                works.append(Work.of(user, own, key, self.alone.schedule))
            except (Exception, SystemExit) as error:
                _refuse(error)
                raised.append(user)
        works.sort(key=lambda work: -len(work.batches))
        at_work = sum(bool(work.batches) for work in works)
        # Users without a step to take, and those that failed already, stay at zero.
        rows = {n: t.new_empty(len(examples), *t.shape) for n, t in start.items()}
        for tensor in rows.values():
            tensor[at_work:] = 0.0
        failed = set(range(len(works), len(examples)))
        size = 1 if self._apart else self.users_at_once
        for first in range(0, at_work, size):
            failed |= self._chunk(start, works[: min(first + size, at_work)], first, rows)
        return Updates(
            tensors=rows,
            users=(*(work.user for work in works), *raised),
            failed=frozenset(failed),
        )

    def _chunk(
        self, start: Mapping[str, torch.Tensor], works: list[Work], first: int, rows: Stacked
    ) -> set[int]:
        """Write the updates of the users from `first` on into rows; return those that failed."""
        if self._apart:
            return self._one(start, works[first], first, rows)
        chunk = {name: tensor[first : len(works)] for name, tensor in rows.items()}
        try:
            well = self._together(start, works[first:], chunk).tolist()
        except Exception as error:
            if len(works) - first > 1:
                # Somebody raises. Nobody else is to pay for it: each in a chunk of its own.
                _LOG.debug("%d users are trained apart", len(works) - first, exc_info=True)
                apart = (
                    self._chunk(start, works[: row + 1], row, rows)
                    for row in range(first, len(works))
                )
                return set().union(*apart)
            _LOG.info("a user is trained without vectorisation: %s", type(error).__name__)
            return self._one(start, works[first], first, rows)
        failed = set()
        for row, fine in enumerate(well, first):
            if not fine:
                _LOG.info("a user is trained without vectorisation: loss not a mean, or diverged")
                failed |= self._one(start, works[row], row, rows)
        return failed

    def _one(
        self, start: Mapping[str, torch.Tensor], work: Work, row: int, rows: Stacked
    ) -> set[int]:
        """Train one user by `ModuleTrainer`; its failure is its own."""
        try:
            update = self.alone.train_from(start, work.examples, work.key)
        except (Exception, SystemExit) as error:
            _refuse(error)
            return {row}
        for name, tensor in update.items():
            rows[name][row] = tensor
        return set()

    def _together(
        self, start: Mapping[str, torch.Tensor], works: list[Work], local: Stacked
    ) -> torch.Tensor:
        """Make `local` the users' updates; return for each user whether it is its update."""
        users = PaddedUsers.of(works, self.alone.device)
        module, factors = self.alone.module.train(), self.alone.factors
        buffers = dict(module.named_buffers())
        for name, tensor in local.items():
            tensor.copy_(start[name].expand_as(tensor))
        well = torch.ones(len(works), dtype=torch.bool, device=users.x.device)

        def loss(params: Stacked, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> Any:
            state = {**params, **buffers}
            outputs = functional_call(module, state, (x,))
            # Writing into a buffer raises by itself; a new one would be one for all users.
            if any(state[name] is not buffer for name, buffer in buffers.items()):
                raise ValueError("forward() replaces a buffer")
            each = vmap(self._loss_of_one)(outputs, y)
            with torch.no_grad():
                batch = self.alone.loss(outputs, y)
                mean = (batch - each.mean()).abs() <= _RELATIVE * batch.abs() + _ABSOLUTE
            return (each * weight).sum(), mean

        step = vmap(grad(loss, has_aux=True))
        for num_active, x, y, weight in users.steps():
            active = {name: tensor[:num_active] for name, tensor in local.items()}
            gradients, mean = step(active, x, y, weight)
            well[:num_active] &= mean
            for name, gradient in gradients.items():
                if name in factors:
                    gradient = gradient * factors[name]
                active[name].add_(gradient, alpha=-self.alone.schedule.learning_rate)
        for name, tensor in local.items():
            tensor.sub_(start[name])
        return well

    def _loss_of_one(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.alone.loss(output.unsqueeze(0), target.unsqueeze(0))


def _refuse(error: BaseException) -> None:
    # The text of an error may hold a user's data: only its kind is worth a warning.
    _LOG.warning("a user contributes zero: %s", type(error).__name__)
    _LOG.debug("why it does", exc_info=True)
