"""Each example's loss at a module's params, as if no other example were there.

A module may mix what goes through it together, in evaluation too, where no gradient is tried. So
the module never sees two examples at once: `torch.func.vmap` gives it a batch of one and takes
many of those together, and what has no batching rule goes one after the other. What is kept from
one example to the next is looked for on synthetic inputs, before the training set is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.hidden_state import (
    attributes,
    put_back,
    refuse_change,
)
from fedpriv.training.local.module_state import own_stream, unchanged_buffers
from fedpriv.training.per_example.synthetic_inputs import moved, synthetic_inputs
from fedpriv.training.stopping import end_if_interrupted

Loss = Callable[[Tensor, Tensor], Tensor]

_TRIED = 3
_SAME = 1e-4


class SingleLosses:
    """Losses of single examples, in evaluation mode.

    Args:
        module: On its device; it is as it was afterwards.
        loss: From (outputs, targets) to the mean loss of a batch, here always of one.
        x: Inputs of the training set `(n, ...)`; only the shape and dtype of one are looked at.
        y: Targets, likewise.

    Guarantees:
        * An example's loss depends on the params and on itself, and draws, if the module draws,
          from one stream that is the same for everybody.

    Raises:
        ValueError: If an example finds what another has left.
    """

    def __init__(self, module: nn.Module, loss: Loss, x: np.ndarray, y: np.ndarray) -> None:
        self._module, self._loss = module, loss
        self._device = next(module.parameters()).device
        self._at_once = False
        with moved(module, torch.float32), _looking(module):
            left, right, _ = synthetic_inputs(module, x, y, _TRIED, torch.float32)
            self._at_once = self._tried(left, right)

    def of(self, x: Tensor, y: Tensor, chunk: int) -> np.ndarray:
        """Return the losses at the module's own params, float64 `(n,)`.

        Args:
            x: Inputs `(n, ...)`, on the module's device.
            y: Targets `(n, ...)`.
            chunk: Examples that are held at once.

        Raises:
            KeepsStateError: A ValueError; if examples that go one after the other leave different
                attributes behind.
        """
        with _looking(self._module):
            if self._at_once:
                return self._batched(x, y, chunk)
            return np.array(self._one_by_one(x, y), np.float64)

    def _batched(self, x: Tensor, y: Tensor, chunk: int) -> np.ndarray:
        found = np.empty(len(x))
        each = vmap(lambda own, target: self._loss_of(own[None], target[None]))
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            with unchanged_buffers(self._module):
                found[part] = each(x[part], y[part]).double().cpu().numpy()
        return found

    def _one_by_one(self, x: Tensor, y: Tensor) -> list[float]:
        found, behind = [], None
        for number in range(len(x)):
            found.append(self._single(x[number : number + 1], y[number : number + 1]))
            if number == 0 and len(x) > 1:
                behind = attributes(self._module)
        if behind is not None:
            refuse_change(behind, attributes(self._module))
        return found

    def _single(self, x: Tensor, y: Tensor) -> float:
        with own_stream(None, self._device), unchanged_buffers(self._module):
            return float(self._loss_of(x, y))

    def _loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        return self._loss(self._module(x), y).reshape(())

    def _tried(self, x: Tensor, y: Tensor) -> bool:
        """Return whether synthetic examples may be batched.

        Raises:
            KeepsStateError: If an example finds what another has left.
        """
        try:
            alone = [self._twice(x, y, number) for number in range(_TRIED)]
        except KeepsStateError:
            raise
        except Exception as error:  # has no use for synthetic inputs
            end_if_interrupted(error)
            return False
        before = attributes(self._module)
        try:
            found = self._batched(x, y, _TRIED)
            refuse_change(before, attributes(self._module))
        except Exception as error:  # no batching rule
            end_if_interrupted(error)
            put_back(self._module, before)
            return False
        return np.allclose(found, alone, rtol=_SAME, atol=_SAME * _SAME, equal_nan=True)

    def _twice(self, x: Tensor, y: Tensor, number: int) -> float:
        """Return one example's loss, which is the same after another one went through."""
        one = slice(number, number + 1)
        other = slice((number + 1) % _TRIED, (number + 1) % _TRIED + 1)
        fresh = attributes(self._module)
        first = self._single(x[one], y[one])
        behind = attributes(self._module)
        put_back(self._module, fresh)
        self._single(x[other], y[other])
        refuse_change(behind, attributes(self._module))
        again = self._single(x[one], y[one])
        refuse_change(behind, attributes(self._module))
        if not np.isclose(first, again, rtol=_SAME, atol=_SAME * _SAME, equal_nan=True):
            raise KeepsStateError(
                "an example's loss is another one after a second example went through: the module "
                "or the loss keeps something where no bound sees it, or draws from a generator of "
                "its own; keep nothing, and draw from torch's own generators"
            )
        return first


@contextmanager
def _looking(module: nn.Module) -> Iterator[None]:
    before = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for layer, training in before.items():
            layer.training = training
