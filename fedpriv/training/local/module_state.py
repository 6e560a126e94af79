"""What a module keeps besides its trained params: frozen ones, buffers, torch's generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from fedpriv.rng import Key

_CPU = torch.device("cpu")
_FROZEN = Key.simulation(0).fold("frozen parameters")


@contextmanager
def own_stream(key: Key | None, device: str | torch.device = _CPU) -> Iterator[None]:
    """Let what draws from torch's generators draw from a key; leave the process's as they were.

    Args:
        key: Whose stream; None for one that is the same for everybody, where nothing is drawn.
        device: Its generator is seeded too, where it has one of its own.
    """
    device = torch.device(device)
    seed = 0 if key is None else int(key.fold("torch").generator().integers(2**62))
    on_gpu = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def made_from(key: Key, make: Callable[[], nn.Module]) -> nn.Module:
    """Return a module whose initial weights are drawn from a key."""
    with own_stream(key):
        return make()


class SameFrozen:
    """Makes a module again and again, with the same values in its frozen parameters.

    A parameter with `requires_grad=False` is neither trained nor released, so that every module of
    a task must have it alike: those that train, on any machine, and the one that is measured. What
    torch draws of it comes from one stream, the same for all runs. A module without any is what
    the function makes.

    Args:
        make: Makes the module.

    Raises:
        ValueError: At the first call, if frozen parameters come out otherwise each time.
    """

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self._make = make
        self._known: Mapping[str, torch.Tensor] | None = None

    def __call__(self) -> nn.Module:
        """Return another module."""
        module = self._make()
        if self._known is None:
            self._known = self._found() if _frozen(module) else {}
        own = dict(module.named_parameters())
        with torch.no_grad():
            for name, tensor in self._known.items():
                own[name].copy_(tensor)
        return module

    def _found(self) -> dict[str, torch.Tensor]:
        found, again = (_frozen(made_from(_FROZEN, self._make)) for _ in range(2))
        for name, tensor in found.items():
            if name not in again or not torch.equal(tensor, again[name]):
                raise ValueError(
                    f"frozen parameter {name!r} (requires_grad=False) is another whenever the "
                    "module is made, and it must be the same in each process; draw it by torch, "
                    "or from a seed, or load it from a file"
                )
        return found

    @property
    def frozen(self) -> Mapping[str, np.ndarray]:
        """The frozen parameters by name; empty for a module that is trained as a whole."""
        if self._known is None:
            self()
        return {name: tensor.numpy() for name, tensor in (self._known or {}).items()}


def _frozen(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: p.detach().cpu().clone()
        for name, p in module.named_parameters()
        if not p.requires_grad
    }


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Put buffers back that a forward pass changes: they would tell one example of another."""
    before = [
        (layer, name, buffer, buffer.clone())
        for layer in module.modules()
        for name, buffer in layer.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for layer, name, buffer, value in before:
                setattr(layer, name, buffer.copy_(value))
