"""Indices that reach beyond a user's or an example's own tensor where many are vectorised."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class IndicesWithin(TorchFunctionMode):
    """Keep every index of a look-up or a fill within its own tensor, and write down if it was.

    Under `vmap` the tensors of all users, or examples, are one, one after the other. Of PyTorch's
    functions that take indices, `embedding` and `index_fill` compare them with the whole: one
    beyond its own rows would read or blank its neighbour's, and move the neighbour's update,
    without an error. All others refuse such an index, or stay within
    (`test_no_index_reaches_a_neighbour`).

    Attributes:
        within: A truth value for each such call, of the user or example at hand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.within: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if func not in _BY_INDEX:
            return func(*args, **(kwargs or {}))
        names, table, index = _BY_INDEX[func]
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        rows = given[table].shape[given.get("dim", 0)]
        self.within.append(((given[index] >= 0) & (given[index] < rows)).all())
        given[index] = given[index].clamp(0, rows - 1)
        return func(given.pop(names[0]), **given)

    def or_nan(self, value: torch.Tensor) -> torch.Tensor:
        """Return a value, which is NaN, and its gradients are, if an index was beyond its own."""
        for within in self.within:
            value = value * torch.where(within, 1.0, torch.nan)
        return value


_LOOK_UP = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_FILL = ("self", "dim", "index", "value")
# Functions whose index may reach beyond its own: the names of their first parameters, and which of
# these are the tensor and the index.
_BY_INDEX: dict[Any, tuple[tuple[str, ...], str, str]] = {
    nn.functional.embedding: (("input", "weight", *_LOOK_UP), "weight", "input"),
    torch.embedding: (("weight", "indices", _LOOK_UP[0], *_LOOK_UP[3:]), "weight", "indices"),
    torch.index_fill: (("input", *_FILL[1:]), "input", "index"),
    torch.Tensor.index_fill: (_FILL, "self", "index"),
    torch.Tensor.index_fill_: (_FILL, "self", "index"),
}
