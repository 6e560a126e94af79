"""Per-example gradients of any module, each of them made: the general path, and its oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedpriv.rng import Key
from fedpriv.training.local.hidden_state import attributes, refuse_change
from fedpriv.training.local.module_state import own_stream, unchanged_buffers
from fedpriv.training.per_example.ghost.masks import ExampleMasks
from fedpriv.training.per_example.ghost.norms import Dense, Factor

Loss = Callable[[Tensor, Tensor], Tensor]


class Pass(Protocol):
    """Makes per-example gradients of a chunk."""

    def gradients(self, x: Tensor, y: Tensor, keys: Sequence[Key] | None) -> Mapping[str, Factor]:
        """Return the gradients at the module's own parameters, by name.

        Args:
            x: Inputs `(b, ...)`, b at least 1.
            y: Targets `(b, ...)`.
            keys: One for each example; None for a forward pass that draws nothing.
        """
        ...


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
        """Return every call's masks `(b, ...)`; the numbers are those the ghost path draws."""
        if keys is None or not self._masks:
            return []
        each = []
        for row, key in zip(x.split(1), keys, strict=True):
            with torch.no_grad(), self._masks.drawn([key]) as masks:
                self._module(row)
            each.append(masks)
        return [torch.cat(rows) for rows in zip(*each, strict=True)]


class LoopPass:
    """Per-example gradients one after the other: slow, and for every module that keeps nothing.

    Layers that draw from torch's own generator have a stream of each example's own. Buffers are
    put back after each example. What a forward pass keeps anywhere else would tell the next
    example of this one: a chunk's examples must leave the same plain attributes behind, and the
    trial (`fedpriv.training.per_example.independence`) has looked for more.
    """

    def __init__(self, module: nn.Module, loss: Loss, masks: ExampleMasks) -> None:
        self._module, self._loss, self._masks = module, loss, masks

    def gradients(self, x: Tensor, y: Tensor, keys: Sequence[Key] | None) -> dict[str, Dense]:
        """Return the gradients of a chunk's examples, at the module's own parameters.

        Raises:
            KeepsStateError: A ValueError; if examples leave different attributes behind.
        """
        own = {n: p for n, p in self._module.named_parameters() if p.requires_grad}
        made = {n: p.new_zeros((len(x), *p.shape)) for n, p in own.items()}
        behind = None
        for number in range(len(x)):
            one = slice(number, number + 1)
            key = None if keys is None else keys[number]
            with own_stream(key, x.device), self.single_loss(x[one], y[one], key) as loss:
                found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
            for name, gradient in zip(own, found, strict=True):
                if gradient is not None:
                    made[name][number] = gradient
            if number == 0 and len(x) > 1:
                behind = attributes(self._module)
        if behind is not None:
            refuse_change(behind, attributes(self._module))
        return {name: Dense(gradients) for name, gradients in made.items()}

    @contextmanager
    def single_loss(self, x: Tensor, y: Tensor, key: Key | None) -> Iterator[Tensor]:
        """Give one example's loss, of `x` and `y` with a first axis of one; then mend buffers.

        What the module draws by itself comes from torch's generators as they stand.
        """
        with unchanged_buffers(self._module):
            with self._masks.drawn(None if key is None else [key]), torch.enable_grad():
                loss = self._loss(self._module(x), y)
            yield loss
