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
    """Makes a module again and again, with the same values in what is not trained.

    A parameter with `requires_grad=False`, or a buffer that is drawn, is neither trained nor
    released, so that every module of a task must have it alike: those that train, on any machine,
    and the one that is measured. What torch draws of it comes from one stream, the same for all
    runs, and replaces what the function drew: trained parameters that it computes of frozen ones
    (a head that starts as a copy) are of the values before. A module without any is what the
    function makes.

    Args:
        make: Makes the module.

    Raises:
        ValueError: At the first call, if they come out otherwise each time.
    """

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self._make = make
        self._known: Mapping[str, torch.Tensor] | None = None

    def __call__(self) -> nn.Module:
        """Return another module."""
        module = self._make()
        if self._known is None:
            self._known = self._found() if _untrained(module) else {}
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, tensor in self._known.items():
                own[name].copy_(tensor)
        return module

    def _found(self) -> dict[str, torch.Tensor]:
        first = made_from(_FROZEN, self._make)
        found, again = _untrained(first), _untrained(made_from(_FROZEN, self._make))
        for name, tensor in found.items():
            if not _same(tensor, again.get(name)):
                raise ValueError(
                    f"{name!r}, which is not trained (a buffer, or requires_grad=False), is "
                    "another whenever the module is made, and it must be the same in each "
                    "process; draw it by torch, or from a seed, or load it from a file"
                )
        drawn = _untrained(made_from(_FROZEN.fold("another stream"), self._make))
        buffers = dict(first.named_buffers())
        return {
            name: tensor
            for name, tensor in found.items()
            if name not in buffers or not _same(tensor, drawn.get(name))
        }

    @property
    def frozen(self) -> Mapping[str, np.ndarray]:
        """What is not trained, by name; empty for a module that is trained as a whole."""
        if self._known is None:
            self()
        return {name: tensor.numpy() for name, tensor in (self._known or {}).items()}


def _untrained(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return frozen parameters and buffers."""
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    found = {**frozen, **dict(module.named_buffers())}
    return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}


def _same(left: torch.Tensor, right: torch.Tensor | None) -> bool:
    """Return whether both have the same values; NaN is a value."""
    if right is None or left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(left, right) or bool(
        ((left == right) | (left != left) & (right != right)).all()
    )


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
