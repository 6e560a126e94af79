"""Synthetic inputs, and a module with params near its own: what backends are tried on.

Neither depends on the training set but for the shape and kind of an example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.rng import Key
from fedpriv.training.local.hidden_state import attributes, put_back

KEY = Key.simulation(0).fold("made-up examples")


_WIDEST = 10.0


@contextmanager
def moved(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Train a module at params near its own, in a precision; then put everything back.

    Everything is params, buffers, plain attributes, modes and torch's generators. The parameters
    stay the same objects, so that who else holds them sees them moved.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    params = [(p, p.data) for p in module.parameters()]
    buffers = [
        (layer, name, buffer)
        for layer in module.modules()
        for name, buffer in layer.named_buffers(recurse=False)
    ]
    before = attributes(module)
    device, rng = params[0][0].device, KEY.fold("params").generator()
    try:
        module.train()
        for p, data in params:
            # Params that have diverged say nothing about the module, and compare with nothing.
            p.data = data.to(dtype, copy=True).nan_to_num_(0.0, 0.0, 0.0).clamp_(-_WIDEST, _WIDEST)
            if p.requires_grad:  # zeros, for one, hide mistakes
                change = 0.05 * rng.standard_normal(tuple(p.shape), np.float32)
                p.data.add_(torch.from_numpy(change).to(device))
        for layer, name, buffer in buffers:
            floats = buffer.is_floating_point()
            setattr(layer, name, buffer.to(dtype if floats else None, copy=True))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        for p, data in params:
            p.data = data
        for layer, name, buffer in buffers:
            setattr(layer, name, buffer)
        for layer, mode in modes:
            layer.training = mode
        put_back(module, before)


def synthetic_inputs(
    module: nn.Module, x: np.ndarray, y: np.ndarray, number: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, list[Key]]:
    """Return inputs, targets and keys of synthetic examples, on the module's device.

    Inputs are normal, so that examples differ in sign and size; targets, which may be shares or
    chances, uniform; words are of every embedding's vocabulary, classes the first two.

    Args:
        module: Whose embeddings are looked at.
        x: Inputs of the training set; only shape and dtype of one are looked at.
        y: Targets, likewise.
        number: How many.
        dtype: Of what is not an integer.
    """
    known = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    device = next(module.parameters()).device
    left = _values(x, number, "x", min(known, default=2)).to(device)
    right = _values(y, number, "y", 2).to(device)
    return (
        left.to(dtype) if left.is_floating_point() else left,
        right.to(dtype) if right.is_floating_point() else right,
        [KEY.fold(n) for n in range(number)],
    )


def other_batch(x: Tensor) -> Tensor:
    """Return inputs of which every second is another one, larger and of one sign."""
    other = x.clone()
    other[1::2] = 4 * x[1::2].abs() if x.is_floating_point() else x.max()
    return other


def _values(array: np.ndarray, number: int, what: str, numbers: int) -> Tensor:
    shape, rng = (number, *array.shape[1:]), KEY.fold(what).generator()
    if not np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(rng.integers(numbers, size=shape).astype(array.dtype))
    values = rng.standard_normal(shape) if what == "x" else rng.random(shape)
    return torch.from_numpy(np.asarray(values))
