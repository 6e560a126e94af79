"""Local SGD for any `nn.Module`: bring a model, a loss and users of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpriv.rng import Key
from fedpriv.training.local import Schedule
from fedpriv.tree import Params, Tree

_BATCH_NORM = (nn.modules.batchnorm._BatchNorm,)


def check_module(module: nn.Module) -> nn.Module:
    """Return the module if every tensor that learns is a floating parameter of its own.

    Raises:
        ValueError: For batch normalisation and for buffers that training would change: their
            statistics mix the examples of a user outside the bounded update.
    """
    for name, child in module.named_modules():
        if isinstance(child, _BATCH_NORM):
            raise ValueError(
                f"layer {name or 'itself'!r} is {type(child).__name__}: its running statistics "
                "leave the bounded update and average over a user's examples; use nn.GroupNorm "
                "or nn.LayerNorm instead"
            )
    for name, buffer in module.named_buffers():
        if not buffer.dtype.is_floating_point:
            raise ValueError(
                f"buffer {name!r} is {buffer.dtype}: an integer cannot be clipped or noised; "
                "keep a constant as a plain attribute of the module instead"
            )
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise ValueError(f"parameter {name!r} is {parameter.dtype}; call module.float()")
        if parameter.ndim == 0:
            raise ValueError(f"parameter {name!r} has no axis; give it the shape (1,)")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("the module has no parameter to train; set requires_grad on some")
    return module


def module_params(module: nn.Module) -> Params:
    """Return copies of the module's trainable parameters as float32 arrays."""
    return {
        name: p.detach().cpu().numpy().copy()
        for name, p in module.named_parameters()
        if p.requires_grad
    }


def load_params(module: nn.Module, params: Mapping[str, np.ndarray]) -> nn.Module:
    """Write params into the module's own tensors and return the module."""
    with torch.no_grad():
        own = dict(module.named_parameters())
        for name, array in params.items():
            own[name].copy_(as_tensor(np.ascontiguousarray(array)))
    return module


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over the array's memory, or over a copy where it is read-only."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


@dataclass(frozen=True, slots=True)
class ArrayExamples:
    """One user's examples as two arrays.

    Attributes:
        x: Inputs `(n, ...)`.
        y: Targets `(n, ...)`.
    """

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} inputs but {len(self.y)} targets; give one for each")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: np.ndarray) -> ArrayExamples:
        """Return the examples at these positions."""
        return ArrayExamples(self.x[index], self.y[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTrainer:
    """Plain local SGD on one resident module, params written in and read out.

    Attributes:
        module: A checked module; its tensors are overwritten by every user.
        loss: From (outputs, targets) to the mean loss of a batch.
        schedule: How much work.
        multiplier: 1/A by parameter name, applied to every gradient before the step.
    """

    module: nn.Module
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    schedule: Schedule
    multiplier: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_module(self.module)

    def train(self, params: Params, examples: Any, key: Key) -> Tree:
        """Return `local - global` params, float32, for `ArrayExamples`."""
        rng = key.generator()
        chosen = examples.take(self.schedule.choose(len(examples), rng))
        x, y = as_tensor(np.asarray(chosen.x)), as_tensor(np.asarray(chosen.y))
        module = load_params(self.module, params).train()
        trained = [(n, p) for n, p in module.named_parameters() if n in params]
        factors = {n: as_tensor(np.asarray(m)) for n, m in self.multiplier.items()}
        # A buffer that forward() changes would carry one user's examples to the next.
        buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
        # Dropout and its like draw from torch's generator: give the user a stream of its own
        # and leave the process's as it was.
        try:
            with torch.random.fork_rng(devices=[]):
                seed = int(key.fold("torch").generator().integers(2**62))
                torch.default_generator.manual_seed(seed)
                for batch in self.schedule.batches(len(chosen), rng):
                    index = torch.from_numpy(batch)
                    self._step(trained, factors, self.loss(module(x[index]), y[index]))
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
        return {n: p.detach().numpy() - params[n] for n, p in trained}

    def _step(
        self,
        trained: list[tuple[str, nn.Parameter]],
        factors: Mapping[str, torch.Tensor],
        loss: torch.Tensor,
    ) -> None:
        """Take one step of SGD; a parameter that the loss does not use stays where it is."""
        gradients = torch.autograd.grad(loss, [p for _, p in trained], allow_unused=True)
        with torch.no_grad():
            for (name, parameter), gradient in zip(trained, gradients, strict=True):
                if gradient is None:
                    continue
                if name in factors:
                    factor = factors[name]
                    extra = gradient.ndim - factor.ndim
                    gradient = gradient * factor.reshape(factor.shape + (1,) * extra)
                parameter.add_(gradient, alpha=-self.schedule.learning_rate)
