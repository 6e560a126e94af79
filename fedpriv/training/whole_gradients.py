"""Per-example gradients of any module, each of them made: the general path, and its oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedpriv.rng import Key
from fedpriv.training.example_masks import ExampleMasks
from fedpriv.training.factors import Dense
from fedpriv.training.module_state import own_stream, unchanged_buffers

Loss = Callable[[Tensor, Tensor], Tensor]


class VmapPass:
    """Per-example gradients by `torch.func`: what has no batching rule raises `RuntimeError`."""

    def __init__(self, module: nn.Module, loss: Loss, masks: ExampleMasks) -> None:
        self._module, self._loss, self._masks = module, loss, masks

    def gradients(self, x: Tensor, y: Tensor, keys: Sequence[Key] | None) -> dict[str, Dense]:
        """Return the gradients of a chunk's examples, at the module's own parameters."""
        own = {n: p.detach() for n, p in self._module.named_parameters() if p.requires_grad}
        masks = self._drawn(x, keys)

        def loss_of(params: dict[str, Tensor], x: Tensor, y: Tensor, masks: list[Tensor]) -> Tensor:
            with self._masks.given([mask.unsqueeze(0) for mask in masks]):
                outputs = functional_call(self._module, params, (x.unsqueeze(0),))
            return self._loss(outputs, y.unsqueeze(0))

        each = vmap(grad(loss_of), in_dims=(None, 0, 0, 0))
        return {name: Dense(g.detach()) for name, g in each(own, x, y, masks).items()}

    def _drawn(self, x: Tensor, keys: Sequence[Key] | None) -> list[Tensor]:
        """Return every call's masks `(b, ...)`; the numbers are those the factored path draws."""
        if keys is None or not self._masks:
            return []
        each = []
        for row, key in zip(x.split(1), keys, strict=True):
            with torch.no_grad(), self._masks.drawn([key]) as masks:
                self._module(row)
            each.append(masks)
        return [torch.cat(rows) for rows in zip(*each, strict=True)]


class LoopPass:
    """Per-example gradients one after the other: slow, and for every module there is.

    Layers that draw from torch's own generator have a stream of each example's own.
    """

    def __init__(self, module: nn.Module, loss: Loss, masks: ExampleMasks) -> None:
        self._module, self._loss, self._masks = module, loss, masks

    def gradients(self, x: Tensor, y: Tensor, keys: Sequence[Key] | None) -> dict[str, Dense]:
        """Return the gradients of a chunk's examples, at the module's own parameters."""
        own = {n: p for n, p in self._module.named_parameters() if p.requires_grad}
        made = {n: p.new_zeros((len(x), *p.shape)) for n, p in own.items()}
        for number in range(len(x)):
            one = slice(number, number + 1)
            key = None if keys is None else keys[number]
            with (
                own_stream(key, x.device),
                unchanged_buffers(self._module),
                self._masks.drawn(None if key is None else [key]),
            ):
                with torch.enable_grad():
                    loss = self._loss(self._module(x[one]), y[one])
                found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
            for name, gradient in zip(own, found, strict=True):
                if gradient is not None:
                    made[name][number] = gradient
        return {name: Dense(gradients) for name, gradients in made.items()}
