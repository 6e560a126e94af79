"""What a module keeps and draws from besides its parameters: torch's generators, and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fedpriv.rng import Key

_CPU = torch.device("cpu")


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
