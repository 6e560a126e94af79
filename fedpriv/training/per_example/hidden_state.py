"""What a module keeps between forward passes outside its parameters and buffers.

A running mean in a plain attribute carries one example into the gradient of the next, where no
bound sees it. Looked at are tensors, arrays, numbers and words in attributes of the module and of
its children, and in lists, tuples and dictionaries there; objects of other classes are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

#: By layer and name, what attributes hold and a copy of it.
Attributes = Mapping[tuple[nn.Module, str], tuple[Any, Any]]

_EVERY_MODULES = frozenset(vars(nn.Module()))
_LOOKED_AT = (Tensor, np.ndarray, list, tuple, dict, int, float, complex, str, bytes, type(None))


class KeepsStateError(ValueError):
    """A forward pass leaves something behind that the next one may read."""


def attributes(module: nn.Module) -> Attributes:
    """Return everything in plain attributes, with copies of what can be compared."""
    return {
        (layer, name): (value, _copied(value))
        for layer in module.modules()
        for name, value in vars(layer).items()
        if name not in _EVERY_MODULES
    }


def put_back(module: nn.Module, before: Attributes) -> None:
    """Give changed attributes the value they had, and remove new ones."""
    for layer in module.modules():
        for name in vars(layer).keys() - _EVERY_MODULES:
            if (layer, name) not in before:
                delattr(layer, name)
    for (layer, name), (value, copy) in before.items():
        vars(layer)[name] = value if _same(_copied(value), copy) else _copied(copy)


def refuse_change(before: Attributes, after: Attributes) -> None:
    """Raise if two states are not the same.

    Raises:
        KeepsStateError: Names the attribute, and what to do.
    """
    for layer, name in before.keys() | after.keys():
        held = [state.get((layer, name)) for state in (before, after)]
        if held[0] is None or held[1] is None or not _same(held[0][1], held[1][1]):
            raise KeepsStateError(
                f"the forward pass keeps something of an example in {name!r} of a "
                f"{type(layer).__name__}, where it would reach other examples past the bound; "
                "let the forward pass set no attribute, or make it a constant"
            )


def _copied(value: Any) -> Any:
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)):
        copies = [_copied(item) for item in value]
        return copies if isinstance(value, list) else tuple(copies)
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return value


def _same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return not isinstance(left, _LOOKED_AT) and not isinstance(right, _LOOKED_AT)
    if isinstance(left, Tensor):
        alike = left.shape == right.shape and left.dtype == right.dtype
        return alike and bool(((left == right) | ((left != left) & (right != right))).all())
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[n], right[n]) for n in left)
    return not isinstance(left, _LOOKED_AT) or bool(left == right or left != left)
