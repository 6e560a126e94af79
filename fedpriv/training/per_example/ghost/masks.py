"""Dropout for single examples: each draws its masks from a key of its own.

A mask drawn for a batch would depend on an example's place in it, so that leaving one example out
would change the masks, and the gradients, of all that come after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.rng import Key


class ExampleMasks:
    """Takes the place of a module's `nn.Dropout` layers while it is asked to.

    Every example's generator is read call by call, in the order of the forward pass, so that an
    example has the same masks in a batch and alone.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [m for m in module.modules() if type(m) is nn.Dropout and m.p > 0.0]

    def __bool__(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self._layers)

    @contextmanager
    def drawn(self, keys: Sequence[Key] | None) -> Iterator[list[Tensor]]:
        """Let the layers draw masks for a batch; give the list of those drawn.

        Args:
            keys: One for each example; None to drop nothing.
        """
        generators = [key.fold("dropout").generator() for key in keys or ()]
        masks: list[Tensor] = []

        def draw(layer: nn.Module, _: object, output: Tensor) -> Tensor:
            rate, shape = float(layer.p), output.shape[1:]  # type: ignore[arg-type]
            if len(output) != len(generators):
                raise ValueError(
                    f"dropout sees {len(output)} rows for {len(generators)} examples; keep the "
                    "examples on the first axis"
                )
            rows = [rng.random(shape, np.float32) >= rate for rng in generators]
            kept = torch.from_numpy(np.stack(rows)).to(output.device, output.dtype)
            masks.append(kept / (1.0 - rate) if rate < 1.0 else kept.zero_())
            return output * masks[-1]

        with self._hooked(None if keys is None else draw):
            yield masks

    @contextmanager
    def given(self, masks: Sequence[Tensor]) -> Iterator[None]:
        """Let the layers use masks `(1, ...)`, call by call."""
        left = list(masks)

        def use(layer: nn.Module, _: object, output: Tensor) -> Tensor:
            return output * left.pop(0)

        with self._hooked(use if left else None):
            yield

    @contextmanager
    def _hooked(self, hook: object) -> Iterator[None]:
        """Switch the layers off, and let the hook change what they return."""
        before = [layer.training for layer in self._layers]
        handles = []
        try:
            for layer in self._layers:
                layer.training = False
                if hook is not None:
                    handles.append(layer.register_forward_hook(hook))  # type: ignore[arg-type]
            yield
        finally:
            for handle in handles:
                handle.remove()
            for layer, mode in zip(self._layers, before, strict=True):
                layer.training = mode
