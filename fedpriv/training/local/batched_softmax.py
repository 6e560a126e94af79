"""Local SGD of many users of softmax regression on bags of words at once, on one device.

It takes the steps of `CompiledSoftmaxTrainer`. Of the kernel a user trains the rows of its own
words alone: those are gathered once, its inputs are a small dense matrix over them, and every step
is two batched products. Nothing of it adds in an order that a device might choose, so that the
same arguments give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch

from fedpriv.datasets.stackexchange.tag_view import INPUTS, Features, TagExamples
from fedpriv.libraries import one_thread
from fedpriv.rng import Key
from fedpriv.training.device_sum import Stacked, StackedRows, on_device
from fedpriv.training.local.batched import (
    BatchedTrainer,
    Batches,
    Start,
    UserWork,
    batch_width,
    num_slots,
    power_of_two,
    take_users,
)
from fedpriv.training.local.schedule import Schedule
from fedpriv.training.work import Context
from fedpriv.tree import Params

#: Batch width, examples and rows of a user, each rounded up, and the classes.
Kind = tuple[int, int, int, int]

_ROOM = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxWork(UserWork):
    """One user's chosen examples as a matrix over its own rows of the kernel.

    Attributes:
        rows: int64 `(r,)`, the kernel's rows, increasing.
        place: int64, example and column of every entry, as one number: `example * r + column`.
        values: float32, the entries.
        labels: int64 `(n,)`.
        shape: Examples and rows that they are padded to, and classes.
    """

    rows: np.ndarray = field(repr=False)
    place: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    shape: tuple[int, int, int]

    @property
    def kind(self) -> Kind:
        """Width and shape."""
        return (self.width, *self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedSoftmaxTrainer(BatchedTrainer):
    """Softmax regression on bags of words, many users at once.

    Guarantees:
        * Every user's update is `CompiledSoftmaxTrainer`'s to float32's rounding.
        * Those of `BatchedTrainer`.

    Attributes:
        schedule: How much work.
        device: Where.
        inputs: As of `CompiledSoftmaxTrainer`.
        multiplier: Likewise.
        word_features: Likewise.
    """

    takes: ClassVar[tuple[str, ...]] = ("proximal", "rate")
    otherwise: ClassVar[str] = (
        "it trains rows of many users' own words at once: leave it out; a ModuleTask has all"
    )

    schedule: Schedule
    device: torch.device
    inputs: str = "tff"
    multiplier: np.ndarray | None = field(default=None, repr=False)
    word_features: Features | None = None
    _batch_invariant: dict[Any, bool] = field(init=False, repr=False, default_factory=dict)
    _multiplier: torch.Tensor | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.inputs not in INPUTS:
            raise ValueError(f"inputs {self.inputs!r} is unknown; choose one of {INPUTS}")
        if self.multiplier is not None:
            factors = torch.tensor(self.multiplier, dtype=torch.float32, device=self.device)
            object.__setattr__(self, "_multiplier", factors)

    def prepare(self, params: Params, examples: TagExamples, key: Key) -> SoftmaxWork:
        """Return what a user trains on.

        Raises:
            ValueError: If a word or a label is outside the model.
        """
        from fedpriv.kernels.sparse_softmax import own_rows, row_scales

        num_rows, num_classes = params["kernel"].shape
        rng = key.generator()
        chosen = self.schedule.choose(len(examples), rng)
        batches = self.schedule.batches(len(chosen), rng)
        picked = (
            examples.take(chosen)
            if self.word_features is None
            else examples.with_features(self.word_features, chosen)
        )
        number, labels = len(picked), np.asarray(picked.labels, np.int64)
        if number and not 0 <= labels.min() <= labels.max() < num_classes:
            raise ValueError("a label lies outside the classes")
        indptr = np.ascontiguousarray(picked.indptr, np.int64)
        indices = np.ascontiguousarray(picked.indices, np.int32)
        counts, every = np.ascontiguousarray(picked.counts, np.float32), np.arange(number)
        rows, position = own_rows(indptr, indices, every, num_rows)
        lengths = np.diff(indptr)
        scales = row_scales(indptr, counts, every, self.inputs == "unit-norm")
        place = np.repeat(every, lengths) * len(rows) + position[indices]
        place, values = _merged(place, counts * np.repeat(scales, lengths))
        most = self.schedule.max_examples
        return SoftmaxWork(
            examples=examples,
            key=key,
            batches=batches,
            width=batch_width(number, self.schedule),
            rows=rows,
            place=place,
            values=values,
            labels=labels,
            shape=(power_of_two(number, most), power_of_two(len(rows), num_rows), num_classes),
        )

    def synthetic(self, kind: Kind, number: int, *, steps: int, scale: float = 1.0) -> SoftmaxWork:
        """Return a user with as many examples as a batch is wide, each of every eighth row."""
        width, *shape = kind
        key = Key.simulation(0).fold("synthetic user").fold(number)
        rng = key.generator()
        num_rows = shape[1]
        filled = rng.random((width, num_rows)) < 0.125
        place = np.flatnonzero(filled.reshape(-1))
        return SoftmaxWork(
            examples=None,
            key=key,
            batches=[np.arange(width)] * (steps - 1) + [np.arange(max(1, width - number % 2))],
            width=width,
            rows=np.arange(num_rows),
            place=place,
            values=(scale * rng.random(len(place))).astype(np.float32),
            labels=rng.integers(0, shape[2], width),
            shape=(shape[0], shape[1], shape[2]),
        )

    def slots(self, kind: Kind) -> int:
        """Return how many users a batch has slots for: 4, or fewer of very large users.

        Users differ in examples and in words, so that few of a round are of one kind: with more
        slots most would be blank.
        """
        width, most, num_rows, num_classes = kind
        num_bytes = 4 * (num_rows * (most + width + 4 * num_classes) + 3 * width * num_classes)
        return num_slots(math.inf, num_bytes, _ROOM)

    def by_itself(self, start: Start, context: Context, work: UserWork) -> Stacked:
        """Return the update of a user in a batch of its own.

        Raises:
            ValueError: If a logit is not finite.
        """
        if not work.batches:
            return self.nothing(start)
        update, well = self.together(start, context, [work])
        if not bool(well[0]):
            raise ValueError("a logit is not finite")
        return {name: take_users(tensor, [0]) for name, tensor in update.items()}

    def nothing(self, start: Start) -> Stacked:
        """Return the update of one user without examples: no row of the kernel."""
        kernel = start["kernel"]
        rows = torch.zeros((1, 0), dtype=torch.int64, device=self.device)
        values = torch.zeros((1, 0, kernel.shape[1]), device=self.device)
        none = StackedRows(rows=rows, values=values, counts=[0], num_rows=len(kernel))
        if "bias" not in start:
            return {"kernel": none}
        return {"bias": torch.zeros_like(start["bias"]).unsqueeze(0), "kernel": none}

    def together(
        self, start: Start, context: Context, works: Sequence[UserWork]
    ) -> tuple[Stacked, torch.Tensor]:
        """Return every slot's update, and whether its logits were finite."""
        users = cast("Sequence[SoftmaxWork]", works)
        slots = self.slots(users[0].kind)
        with torch.no_grad(), one_thread():
            return self._steps(start, self.schedule.learning_rate * context.rate, users, slots)

    def _steps(
        self, start: Start, rate: float, works: Sequence[SoftmaxWork], slots: int
    ) -> tuple[Stacked, torch.Tensor]:
        device, (most, num_rows, num_classes) = self.device, works[0].shape
        # Behind a user's own rows others of which it adds zeros, each once: adding many numbers to
        # one row is slow where a device does it in a fixed order.
        rows = np.tile(np.arange(num_rows), (slots, 1))
        labels = np.zeros((slots, most), np.int64)
        places = []
        for slot, work in enumerate(works):
            rows[slot, : len(work.rows)] = work.rows
            labels[slot, : len(work.labels)] = work.labels
            example, column = np.divmod(work.place, max(1, len(work.rows)))
            places.append((slot * most + example) * num_rows + column)
        x = torch.zeros(slots * most * num_rows, device=device)
        x[on_device(device, np.concatenate(places))] = on_device(
            device, np.concatenate([work.values for work in works])
        )
        x = x.reshape(slots, most, num_rows)
        row, label = on_device(device, rows), on_device(device, labels)
        before = start["kernel"][row]
        change = torch.zeros_like(before)
        moved = torch.zeros(slots, num_classes, device=device)
        factor = None if self._multiplier is None else self._multiplier[row].unsqueeze(2)
        well = torch.ones(slots, dtype=torch.bool, device=device)
        slot, classes = torch.arange(slots, device=device).unsqueeze(1), num_classes
        steps = Batches.of(works, slots, device)
        pull = rate * self.schedule.proximal
        for index, weight, taken in zip(steps.index, steps.weight, steps.taken, strict=True):
            inputs = x[slot, index]
            logits = torch.bmm(inputs, before + change)
            if "bias" in start:
                logits += (start["bias"] + moved).unsqueeze(1)
            sound = logits.isfinite().flatten(1).all(dim=1)
            well &= sound if taken.all() else sound | ~on_device(device, taken)
            residual = torch.softmax(logits, dim=2)
            residual -= torch.nn.functional.one_hot(label[slot, index], classes).float()
            residual *= (weight * -rate).unsqueeze(2)
            if not taken.all():
                # Users at their end take no step, whatever a longer neighbour makes of one: their
                # weights are zero, but zero times a number that is not finite is not.
                residual = torch.where(on_device(device, taken)[:, None, None], residual, 0.0)
            if pull != 0.0:
                here = on_device(device, taken)[:, None]
                kept = 1.0 - pull if factor is None else 1.0 - pull * factor
                change = torch.where(here.unsqueeze(2), change * kept, change)
                moved = torch.where(here, moved * (1.0 - pull), moved)
            step = torch.bmm(inputs.transpose(1, 2), residual)
            change += step if factor is None else step * factor
            moved += residual.sum(dim=1)
        kernel = StackedRows(
            rows=row,
            values=change,
            counts=[len(work.rows) for work in works] + [0] * (slots - len(works)),
            num_rows=len(start["kernel"]),
        )
        return ({"bias": moved} if "bias" in start else {}) | {"kernel": kernel}, well


def _merged(place: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return entries that each have a place of their own: those of one place are added."""
    if np.all(place[1:] > place[:-1]):
        return place, values
    found, inverse = np.unique(place, return_inverse=True)
    return found, np.bincount(inverse, values, len(found)).astype(np.float32)
