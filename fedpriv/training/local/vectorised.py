"""Local SGD of many users at once, on one device: each step is one set of kernels for all.

A user's examples and batches are those that `ModuleTrainer` takes with the same key. Users of one
kind (batch width, shapes) share a chunk of `users_at_once` slots; empty slots, padding and users
at their end are computed too and thrown away, so that every user meets the same shapes whoever
else is in it, and its update depends on it alone (`is_batch_invariant` tries
that out).

The loss is a mean over a batch; the padded mean needs it example by example, so it is called on
batches of one. Whether it is such a mean is checked on every batch of every user. A user for which
it is not (or whose loss is not finite), or with which PyTorch's vectorisation raises (dropout, an
operation without a rule) is trained by `ModuleTrainer` instead, alone.

How many users are trained at once:

* On a GPU: as many as fit into 2 GiB, at most 32. A single user leaves a GPU idle; a larger chunk
  would mostly be empty slots, since a cohort is shared out to workers and split by batch width.
* On the CPU: one. Where convolutions do the work batching is no faster (0.9 times on a CNN of 1.6 M
  parameters). Small models of linear layers are another matter: against a loop with `optim.SGD`,
  50 users at once train 3 times faster up to 25,000 parameters, twice at 100,000, 16 at once 1.3
  times at 200,000, and from 400,000 on it is slower. Whoever wants that asks for it, and gets
  results that are equal to rounding.
* With a layer that draws at random, everywhere: one. Every user has a random stream of its own.

The rule looks at the model and the device, never at a clock: a run's result cannot depend on how
busy the machine was. `benchmarks/dense_training.py` prints the ratios.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedpriv import tree
from fedpriv.mechanisms.bounds import scaling_factor
from fedpriv.rng import Key
from fedpriv.sums import BITS, LONGEST, PartialSum, beyond_bound
from fedpriv.training.failures import (
    contributes_zero,
    contributing_zero_on_failure,
    counted_failures,
    log_of_users,
    raised_at,
)
from fedpriv.training.local.module import ModuleTrainer, model_inputs, model_targets
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.local.sgd import SGD, one_thread
from fedpriv.training.stopping import end_if_interrupted, stop_if_asked
from fedpriv.training.work import SumRequest, UserData, Work

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
    """Adds many bounded updates at once, in place, on one device, which only the sum leaves.

    It is float64 in either case: with a granularity every term is a whole number of at most 2^24,
    and float64 adds whole numbers below 2^53 exactly, in any order; so the sum is the integers that
    `fedpriv.sums.RunningSum` adds up, and handed out as such.

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


