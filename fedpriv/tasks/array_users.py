"""Users whose examples are arrays, in whatever form their owner has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedpriv.datasets.local_data import UsersOnNodes
from fedpriv.training.local.module import ArrayExamples, model_inputs, model_targets
from fedpriv.training.per_example.backends import synthetic_inputs

#: What is taken for the examples of a user: two arrays, one way or another.
ArrayLike = ArrayExamples | tuple[Any, Any] | TensorDataset

_LOOKED_AT = 20
_KINDS = ("inputs", "targets")


def array_examples(given: Any, what: str) -> ArrayExamples:
    """Return examples as two arrays, over the same memory where they are arrays already.

    Args:
        given: `ArrayExamples`, a pair (inputs, targets) of arrays or CPU tensors, or a
            `TensorDataset` of two tensors.
        what: What to call them in a message.

    Raises:
        ValueError: If it is anything else, no numbers of one shape for each example, or inputs and
            targets differ in number.
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
    x, y = (_array(part, f"the {kind} of {what}") for part, kind in zip(parts, _KINDS, strict=True))
    return ArrayExamples(x, y)


def _array(given: Any, what: str) -> np.ndarray:
    try:
        found = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{what} cannot be made one array ({error}); give an array with one row for each "
            "example, all of one shape: pad those that are shorter"
        ) from error
    if found.ndim == 0 or found.dtype.kind not in "biufc":
        shown = f"a single {type(given).__name__}" if found.ndim == 0 else f"of {found.dtype}"
        raise ValueError(
            f"{what} are {shown}; give an array of numbers with one row for each example, all of "
            "one shape"
        )
    return found


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
        if not hasattr(users, "keys"):
            raise ValueError(
                f"users are a {type(users).__name__}; give a mapping from each user's id to the "
                "user's examples, such as a dict: dict(pairs) makes one of (id, examples) pairs"
            )
        if not users:
            raise ValueError("there are no users; give examples for at least one")
        self._users: Mapping[str, ArrayLike] = users
        self._in_memory = isinstance(users, dict)
        if self._in_memory:
            self._users = {user_id: self.examples(user_id) for user_id in users}

    @property
    def users(self) -> Mapping[str, ArrayLike]:
        """The mapping."""
        return self._users

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

    def num_equal(self, others: ArrayExamples) -> int:
        """Return how many other examples equal a user's, inputs and targets, as models take them.

        Users of a mapping that may read files are not looked at: 0.
        """
        if not self._in_memory:
            return 0
        left, equal = Counter(_contents(others)), 0
        for user_id in self._users:
            own = self.examples(user_id)
            if same_format(own, others):
                equal += sum(left.pop(content, 0) for content in _contents(own))
        return equal

    def synthetic(self, module: nn.Module, number: int) -> ArrayExamples | None:
        """Return synthetic examples in the shape and dtype of most users'.

        Of the first few users shapes and dtypes are looked at, and no value; of a node's own users
        not even those: server and nodes have to find the same.

        Args:
            module: Whose embeddings say which words there are.
            number: How many.

        Returns:
            None where no user of those has an example.
        """
        if isinstance(self._users, UsersOnNodes):
            return None
        found = [self.examples(user_id) for user_id in islice(sorted(self._users), _LOOKED_AT)]
        formats = [_format(own) for own in found if len(own)]
        if not formats:
            return None
        x_shape, x_dtype, y_shape, y_dtype = max(formats, key=formats.count)
        like = np.empty((0, *x_shape), x_dtype), np.empty((0, *y_shape), y_dtype)
        x, y, _ = synthetic_inputs(module, *like, number, torch.float32)
        return ArrayExamples(x.numpy(), y.numpy())


def check_learnt_from(learnt: ArrayExamples, measured: ArrayExamples | None) -> None:
    """Refuse public training examples that nothing can be chosen on, or that are measured on too.

    Raises:
        ValueError: If there are fewer than two; or if all that figures are measured on are among
            them, so that what is learnt by heart would count as learnt.
    """
    if len(learnt) < 2:
        raise ValueError(
            f"public_train has {len(learnt)} example{'s' * (len(learnt) != 1)}; give at least 2, "
            "of which one is kept back to choose settings by, or leave it out"
        )
    if measured is None or not len(measured) or not same_format(learnt, measured):
        return
    if set(_contents(measured)) <= set(_contents(learnt)):
        raise ValueError(
            f"all {len(measured):,} public examples are in public_train too, and figures are "
            "measured on them; give public_train some, and public others"
        )


def _contents(examples: ArrayExamples) -> Iterator[bytes]:
    """Yield a digest of each example."""
    for x, y in zip(model_inputs(examples.x), model_targets(examples.y), strict=True):
        yield sha256(x.tobytes() + y.tobytes()).digest()


def same_format(left: ArrayExamples, right: ArrayExamples) -> bool:
    """Return whether a module is given examples of both in the same shape and dtype."""
    return _format(left) == _format(right)


def _format(examples: ArrayExamples) -> tuple[Any, ...]:
    x, y = model_inputs(examples.x[:0]), model_targets(examples.y[:0])
    return x.shape[1:], x.dtype, y.shape[1:], y.dtype
