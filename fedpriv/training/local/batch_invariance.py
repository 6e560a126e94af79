"""Whether users trained side by side are really apart: tried on synthetic users, bit by bit.

The sum's sensitivity is the bound only if leaving a user out changes no other user's update. In a
chunk of fixed shape that holds as long as no kernel treats a slot by its place or its neighbours,
which a vectorised tail of a loop, a blocked matrix product or an atomic sum may do. Steep local
training makes of such a last bit as much as it likes: 1.56 times the bound was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedpriv.rng import Key
from fedpriv.training.local.padded_users import Kind, Work
from fedpriv.training.stopping import end_if_interrupted

#: From works in their slots to every slot's update, `(slots, *shape)` by name.
Train = Callable[[Sequence[Work]], Mapping[str, torch.Tensor]]

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


def _synthetic_user(kind: Kind, number: int, *, steps: int, scale: float = 1.0) -> Work:
    width, x_shape, x_dtype, y_shape, y_dtype = kind
    key = Key.simulation(0).fold("made-up user").fold(number)
    rng = key.generator()
    x = _values(rng, (width, *x_shape), x_dtype, scale)
    return Work(
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
