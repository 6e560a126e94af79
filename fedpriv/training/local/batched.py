"""Local SGD of many users at once, on one device: each step is one set of kernels for all.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedpriv.rng import Key
from fedpriv.training.device_sum import DeviceStack, DeviceSum, Stacked, StackedRows, on_device
from fedpriv.training.failures import contributing_zero_on_failure, log_of_users, raised_at
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.stopping import end_if_interrupted, stop_if_asked
from fedpriv.training.work import Attempt, Context, SumRequest, Trainer, Users
from fedpriv.tree import Params

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWork(ABC):
    """One user's chosen examples and the batch of every step.

    Attributes:
        examples: All its examples.
        key: Its key of this round and attempt.
        batches: Positions among the chosen, one array a step.
        width: To how many examples its batches are padded; 0 without a step to take.
    """

    examples: Any = field(repr=False)
    key: Key = field(repr=False)
    batches: Sequence[np.ndarray] = field(repr=False)
    width: int

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Key of the users that can share a batch; of its own size and the model alone."""


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


#: The global params on the device.
Start = Mapping[str, torch.Tensor]
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


class BatchedTrainer(Trainer):
    """Base of trainers of many users at once.

    A subclass trains a batch of users in their slots (`together`), one user (`by_itself`) and
    makes what is trained of a user's examples (`prepare`).

    Guarantees:
        * Batch-invariant: a user's update is a function of the params, its examples and its key.
          Leaving another user out, or making it diverge or raise, changes not one bit of it. Kinds
          of users for which a trial on this machine shows otherwise are trained one by one.

    Attributes:
        device: Where users are trained.
        schedule: How much work a user does.
    """

    __slots__ = ()

    device: torch.device
    schedule: Schedule
    _batch_invariant: dict[Hashable, bool]

    @abstractmethod
    def prepare(self, params: Params, examples: Any, key: Key) -> UserWork:
        """Return what a user trains on, chosen and ordered by its key.

        Args:
            params: The global ones.
            examples: All its examples.
            key: Its key of this round and attempt.
        """

    @abstractmethod
    def synthetic(self, kind: Any, number: int, *, steps: int, scale: float = 1.0) -> UserWork:
        """Return a synthetic user of a kind, with a number of steps and a scale of inputs."""

    @abstractmethod
    def slots(self, kind: Any) -> int:
        """Return how many users of a kind a batch has slots for; 1 trains one by one."""

    @abstractmethod
    def together(
        self, start: Start, context: Context, works: Sequence[UserWork]
    ) -> tuple[Stacked, torch.Tensor]:
        """Return every slot's update, and which slots hold a valid one: bool `(slots,)`."""

    @abstractmethod
    def by_itself(self, start: Start, context: Context, work: UserWork) -> Stacked:
        """Return one user's update, computed without other users in the batch.

        Raises:
            Exception: If the user cannot be trained.
        """

    def nothing(self, start: Start) -> Stacked:
        """Return the update of one user who takes no step: zeros."""
        return {name: torch.zeros_like(tensor).unsqueeze(0) for name, tensor in start.items()}

    def start(self, params: Params) -> dict[str, torch.Tensor]:
        """Return the global params on the device: copied once for as many users as there are."""
        return {name: on_device(self.device, array) for name, array in params.items()}

    def empty_sum(self, template: Params, granularity: float | None) -> DeviceSum:
        """Return the running sum on the device, which only the sum leaves."""
        return DeviceSum(self.start(template), granularity)

    def stacks(self, request: SumRequest, attempt: Attempt, users: Users) -> Iterator[DeviceStack]:
        """Yield the users' updates, batch by batch.

        The params are copied to the device once, the examples batch by batch, and an update never
        leaves it. Under a bound users are trained side by side only where that is known not to
        move a bit of anybody's update: else one user would move the sum by what it contributes
        *and* by what it did to its batch, of which steep local training can make more than the
        bound.
        """
        start, apart = self.start(request.params), attempt.bound.l2_bound < math.inf
        given = self._given(request, attempt.key, users)
        yield from self.batches(start, request.context, given, batch_invariant=apart)

    def _given(self, request: SumRequest, key: Key, users: Users) -> Iterator[UserWork]:
        """Yield users' work; one whose examples cannot be had contributes zero."""
        for user_id in _by_size(users, self.schedule):
            stop_if_asked()
            work = None
            with contributing_zero_on_failure():
                own = key.fold(user_id)
                examples = self.examples(users.data, user_id, request.context, own)
                work = self.prepare(request.params, examples, own)
            if work is not None:
                yield work

    def batches(
        self,
        start: Start,
        context: Context,
        works: Iterable[UserWork],
        *,
        batch_invariant: bool = True,
    ) -> Iterator[DeviceStack]:
        """Yield the updates of all users but those that fail, batch by batch.

        Args:
            start: The global params on the device, as `start` returned them.
            context: Public facts of the round.
            works: What `prepare` returned of every user.
            batch_invariant: Whether no user may move another's bits. Only sums without a bound do
                without, and save the trial.
        """
        waiting: dict[Hashable, list[UserWork]] = {}
        for work in works:
            if not work.batches:
                yield DeviceStack(self.nothing(start))
                continue
            kind = work.kind
            slots = self.slots(kind)
            if (
                slots > 1
                and batch_invariant
                and not self._is_batch_invariant(start, context, kind, slots)
            ):
                slots = 1
            if slots == 1:
                yield from self._one(start, context, work)
                continue
            waiting.setdefault(kind, []).append(work)
            if len(waiting[kind]) == slots:
                yield from self._many(start, context, waiting.pop(kind))
        for few in waiting.values():
            yield from self._many(start, context, few)

    def _is_batch_invariant(
        self, start: Start, context: Context, kind: Hashable, slots: int
    ) -> bool:
        tried = kind, context.rate  # at a low rate what is off may be rounded away
        if tried not in self._batch_invariant:
            found = is_batch_invariant(
                lambda works: self.together(start, context, works)[0],
                lambda number, **size: self.synthetic(kind, number, **size),
                slots,
            )
            if not found:
                log_of_users(
                    _LOG,
                    logging.WARNING,
                    "the batch moves a user's last bits on %s in batches of %d, or fails: users "
                    "are trained one by one",
                    self.device,
                    slots,
                )
            self._batch_invariant[tried] = found
        return self._batch_invariant[tried]

    def _one(self, start: Start, context: Context, work: UserWork) -> Iterator[DeviceStack]:
        """Yield the update of a single user; its failure is its own."""
        found = None
        with contributing_zero_on_failure():
            found = DeviceStack(self.by_itself(start, context, work))
        if found is not None:
            yield found

    def _many(
        self, start: Start, context: Context, works: Sequence[UserWork]
    ) -> Iterator[DeviceStack]:
        """Yield the updates of a batch."""
        try:
            local, well = self.together(start, context, works)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            end_if_interrupted(error)
            if len(works) > 1:
                # One user's training raises. No other is to pay for it: each in a batch of its own.
                if _LOG.isEnabledFor(logging.DEBUG):
                    said = "%d users are trained apart: %s"
                    log_of_users(_LOG, logging.DEBUG, said, len(works), raised_at(error))
                for work in works:
                    yield from self._many(start, context, [work])
                return
            said = "a user is trained by itself: %s"
            log_of_users(_LOG, logging.INFO, said, type(error).__name__)
            yield from self._one(start, context, works[0])
            return
        fine = [row for row, is_one in enumerate(well.tolist()[: len(works)]) if is_one]
        if fine:
            yield DeviceStack({name: take_users(tensor, fine) for name, tensor in local.items()})
        for row, work in enumerate(works):
            if row not in fine:
                log_of_users(
                    _LOG, logging.INFO, "a user is trained by itself: loss not a mean, or diverged"
                )
                yield from self._one(start, context, work)


def take_users(tensor: torch.Tensor | StackedRows, rows: list[int]) -> torch.Tensor | StackedRows:
    """Return the tensors of users in some slots."""
    if isinstance(tensor, StackedRows):
        return tensor.take(rows)
    return tensor[: len(rows)] if rows == list(range(len(rows))) else tensor[rows]


def _by_size(users: Users, schedule: Schedule) -> list[str]:
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