#: Batch width, shape and dtype of an input, shape and dtype of a target.
Kind = tuple[int, tuple[int, ...], str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWork:
    """One user's chosen examples and the batch of every step.

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
    def of(cls, user: int, examples: Any, key: Key, schedule: Schedule) -> UserWork:
        """Return the work that `ModuleTrainer` does with the same key."""
        rng = key.generator()
        chosen = examples.take(schedule.choose(len(examples), rng))
        x, y = model_inputs(chosen.x), model_targets(chosen.y)
        batches = schedule.batches(len(chosen), rng)
        width = batch_width(len(chosen), schedule)
        return cls(user=user, examples=examples, key=key, x=x, y=y, batches=batches, width=width)

    @property
    def kind(self) -> Kind:
        """Key of the users that can share a chunk: batch width, shapes and dtypes."""
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
    def of(cls, works: Sequence[UserWork], slots: int, device: str | torch.device) -> PaddedUsers:
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


#: From works in their slots to every slot's update, `(slots, *shape)` by name.
Train = Callable[[Sequence[UserWork]], Mapping[str, torch.Tensor]]

_STEPS = 3


def is_batch_invariant(train: Train, kind: Kind, slots: int) -> bool:
    """Return whether a synthetic user gets the same bits in every slot and any batch.

    It is trained in all slots at once, alone in the first, and in the first, a middle and the
    last one among others that take more steps and blow up. No user's data is looked at, so the
    answer is as public as the model.

    Args:
        train: Trains a chunk; what it raises is a no.
        kind: Of the users that wait for the answer.
        slots: In a chunk.
    """
    try:
        user = _synthetic_user(kind, 0, steps=_STEPS - 1)
        others = [
            _synthetic_user(kind, n, steps=_STEPS, scale=10.0 ** (n % 7))
            for n in range(1, slots + 1)
        ]
        places = sorted({0, slots // 2, slots - 1})
        mixed = [user if slot in places else others[slot] for slot in range(slots)]
        expected = _rows(train([user] * slots))
        alone, among = _rows(train([user])), _rows(train(mixed))
    except Exception as error:
        end_if_interrupted(error)
        return False
    found = [*expected, alone[0], *(among[place] for place in places)]
    return all(np.array_equal(row, expected[0], equal_nan=True) for row in found)


def _rows(updates: Mapping[str, torch.Tensor]) -> list[np.ndarray]:
    """Return every slot's bits, all tensors one after the other."""
    flat = [t.reshape(len(t), -1).cpu().numpy().view(np.uint32) for t in updates.values()]
    return list(np.concatenate(flat, axis=1))


def _synthetic_user(kind: Kind, number: int, *, steps: int, scale: float = 1.0) -> UserWork:
    width, x_shape, x_dtype, y_shape, y_dtype = kind
    key = Key.simulation(0).fold("made-up user").fold(number)
    rng = key.generator()
    x = _values(rng, (width, *x_shape), x_dtype, scale)
    return UserWork(
        user=number,
        examples=None,
        key=key,
        x=x,
        y=_values(rng, (width, *y_shape), y_dtype, 1.0),
        batches=[np.arange(width)] * (steps - 1) + [np.arange(max(1, width - number % 2))],
        width=width,
    )


def _values(rng: np.random.Generator, shape: Any, dtype: str, scale: float) -> np.ndarray:
    """Return numbers that any model takes: normal ones, or the first of classes and words."""
    if np.issubdtype(np.dtype(dtype), np.floating):
        return (scale * rng.standard_normal(shape)).astype(dtype)
    return np.zeros(shape, dtype)


_GPU_BYTES = 2 << 30
_MOST_AT_ONCE = 32
# For each user: its params while it trains, its gradient, and its update.
_COPIES = 3
_DROPOUT = (nn.modules.dropout._DropoutNd, nn.RReLU)


def default_users_at_once(trainer: ModuleTrainer, x: np.ndarray) -> int:
    """Return the rule's number of users for a model on its device.

    Args:
        trainer: What trains a single user.
        x: Any inputs, `(n, ...)`; only the shape of one matters.
    """
    if torch.device(trainer.device).type == "cpu" or random_layer(trainer.module) is not None:
        return 1
    return users_that_fit(trainer, x, _GPU_BYTES)


def random_layer(module: nn.Module) -> str | None:
    """Return the name of a layer that draws at random while it trains, if one is known to."""
    for name, layer in module.named_modules():
        # Recurrent layers and attention have a rate called dropout.
        rate = getattr(layer, "p", 1.0) if isinstance(layer, _DROPOUT) else 0.0
        rate = rate or getattr(layer, "dropout", 0.0)
        if isinstance(rate, float) and rate > 0:
            return name or type(layer).__name__
    return None


def users_that_fit(trainer: ModuleTrainer, x: np.ndarray, num_bytes: int) -> int:
    """Return how many users fit into memory at once, from 1 to 32.

    Counts three copies of the trained params and, for a batch, twice what PyTorch keeps of one
    example's forward pass. Nothing is drawn and no buffer changes.
    """
    trained = sum(p.numel() for p in trainer.module.parameters() if p.requires_grad)
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += 0 if isinstance(tensor, nn.Parameter) else tensor.numel() * tensor.element_size()
        return tensor

    if len(x):
        buffers = {name: buffer.clone() for name, buffer in trainer.module.named_buffers()}
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            one = trainer.on_device(model_inputs(x[:1]))
            functional_call(trainer.module.eval(), buffers, (one,))
    per_user = 4 * _COPIES * trained + 2 * kept * trainer.schedule.batch_size
    return max(1, min(_MOST_AT_ONCE, num_bytes // per_user))


def _float32(trainer: ModuleTrainer, multiplier: np.ndarray) -> torch.Tensor:
    """Return a multiplier on the device, in the dtype in which `tree.multiply` multiplies."""
    return trainer.on_device(np.asarray(multiplier, np.float32))


def _by_size(data: UserData, user_ids: Sequence[str], schedule: Schedule) -> list[str]:
    """Return users with like ones next to each other, so that chunks are full."""

    def size(user_id: str) -> tuple[int, int]:
        try:
            num = min(data.num_examples(user_id), schedule.max_examples)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            end_if_interrupted(error)
            num = 0  # its examples cannot be had either, which is said there
        return -batch_width(num, schedule), -num

    return sorted(user_ids, key=size)


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
class VectorisedTrainer(Work):
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
        plain = type(self.alone.optimizer) is SGD  # of which steps of many users are one product
        apart = drawn is not None or self.users_at_once == 1 or not plain
        object.__setattr__(self, "_apart", apart)

    def __deepcopy__(self, memo: dict[int, Any]) -> VectorisedTrainer:
        """Return a trainer with a module of its own; what was tried on this machine both know."""
        made = replace(self, alone=copy.deepcopy(self.alone, memo))
        object.__setattr__(made, "_batch_invariant", self._batch_invariant)
        return made

    def train(self, params: Any, examples: Any, key: Key) -> Any:
        """Return one user's update, as `ModuleTrainer.train`."""
        return self.alone.train(params, examples, key)

    def unchanged_by_users(self) -> AbstractContextManager[None]:
        """As of `fedpriv.training.work.checking_kept_state`."""
        return self.alone.unchanged_by_users()

    def answer(self, request: SumRequest) -> PartialSum:
        """Return the sum of the users' bounded updates.

        The params are copied to the device once, the examples chunk by chunk, and an update never
        leaves it. Under a bound users are trained side by side only where that is known not to
        move a bit of anybody's update: else one user would move the sum by what it contributes
        *and* by what it did to its batch, of which steep local training can make more than the
        bound.
        """
        bound, key, data = request.bound, request.key, request.users
        batch_invariant = not math.isinf(bound.l2_bound)
        start = self.alone.start(request.params)
        multiplier = {n: _float32(self.alone, m) for n, m in bound.multiplier.items() if n in start}
        mixture = bound.mixture
        offsets = {} if mixture is None else self.alone.start(dict(mixture.offset))
        num_elements = tree.num_elements(request.params)
        running = DeviceSum(start, bound.granularity)
        users = _by_size(data, request.user_ids, self.alone.schedule)
        with counted_failures() as failures:
            for first in range(0, len(users), self.users_at_once):
                examples, keys = [], []
                stop_if_asked()
                for user_id in users[first : first + self.users_at_once]:
                    with contributing_zero_on_failure():
                        examples.append(data.examples(user_id))
                        keys.append(key.fold(user_id))
                if not examples:
                    continue
                updates = self.train_many(start, examples, keys, batch_invariant=batch_invariant)
                if mixture is not None:
                    for name, offset in offsets.items():
                        updates.tensors[name].mul_(mixture.own).add_(offset)
                for name, factor in multiplier.items():
                    updates.tensors[name].mul_(factor)
                factors = [0.0] * len(examples)
                for row, norm in enumerate(l2_norms(updates.tensors)):
                    if row not in updates.failed:
                        with contributing_zero_on_failure(ValueError):
                            factors[row] = scaling_factor(bound, norm, num_elements)
                for _ in running.add(updates.tensors, factors):
                    contributes_zero(beyond_bound())
        return PartialSum(
            total=running.result(),
            num_users=len(users),
            num_failed=failures.count,
            granularity=bound.granularity,
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
        kinds: dict[Kind, list[UserWork]] = {}
        for user, (own, key) in enumerate(zip(examples, keys, strict=True)):
            failed.add(user)
            with contributing_zero_on_failure():
                work = UserWork.of(user, own, key, self.alone.schedule)
                if work.batches:
                    kinds.setdefault(work.kind, []).append(work)
                failed.remove(user)
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
                log_of_users(
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
        self, start: Mapping[str, torch.Tensor], works: list[UserWork], rows: Stacked
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
                    log_of_users(_LOG, logging.DEBUG, said, len(works), raised_at(error))
                return set().union(*(self._many(start, [work], rows) for work in works))
            log_of_users(_LOG, logging.INFO, _ALONE, type(error).__name__)
            return self._one(start, works, rows)
        users = [work.user for work in works]
        for name, tensor in local.items():
            rows[name][users] = tensor[: len(users)]
        failed = set()
        for work, fine in zip(works, well.tolist(), strict=False):
            if not fine:
                log_of_users(_LOG, logging.INFO, _ALONE, "loss not a mean, or diverged")
                failed |= self._one(start, [work], rows)
        return failed

    def _one(
        self, start: Mapping[str, torch.Tensor], works: list[UserWork], rows: Stacked
    ) -> set[int]:
        """Train a single user by `ModuleTrainer`; its failure is its own."""
        (work,) = works
        failed = {work.user}
        with contributing_zero_on_failure():
            update = self.alone.train_from(start, work.examples, work.key)
            for name, tensor in update.items():
                rows[name][work.user] = tensor
            failed.clear()
        return failed

    def _together(
        self, start: Mapping[str, torch.Tensor], works: Sequence[UserWork]
    ) -> tuple[Stacked, torch.Tensor]:
        """Return every slot's update, and whether it is one: bool `(slots,)`."""
        slots = self.users_at_once
        users = PaddedUsers.of(works, slots, self.alone.device)
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

        assert type(self.alone.optimizer) is SGD  # another takes other steps than `SGD.move`
        each_user, optimizer = vmap(grad(loss, has_aux=True)), cast("SGD", self.alone.optimizer)
        with self.alone.as_made() as module, one_thread():
            buffers = dict(module.named_buffers())
            for step in users.steps():
                gradients, mean = each_user(local, step.x, step.y, step.weight)
                well &= mean if step.taken is None else mean | ~step.taken
                for name, gradient in gradients.items():
                    move = optimizer.move(name, gradient)
                    if step.taken is not None:
                        who = step.taken.reshape(-1, *(1,) * (move.ndim - 1))
                        move = torch.where(who, move, 0.0)
                    local[name].sub_(move)
            for name, tensor in local.items():
                tensor.sub_(start[name])
        return local, well

    def _loss_of_one(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.alone.loss(output.unsqueeze(0), target.unsqueeze(0))
