"""The mean gradient of any `nn.Module` on public examples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fedpriv.rng import Key
from fedpriv.training.local.dtypes import model_inputs, model_targets
from fedpriv.training.local.module import (
    ArrayExamples,
    as_tensor,
    check_module,
    load_params,
    one_thread,
)
from fedpriv.training.local.module_state import own_stream, unchanged_buffers
from fedpriv.tree import Params


class ModuleBatches:
    """A `fedpriv.training.in_public.gradients.Gradient` of a module.

    Guarantees:
        * A gradient depends on params, examples and key alone: on one machine the same bits.

    Args:
        module: A checked module; its parameters are overwritten.
        loss: From (outputs, targets) to the mean loss of a batch.
        examples: Public ones.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        examples: ArrayExamples,
    ) -> None:
        self._module, self._loss, self._examples = check_module(module), loss, examples
        self._own = {n: p for n, p in module.named_parameters() if p.requires_grad}

    def __call__(self, params: Params, index: np.ndarray, key: Key) -> Params:
        """Return the mean gradient of a batch, float32; zeros of what the loss does not use."""
        module = load_params(self._module, params).train()
        chosen = self._examples.take(index)
        x, y = as_tensor(model_inputs(chosen.x)), as_tensor(model_targets(chosen.y))
        with unchanged_buffers(module), own_stream(key), one_thread(), torch.enable_grad():
            loss = self._loss(module(x), y)
            found = torch.autograd.grad(loss, list(self._own.values()), allow_unused=True)
        return {
            name: np.zeros(tuple(own.shape), np.float32) if grad is None else grad.numpy()
            for (name, own), grad in zip(self._own.items(), found, strict=True)
        }
