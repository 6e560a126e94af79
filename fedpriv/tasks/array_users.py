"""Users whose examples are arrays, in whatever form their owner has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedpriv.training.local.dtypes import model_inputs, model_targets
from fedpriv.training.local.module import ArrayExamples
from fedpriv.training.per_example.synthetic_inputs import synthetic_inputs

#: What is taken for the examples of a user: two arrays, one way or another.
ArrayLike = ArrayExamples | tuple[Any, Any] | TensorDataset

_LOOKED_AT = 20


def array_examples(given: Any, what: str) -> ArrayExamples:
    """Return examples as two arrays, over the same memory where they are arrays already.

    Args:
        given: `ArrayExamples`, a pair (inputs, targets) of arrays or CPU tensors, or a
            `TensorDataset` of two tensors.
        what: What to call them in a message.

    Raises:
        ValueError: If it is anything else, or inputs and targets differ in number.
    """
    if isinstance(given, ArrayExamples):
        return given
    parts: Sequence[Any] = ()
    if isinstance(given, TensorDataset):
        parts = given.tensors
    elif isinstance(given, (tuple, list)):
        parts = given
    if len(parts) != 2:
        found = type(given).__name__ + (f" of {len(parts)}" if parts else "")
        raise ValueError(
            f"{what} are a {found}; give ArrayExamples(x, y), a pair (x, y) of arrays, or a "
            "TensorDataset of two tensors"
        )
    return ArrayExamples(np.asarray(parts[0]), np.asarray(parts[1]))


class ArrayUsers:
    """Users of a mapping from ids to examples. A `fedpriv.training.work.UserData`.

    Args:
        users: By id; a plain dict is looked through for what cannot be taken, another mapping,
            which may read files, is not.

    Raises:
        ValueError: If there is no user, or one's examples are of another type than
            `array_examples` takes.
    """

    def __init__(self, users: Mapping[str, ArrayLike]) -> None:
        if not users:
            raise ValueError("there are no users; give examples for at least one")
        self._users: Mapping[str, ArrayLike] = users
        if isinstance(users, dict):
            self._users = {user_id: self.examples(user_id) for user_id in users}

    def __contains__(self, user_id: str) -> bool:
        return user_id in self._users

    def examples(self, user_id: str) -> ArrayExamples:
        """Return the user's training examples; raise `ValueError` for an unknown user."""
        if user_id not in self._users:
            raise ValueError(f"user {user_id!r} is not among the {len(self._users)} users here")
        return array_examples(self._users[user_id], f"the examples of user {user_id!r}")

    def num_examples(self, user_id: str) -> int:
        """Return how many there are; raise `ValueError` as above."""
        return len(self.examples(user_id))

    def synthetic(self, module: nn.Module, number: int) -> ArrayExamples | None:
        """Return synthetic examples in the shape and dtype of most users'.

        Of the first few users shapes and dtypes are looked at, and no value.

        Args:
            module: Whose embeddings say which words there are.
            number: How many.

        Returns:
            None where no user of those has an example.
        """
        found = [self.examples(user_id) for user_id in islice(sorted(self._users), _LOOKED_AT)]
        formats = [_format(own) for own in found if len(own)]
        if not formats:
            return None
        x_shape, x_dtype, y_shape, y_dtype = max(formats, key=formats.count)
        like = np.empty((0, *x_shape), x_dtype), np.empty((0, *y_shape), y_dtype)
        x, y, _ = synthetic_inputs(module, *like, number, torch.float32)
        return ArrayExamples(x.numpy(), y.numpy())


def same_format(left: ArrayExamples, right: ArrayExamples) -> bool:
    """Return whether a module is given examples of both in the same shape and dtype."""
    return _format(left) == _format(right)


def _format(examples: ArrayExamples) -> tuple[Any, ...]:
    x, y = model_inputs(examples.x[:0]), model_targets(examples.y[:0])
    return x.shape[1:], x.dtype, y.shape[1:], y.dtype
