"""Local SGD of many users at once, on one device: each step is one set of kernels for all of them.

A user's examples and batches are those that `ModuleTrainer` takes with the same key. Users of one
kind (batch width, shapes) share a chunk of `users_at_once` slots; empty slots, padding and users
at their end are computed too and thrown away, so that every user meets the same shapes whoever
else is in it, and its update depends on it alone (`fedpriv.training.local.batch_invariance` tries
that out).

The loss is a mean over a batch; the padded mean needs it example by example, so it is called on
batches of one. Whether it is such a mean is checked on every batch of every user. A user for which
it is not (or whose loss is not finite), or with which PyTorch's vectorisation raises (dropout, an
operation without a rule) is trained by `ModuleTrainer` instead, alone.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.func import functional_call, grad, vmap

from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.sums import PartialSum
from fedpriv.training.failures import contributes_zero, raised_at, say_of_users
from fedpriv.training.local.batch_invariance import is_batch_invariant
from fedpriv.training.local.module import ModuleTrainer, one_thread
from fedpriv.training.local.padded_users import Kind, PaddedUsers, Work
from fedpriv.training.local.users_at_once import random_layer
from fedpriv.training.local.vectorised_sum import Users, vectorised_partial_sum
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.tree import Params

_LOG = logging.getLogger(__name__)
_ALONE = "a user is trained without vectorisation: %s"

Stacked = dict[str, torch.Tensor]
# How far a mean over single examples may be from the loss of the batch: float32's rounding.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The raw updates of some users, on the device that made them. Private.

    Attributes:
        tensors: float32 `(users, *shape)` by parameter name, in the order of the users given. A
            row may hold numbers that are not finite; the row of a user that failed means nothing.
        failed: Users whose training raised.
    """

    tensors: Stacked = field(repr=False)
    failed: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorisedTrainer:
    """Trains a chunk of users at once; every user's update is `ModuleTrainer`'s to rounding.

    Guarantees:
        * Relative 1e-5 to training alone for steps as smooth as usual; not the same bits.
        * Batch-invariant: a user's update is a function of the params, its examples and its key.
          Leaving another user out, or making it diverge or raise, changes not one bit of it. Kinds
          of users for which a trial on this machine shows otherwise are trained one by one.

    Attributes:
        alone: What trains a single user: module, loss, schedule, multiplier and device.
        users_at_once: Slots of a chunk; 1 trains one by one, and only sums on the device.
            Multiples of 32 leave no loop over a chunk a remainder, which is treated differently.
    """

    alone: ModuleTrainer
    users_at_once: int
    _apart: bool = field(init=False, repr=False)
    _batch_invariant: dict[Kind, bool] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.users_at_once, bool) or self.users_at_once < 1:
            raise ValueError(f"users_at_once {self.users_at_once!r} must be at least 1")
        drawn = random_layer(self.alone.module)
        if drawn is not None and self.users_at_once > 1:
            # Each user has a stream of its own, which no draw for many users can repeat.
            _LOG.warning("layer %r draws at random: users are trained one by one", drawn)
        object.__setattr__(self, "_apart", drawn is not None or self.users_at_once == 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> VectorisedTrainer:
        """Return a trainer with a module of its own; what was tried on this machine both know."""
        made = replace(self, alone=copy.deepcopy(self.alone, memo))
        object.__setattr__(made, "_batch_invariant", self._batch_invariant)
        return made

    def train(self, params: Any, examples: Any, key: Key) -> Any:
        """Return one user's update, as `ModuleTrainer.train`."""
        return self.alone.train(params, examples, key)

    def template(self, params: Params) -> Params:
        """Return the params' own shapes."""
        return params

    def unchanged_by_users(self) -> AbstractContextManager[None]:
        """As of `fedpriv.training.work.LooksBack`."""
        return self.alone.unchanged_by_users()

    def partial_sum(
        self,
        *,
        params: Params,
        bound: Bound,
        data: Users | None,
        user_ids: Sequence[str],
        key: Key,
    ) -> PartialSum:
        """Return the sum of the users' bounded updates; see `fedpriv.training.work.Work`."""
        if data is None:
            raise ValueError("data None: a trainer of users needs their examples")
        return vectorised_partial_sum(
            params=params, bound=bound, trainer=self, data=data, user_ids=user_ids, key=key
        )

    def train_many(
        self,
        start: Mapping[str, torch.Tensor],
        examples: Sequence[Any],
        keys: Sequence[Key],
        *,
        batch_invariant: bool = True,
    ) -> Updates:
        """Return every user's update.

        Args:
            start: The global params on the device, as `ModuleTrainer.start` returned them.
            examples: Every user's examples; all are in memory at once.
            keys: Every user's key of this round and attempt.
            batch_invariant: Whether no user may move another's bits. Only sums without a bound do
                without, and save the trial.
        """
        rows = {n: t.new_zeros(len(examples), *t.shape) for n, t in start.items()}
        failed: set[int] = set()
        kinds: dict[Kind, list[Work]] = {}
        for user, (own, key) in enumerate(zip(examples, keys, strict=True)):
            try:
                work = Work.of(user, own, key, self.alone.schedule)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                contributes_zero(error)
                failed.add(user)
                continue
            if work.batches:
                kinds.setdefault(work.kind, []).append(work)
        for kind, works in kinds.items():
            # Those with most steps first: a chunk takes as many as its busiest user.
            works.sort(key=lambda work: -len(work.batches))
            together = not self._apart and (
                not batch_invariant or self._is_batch_invariant(start, kind)
            )
            size = self.users_at_once if together else 1
            for first in range(0, len(works), size):
                chunk = works[first : first + size]
                failed |= (self._many if together else self._one)(start, chunk, rows)
        return Updates(tensors=rows, failed=frozenset(failed))

    def _is_batch_invariant(self, start: Mapping[str, torch.Tensor], kind: Kind) -> bool:
        if kind not in self._batch_invariant:
            found = is_batch_invariant(
                lambda works: self._together(start, works)[0], kind, self.users_at_once
            )
            if not found:
                say_of_users(
                    _LOG,
                    logging.WARNING,
                    "the batch moves a user's last bits on %s in chunks of %d: users are trained "
                    "one by one; a multiple of 32 may do",
                    self.alone.device,
                    self.users_at_once,
                )
            self._batch_invariant[kind] = found
        return self._batch_invariant[kind]

    def _many(
        self, start: Mapping[str, torch.Tensor], works: list[Work], rows: Stacked
    ) -> set[int]:
        """Write the updates of a chunk into rows; return the users that failed."""
        try:
            local, well = self._together(start, works)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            end_if_interrupted(error)
            if len(works) > 1:
                # One user's training raises. No other is to pay for it: each in a chunk of its own.
                if _LOG.isEnabledFor(logging.DEBUG):
                    said = "%d users are trained apart: %s"
                    say_of_users(_LOG, logging.DEBUG, said, len(works), raised_at(error))
                return set().union(*(self._many(start, [work], rows) for work in works))
            say_of_users(_LOG, logging.INFO, _ALONE, type(error).__name__)
            return self._one(start, works, rows)
        users = [work.user for work in works]
        for name, tensor in local.items():
            rows[name][users] = tensor[: len(users)]
        failed = set()
        for work, fine in zip(works, well.tolist(), strict=False):
            if not fine:
                say_of_users(_LOG, logging.INFO, _ALONE, "loss not a mean, or diverged")
                failed |= self._one(start, [work], rows)
        return failed

    def _one(self, start: Mapping[str, torch.Tensor], works: list[Work], rows: Stacked) -> set[int]:
        """Train a single user by `ModuleTrainer`; its failure is its own."""
        (work,) = works
        try:
            update = self.alone.train_from(start, work.examples, work.key)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            contributes_zero(error)
            return {work.user}
        for name, tensor in update.items():
            rows[name][work.user] = tensor
        return set()

    def _together(
        self, start: Mapping[str, torch.Tensor], works: Sequence[Work]
    ) -> tuple[Stacked, torch.Tensor]:
        """Return every slot's update, and whether it is one: bool `(slots,)`."""
        slots = self.users_at_once
        users = PaddedUsers.of(works, slots, self.alone.device)
        factors = self.alone.factors
        local = {n: t.expand(slots, *t.shape).contiguous() for n, t in start.items()}
        well = torch.ones(slots, dtype=torch.bool, device=users.x.device)

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

        each_user = vmap(grad(loss, has_aux=True))
        with self.alone.as_made() as module, one_thread():
            buffers = dict(module.named_buffers())
            for step in users.steps():
                gradients, mean = each_user(local, step.x, step.y, step.weight)
                well &= mean if step.taken is None else mean | ~step.taken
                for name, gradient in gradients.items():
                    if name in factors:
                        gradient = gradient * factors[name]
                    # Multiplied and then subtracted: fused, the loop's remainder would differ.
                    move = gradient * self.alone.schedule.learning_rate
                    if step.taken is not None:
                        who = step.taken.reshape(-1, *(1,) * (move.ndim - 1))
                        move = torch.where(who, move, 0.0)
                    local[name].sub_(move)
            for name, tensor in local.items():
                tensor.sub_(start[name])
        return local, well

    def _loss_of_one(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.alone.loss(output.unsqueeze(0), target.unsqueeze(0))
