"""Local SGD of many users at once, of any `nn.Module`, by PyTorch's vectorisation (`torch.func`).

Each step is one set of kernels for a batch of users. A user's examples and batches are those that
`ModuleTrainer` takes with the same key.

Users of one kind share a batch of slots. A kind, and how many slots its batches have, follow from
the model, the device and the user's *own* size alone. Empty slots, padding and users at their end
are computed too and thrown away, so that every user meets the same shapes in any cohort,
and its update depends on it alone (which is tried out on synthetic users).

How many slots: with few users a GPU waits for kernels to be launched, with many it computes blank
slots of a kind's last batch. `slots` takes as many as make a step's arithmetic last about as
long as its launches, from 4 to 32, so that blank slots cost no more than launches do.

The loss is a mean over a batch; the padded mean needs it example by example, so it is called on
batches of one. Whether it is such a mean is checked on every batch of every user. A user for which
it is not (or whose loss is not finite), or with which PyTorch's vectorisation raises (dropout, an
operation without a rule) is trained by `ModuleTrainer` instead, alone.

On the CPU `ModuleTrainer` is the default. Where convolutions do the work batching is no faster (0.9
times on a CNN of 1.6 M parameters). Small models of linear layers are another matter: against a
loop with `optim.SGD`, 50 users at once train 3 times faster up to 25,000 parameters, twice at
100,000, 16 at once 1.3 times at 200,000, and from 400,000 on it is slower. It is an option, and its
results are equal to rounding. `benchmarks/dense_training.py` prints the ratios.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.libraries import one_thread
from fedpriv.rng import Key
from fedpriv.sums import Block, RunningSum, Sum
from fedpriv.training.algorithm import NO_CONTEXT, Context, SumRequest
from fedpriv.training.bounded_sum import RowStack, Stack
from fedpriv.training.device_sum import DeviceStack, DeviceSum
from fedpriv.training.devices import kept_bytes
from fedpriv.training.failures import contributing_zero_on_failure, log_of_users
from fedpriv.training.local.indices import IndicesWithin
from fedpriv.training.local.module import ModuleTrainer, as_arrays, model_inputs, model_targets
from fedpriv.training.local.module_state import Loss
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.sgd import SGD, optimizer_name
from fedpriv.training.stopping import end_if_interrupted, stop_if_asked
from fedpriv.training.streams import own_stream
from fedpriv.training.work import Attempt, Select, Trainer, Users, size_of
from fedpriv.tree import Params

_LOG = logging.getLogger(__name__)

#: The global params on the device.
Start = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """Which rows of a parameter a user's examples touch: it trains a batch of those alone.

    Attributes:
        name: Of the parameter; its other rows have no gradient.
        of: From chosen examples to their rows, int64 `(r,)`, increasing, to inputs over these,
            float32 `(n, r)`, and to targets `(n, ...)`; it raises for rows that are not there.
    """

    name: str
    of: Callable[[Any], tuple[np.ndarray, np.ndarray, np.ndarray]]


def _values(rng: np.random.Generator, shape: Any, dtype: str, scale: float) -> np.ndarray:
    """Return numbers that any model takes: normal ones, or the first two of classes and words."""
    if np.issubdtype(np.dtype(dtype), np.floating):
        return (scale * rng.standard_normal(shape)).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def power_of_two(number: int, most: int) -> int:
    """Return the least power of two that is at least a number, or `most` if that is less.

    >>> [power_of_two(n, 100) for n in (0, 1, 3, 64, 65, 500)]
    [0, 1, 4, 64, 100, 100]
    """
    return 0 if number == 0 else min(most, 1 << (number - 1).bit_length())


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
        width: To how many examples its batches are padded, a power of two or the batch size; 0
            without a step to take.
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


# A GPU of today does it in about the time that launching a step's kernels takes, 50 to 100 us.
_FLOPS_OF_A_STEP = 2e9
_FEWEST_SLOTS, _MOST_SLOTS = 4, 32
_GPU_BYTES = 2 << 30
# For each user: its params while it trains, its gradient, and its update.
_COPIES = 3
# Steps of the longest of synthetic users.
_STEPS = 3


class Cost(NamedTuple):
    """Cost of one example, which follows from the model and the shape of an input alone.

    How many users share a batch follows from it, so that it is of a user's own shape.

    Attributes:
        flops: Floating-point operations forwards and backwards, of products and convolutions.
        num_bytes: What PyTorch keeps of its forward pass.
        num_classes: How many classes its outputs have, or fewer where they have more axes than one.
    """

    flops: float = 0.0
    num_bytes: int = 0
    num_classes: int = 0

    @classmethod
    def of(cls, trainer: ModuleTrainer, x: np.ndarray) -> Cost:
        """Return the cost of the first of inputs `(n, ...)`; none where there is none.

        Nothing is drawn and no buffer changes.
        """
        if not len(x):
            return cls()
        module, _ = trainer.copied()
        counter = FlopCounterMode(display=False)
        with counter, kept_bytes(module) as kept:
            outputs = module.eval()(trainer.on_device(model_inputs(x[:1])))
        sizes = outputs.shape[1:] if isinstance(outputs, torch.Tensor) else ()
        # Backwards each product is two: of the inputs and of the weights.
        return cls(3.0 * counter.get_total_flops(), sum(kept), min(sizes, default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorisedTrainer(Trainer):
    """Trains many users of a module at once; every user's update is `ModuleTrainer`'s to rounding.

    Guarantees:
        * Relative 1e-5 to training alone for steps as smooth as usual; not the same bits.
        * Batch-invariant: a user's update is a function of the params, its examples and its key.
          Leaving another user out, or making it diverge or raise, changes not one bit of it. Kinds
          of users for which a trial on this machine shows otherwise are trained one by one.

    Attributes:
        alone: What trains a single user: module, loss, schedule, multiplier and device.
        users_at_once: Slots of a batch; 1 trains one by one, and only sums on the device. None for
            as many as `slots` says, within 2 GiB.
        own_rows: Of a parameter with a row for each word, say; None to train whole parameters.
        select: As of `fedpriv.training.work.Trainer`.
    """

    #: Of what a schedule may ask besides plain steps; with an optimiser users go one by one.
    takes: ClassVar[tuple[str, ...]] = ModuleTrainer.takes

    alone: ModuleTrainer
    users_at_once: int | None = None
    own_rows: OwnRows | None = None
    select: Select | None = None
    _batch_invariant: dict[Any, bool] = field(init=False, repr=False, default_factory=dict)
    _costs: dict[Any, Cost] = field(init=False, repr=False, default_factory=dict)

    @property
    def why_apart(self) -> str:
        """Why users are trained one by one whatever is given; "" where they need not be."""
        optimizer = self.alone.optimizer_of(NO_CONTEXT)
        if type(optimizer) is not SGD:  # of which steps of many users are one product
            name = optimizer_name(optimizer)
            return f"with the client optimizer {name} users are trained one by one"
        if self.alone.personal:
            return "with personal layers users are trained one by one"
        return ""

    @property
    def device(self) -> torch.device:
        """The module's."""
        return torch.device(self.alone.device)

    @property
    def schedule(self) -> LocalSgd:
        """As of a single user."""
        return self.alone.schedule

    def empty_sum(self, template: Params, granularity: float | None) -> Sum:
        """Return the running sum: on the device, which only it leaves, but of a user's own rows."""
        if self.own_rows is not None:
            return RunningSum(template, granularity)
        return DeviceSum(self.alone.start(template), granularity)

    def stacks(self, request: SumRequest, attempt: Attempt, users: Users) -> Iterator[Stack]:
        """Yield the users' updates, batch by batch.

        The params are copied to the device once, the examples batch by batch. An update stays
        there, unless it is of a user's own rows, which are few: they are bounded and added where
        the compiled kernels add rows. Users are trained side by side only where that is known not
        to move a bit of another's update: else one user would move the sum by what it contributes
        *and* by what it did to its batch, of which steep local training can make more than the
        bound.
        """
        given = self._given(request, attempt.key, users)
        yield from self.batches(self.alone.start(request.params), request.context, given)

    def _given(self, request: SumRequest, key: Key, users: Users) -> Iterator[UserWork]:
        """Yield users' work; one whose examples cannot be had contributes zero."""
        # A batch takes as many steps as its longest: like ones next to each other, by number alone.
        most = self.schedule.max_examples_per_user
        for user_id in sorted(users.ids, key=lambda user: -size_of(users.data, user, most)):
            stop_if_asked()
            work = None
            own = key.fold(user_id)
            with contributing_zero_on_failure(), own_stream(own, None):
                examples = self.examples(users.data, user_id, request.context.copied(), own)
                work = self.prepare(request.params, examples, own)
            if work is not None:
                yield work

    def prepare(self, params: Params, examples: Any, key: Key) -> UserWork:
        """Return the work that `ModuleTrainer` does with the same key.

        Args:
            params: The global ones.
            examples: All of a user's.
            key: The user's of this round and attempt.
        """
        rng, rows, size = key.generator(), None, self.schedule.batch_size
        chosen = examples.take(self.schedule.choose(len(examples), rng))
        if self.own_rows is None:
            x, y = self.alone.encoded(chosen)
            if self.device.type != "cpu" and self.alone.encode is as_arrays:
                self._try_indices(x, y)
        else:
            rows, own, y = self.own_rows.of(chosen)
            most = power_of_two(len(rows), len(params[self.own_rows.name]))
            x = np.zeros((len(own), most), np.float32)
            x[:, : len(rows)] = own
        return UserWork(
            examples=examples,
            key=key,
            x=x,
            y=y,
            batches=self.schedule.batches(len(chosen), rng),
            width=power_of_two(min(len(chosen), size), size),
            rows=rows,
        )

    def _try_indices(self, x: np.ndarray, y: np.ndarray) -> None:
        """Try on the processor whether a user's whole numbers are words and classes of the model.

        On a GPU an index beyond a tensor ends the process, and with it every user's training. On
        the processor it raises, and its user contributes zero alone. Only numbers that may be
        beyond one are tried; what they are for, such as counts, is the module's affair.

        Raises:
            Exception: What the module or the loss raises.
        """
        modules = self.alone.module.modules()
        limits = [(x, m.num_embeddings) for m in modules if isinstance(m, nn.Embedding)]
        limits.append((y, self.cost(x.shape[1:], str(x.dtype)).num_classes))
        if not any(
            array.size and array.dtype.kind in "iu" and not 0 <= array.min() <= array.max() < number
            for array, number in limits
        ):
            return
        module, loss = copy.deepcopy((self.alone.module, self.alone.loss))
        for part in (module, loss):
            if isinstance(part, nn.Module):
                part.cpu()
        with torch.no_grad():
            loss(module(torch.from_numpy(model_inputs(x))), torch.from_numpy(model_targets(y)))

    def synthetic(self, kind: Kind, number: int, *, steps: int, scale: float = 1.0) -> UserWork:
        """Return a user with as many examples as a batch is wide."""
        width, x_shape, x_dtype, y_shape, y_dtype = kind
        key = Key.simulation(0).fold("synthetic user").fold(number)
        rng = key.generator()
        x = _values(rng, (width, *x_shape), x_dtype, scale)
        return UserWork(
            examples=None,
            key=key,
            x=x,
            y=_values(rng, (width, *y_shape), y_dtype, 1.0),
            batches=[np.arange(width)] * (steps - 1) + [np.arange(max(1, width - number % 2))],
            width=width,
            rows=None if self.own_rows is None else np.arange(*x_shape),
        )

    def slots(self, kind: Kind) -> int:
        """Return the slots that were given, or those by the rule, a power of two.

        They are fewer than the fewest where not even those fit.
        """
        if self.why_apart:
            return 1
        if self.users_at_once is not None:
            return self.users_at_once
        width, shape, dtype, *_ = kind
        own = {n: p.numel() for n, p in self.alone.module.named_parameters() if p.requires_grad}
        if self.own_rows is None:
            cost = self.cost(shape, dtype)
        else:
            # Few users of a round are of one kind: of more slots than the fewest most are blank.
            cost = Cost(flops=math.inf, num_bytes=4 * shape[0])
            name = self.own_rows.name
            own[name] = own[name] * shape[0] // len(self.alone.module.get_parameter(name))
        # Of examples PyTorch keeps as much again for the way back.
        num_bytes = 4 * _COPIES * sum(own.values()) + 2 * width * cost.num_bytes
        wanted = _FLOPS_OF_A_STEP / max(width * cost.flops, 1.0)
        fitting = min(max(wanted, _FEWEST_SLOTS), _MOST_SLOTS, _GPU_BYTES / num_bytes)
        return 1 << math.floor(math.log2(max(1.0, fitting)))

    def cost(self, shape: tuple[int, ...], dtype: str) -> Cost:
        """Return the cost of an example, by the shape and dtype of an input alone."""
        if (shape, dtype) not in self._costs:
            rng, found = Key.simulation(0).fold("cost").generator(), Cost()
            try:
                found = Cost.of(self.alone, _values(rng, (1, *shape), dtype, 1.0))
            except Exception as error:  # takes no synthetic inputs
                end_if_interrupted(error)
            self._costs[shape, dtype] = found
        return self._costs[shape, dtype]

    def batches(self, start: Start, context: Context, works: Iterable[UserWork]) -> Iterator[Stack]:
        """Yield the updates of all users but those that fail, batch by batch.

        Args:
            start: The global params on the device, as `ModuleTrainer.start` returned them.
            context: Public facts of the round.
            works: What `prepare` returned of every user.
        """
        waiting: dict[Hashable, list[UserWork]] = {}
        for work in works:
            if not work.batches:
                still = {name: torch.zeros_like(t).unsqueeze(0) for name, t in start.items()}
                yield self._stack(DeviceStack(still), [work])
                continue
            kind, slots = work.kind, self.slots(work.kind)
            if slots == 1 or not self._is_batch_invariant(start, context, kind, slots):
                yield from self._one(start, context, work)
                continue
            waiting.setdefault(kind, []).append(work)
            if len(waiting[kind]) == slots:
                yield from self._many(start, context, waiting.pop(kind))
        for few in waiting.values():
            yield from self._many(start, context, few)

    def _is_batch_invariant(self, start: Start, context: Context, kind: Kind, slots: int) -> bool:
        """Return whether batches of a kind move no bit of a user; tried once."""
        tried = kind, context.rate  # at a low rate what is off may be rounded away
        if tried not in self._batch_invariant:
            why = "a batch moves a user's last bits"
            try:
                found = self._has_same_bits(start, context, kind, slots)
            except Exception as error:  # its text is of synthetic users
                end_if_interrupted(error)
                found, why = False, f"{type(error).__name__}: {error}"
            if not found:  # that this kind is tried reveals who was drawn
                said = "users are trained one by one on %s, and not %d at once: %s"
                log_of_users(_LOG, logging.WARNING, said, self.device, slots, why)
            self._batch_invariant[tried] = found
        return self._batch_invariant[tried]

    def _has_same_bits(self, start: Start, context: Context, kind: Kind, slots: int) -> bool:
        """Return whether a synthetic user gets the same bits in every slot and any batch.

        It is trained in all slots at once, alone in the first, and in the first, a middle and the
        last one among others that take more steps and blow up. No user's data is looked at, so the
        answer is as public as the model.
        """

        def bits(works: Sequence[UserWork]) -> np.ndarray:
            updates = self.together(start, context, works)[0].updates
            flat = [t.flatten(1).cpu().numpy().view(np.uint32) for t in updates.values()]
            return np.concatenate(flat, axis=1)

        user = self.synthetic(kind, 0, steps=_STEPS - 1)
        others = [
            self.synthetic(kind, number, steps=_STEPS, scale=10.0 ** (number % 7))
            for number in range(1, slots + 1)
        ]
        places = sorted({0, slots // 2, slots - 1})
        expected = bits([user] * slots)
        mixed = bits([user if slot in places else others[slot] for slot in range(slots)])
        found = np.concatenate([expected, bits([user])[:1], mixed[places]])
        return bool((found == expected[0]).all())

    def _stack(self, found: DeviceStack, works: Sequence[UserWork] = ()) -> Stack:
        """Return updates as the sum takes them: those with rows of users' own off the device.

        Args:
            found: Of the users, whose own rows come first.
            works: Of the same users; none if all rows are there.
        """
        if self.own_rows is None:
            return found
        arrays: dict[str, Any] = {n: t.cpu().numpy() for n, t in found.updates.items()}
        if works:
            name = self.own_rows.name
            rows = [cast("np.ndarray", work.rows) for work in works]
            values = [own[: len(r)] for own, r in zip(arrays[name], rows, strict=True)]
            starts = np.cumsum([0, *map(len, rows)])
            arrays[name] = Block(np.concatenate(rows), starts, np.concatenate(values))
        return RowStack(arrays)

    def _one(self, start: Start, context: Context, work: UserWork) -> Iterator[Stack]:
        """Yield the update of a single user by `ModuleTrainer`; its failure is its own."""
        found = None
        with contributing_zero_on_failure():
            update = self.alone.train_from(start, context, work.examples, work.key)
            found = DeviceStack({name: tensor.unsqueeze(0) for name, tensor in update.items()})
        if found is not None:
            yield self._stack(found)

    def _many(self, start: Start, context: Context, works: Sequence[UserWork]) -> Iterator[Stack]:
        """Yield the updates of a batch."""
        try:
            found, well = self.together(start, context, works)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            end_if_interrupted(error)
            if len(works) > 1:
                # One user's training raises. No other is to pay for it: each in a batch of its own.
                for work in works:
                    yield from self._many(start, context, [work])
                return
            said = "a user is trained by itself: %s"
            log_of_users(_LOG, logging.INFO, said, type(error).__name__)
            yield from self._one(start, context, works[0])
            return
        fine = [row for row, is_one in enumerate(well.tolist()[: len(works)]) if is_one]
        if fine:
            yield self._stack(found.take(fine), [works[row] for row in fine])
        for row, work in enumerate(works):
            if row not in fine:
                log_of_users(
                    _LOG, logging.INFO, "a user is trained by itself: loss not a mean, or diverged"
                )
                yield from self._one(start, context, work)

    def together(
        self, start: Start, context: Context, works: Sequence[UserWork]
    ) -> tuple[DeviceStack, torch.Tensor]:
        """Return every slot's update, and whether its loss is a finite mean of its examples'.

        Args:
            start: The global params on the device.
            context: Public facts of the round.
            works: Of users of one kind.
        """
        slots = self.slots(works[0].kind)
        begin = {n: t.expand(slots, *t.shape) for n, t in start.items()}
        # Another optimiser takes other steps than `SGD.move`, user by user.
        optimizer = cast("SGD", self.alone.optimizer_of(context))
        if self.own_rows is not None:
            # Behind a user's own any row will do: its inputs are zeros, so that it stays.
            name, padded = self.own_rows.name, [cast("np.ndarray", work.rows) for work in works]
            padded.append(np.zeros(works[0].x.shape[1], np.int64))
            rows = torch.from_numpy(_padded(padded, slots)).to(self.device)
            begin[name] = start[name][rows]
            if name in optimizer.multiplier:
                factors = {**optimizer.multiplier, name: optimizer.multiplier[name][rows]}
                optimizer = replace(optimizer, multiplier=factors)
        local = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in begin.items()
        }
        well = torch.ones(slots, dtype=torch.bool, device=self.device)
        pull = self.schedule.proximal_mu
        each = vmap(grad(partial(_batch_loss, *self.alone.copied()), has_aux=True))
        with one_thread():
            for x, y, weight, whose in steps_of(works, slots, self.device):
                gradients, mean = each(local, x, y, weight)
                well &= mean if whose is None else mean | ~whose
                for name, gradient in gradients.items():
                    if pull != 0.0:
                        gradient = gradient + pull * (local[name] - begin[name])
                    move = optimizer.move(name, gradient)
                    if whose is not None:
                        move = torch.where(whose.reshape(-1, *(1,) * (move.ndim - 1)), move, 0.0)
                    local[name].sub_(move)
            for name, tensor in local.items():
                tensor.sub_(begin[name])
        return DeviceStack(local), well


# How far a mean over single examples may be from the loss of the batch: float32's rounding.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


def _batch_loss(
    module: nn.Module,
    loss: Loss,
    params: Mapping[str, torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one user's weighted loss of a batch, and whether the loss is its examples' mean.

    Nor is it taken for one where an index is beyond a user's own tensor (`IndicesWithin`).

    Raises:
        ValueError: If forward() replaces a buffer.
    """
    buffers = dict(module.named_buffers())
    state = {**params, **buffers}
    indices = IndicesWithin()
    with indices:
        outputs = functional_call(module, state, (x,))
    # Writing into a buffer raises by itself; a new one would be one for all users.
    if any(state[name] is not buffer for name, buffer in buffers.items()):
        raise ValueError("forward() replaces a buffer")
    # What this one writes down is of single examples; the batch has the same indices.
    with IndicesWithin():
        each = vmap(lambda one, own: loss(one.unsqueeze(0), own.unsqueeze(0)))(outputs, y)
    with torch.no_grad():
        with indices:
            batch = loss(outputs, y)
        mean = (batch - each.mean()).abs() <= _RELATIVE * batch.abs() + _ABSOLUTE
        for within in indices.within:
            mean = mean & within
    return (each * weight).sum(), mean
