"""Losses of modules along a line: one forward pass at each point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.training.line_search.candidates import moved
from fedpriv.training.local.module import load_params
from fedpriv.training.local.module_state import OwnState, own_stream, unchanged_buffers
from fedpriv.tree import Params

Loss = Callable[[Tensor, Tensor], Tensor]


def mean_losses(
    module: nn.Module,
    loss: Loss,
    params: Params,
    direction: Params,
    sizes: Sequence[float],
    x: Tensor,
    y: Tensor,
) -> np.ndarray:
    """Return the mean loss of a batch at every point, float64 (sizes,).

    Args:
        module: Its params are overwritten, and nothing else of it is changed; nothing is drawn, and
            dropout is off.
        loss: From outputs and targets to the mean loss.
        params: float32.
        direction: Likewise.
        sizes: Step sizes.
        x: Inputs, on the module's device.
        y: Targets.
    """
    with OwnState(module, loss).unchanged(), _looking(module):
        return np.array([float(loss(_at(module, params, direction, s)(x), y)) for s in sizes])


def example_losses(
    module: nn.Module,
    losses: Callable[[], np.ndarray],
    params: Params,
    direction: Params,
    sizes: Sequence[float],
    number: int,
) -> np.ndarray:
    """Return each example's loss at every point, float64 (examples, sizes).

    Args:
        module: Its params are overwritten.
        losses: Evaluates the examples one apart from another at the module's params, float64
            (examples,).
        params: float32.
        direction: Likewise.
        sizes: Step sizes.
        number: How many examples there are.
    """
    found = np.empty((number, len(sizes)))
    for place, size in enumerate(sizes):
        _at(module, params, direction, size)
        found[:, place] = losses()
    return found


def _at(module: nn.Module, params: Params, direction: Params, size: float) -> nn.Module:
    return load_params(module, moved(params, direction, size))


@contextmanager
def _looking(module: nn.Module) -> Iterator[None]:
    device = next(module.parameters()).device
    before = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with own_stream(None, device), unchanged_buffers(module), torch.no_grad():
            yield
    finally:
        for layer, training in before.items():
            layer.training = training
