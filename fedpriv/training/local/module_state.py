"""Modules that are made alike in every process, and copied for every user.

A forward pass may keep something of the user that trains: a running mean in an attribute, the
hidden state of a recurrent layer. The next user would contribute of it, past its bound. So each
user trains on copies of module and loss, which share the parameters and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.rng import Key
from fedpriv.training.streams import own_stream, unlike_streams
from fedpriv.tree import brought_in

Loss = Callable[[Tensor, Tensor], Tensor]
_FROZEN = Key.simulation(0).fold("frozen parameters")
_ANOTHER = _FROZEN.fold("another stream")


def made_from(key: Key, make: Callable[[], nn.Module]) -> nn.Module:
    """Return a module whose initial weights are drawn from a key."""
    with own_stream(key):
        return make()


class SameFrozen:
    """Factory of modules whose untrained parameters always have the same values.

    A parameter with `requires_grad=False`, or a buffer that is drawn, is neither trained nor
    released, so that every module of a task must have it alike: those that train, on any machine,
    and the one that is measured. What torch draws of it comes from one stream, the same for all
    runs, and replaces what the function drew: trained parameters that it computes of frozen ones
    (a head that starts as a copy) are of the values before. A module without any is what the
    function makes.

    Args:
        make: Makes the module.
        published: Whether `frozen` leaves out what is not drawn, because it is of published files.

    Raises:
        ValueError: At the first call, if they come out otherwise each time.
    """

    def __init__(self, make: Callable[[], nn.Module], *, published: bool = False) -> None:
        self._make, self._published = make, published

    def __call__(self) -> nn.Module:
        """Return another module."""
        module = self._make()
        if _untrained(module):
            own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            with torch.no_grad():
                for name, tensor in self._same.items():
                    own[name].copy_(tensor)
        return module

    @cached_property
    def _same(self) -> dict[str, Tensor]:
        """Untrained tensors that every module gets."""
        first = self._build(_FROZEN)
        if not (found := _untrained(first)):
            return {}
        again = _untrained(self._build(_FROZEN))
        for name, tensor in found.items():
            if not _is_same(tensor, again.get(name)):
                raise ValueError(
                    f"{name!r}, which is not trained (a buffer, or requires_grad=False), is "
                    "another whenever the module is made, and it must be the same in each "
                    "process; draw it by torch, or from a seed, or load it from a file"
                )
        other = _untrained(self._build(_ANOTHER))
        drawn = {n for n, tensor in found.items() if not _is_same(tensor, other.get(n))}
        buffers = dict(first.named_buffers())
        kept_out = buffers.keys() - persistent_buffers(first).keys()
        return {
            name: tensor.clone()
            for name, tensor in found.items()
            if name in drawn or not (self._published or name in kept_out)
        }

    def _build(self, key: Key) -> nn.Module:
        with unlike_streams():  # what NumPy draws of it is another in each process
            return made_from(key, self._make)

    @cached_property
    def brought(self) -> tuple[str, ...]:
        """Names of untrained tensors that the function brings; of published files none.

        Frozen parameters and buffers.
        """
        if self._published:
            return ()
        first, second = (_arrays(_untrained(self._build(key))) for key in (_FROZEN, _ANOTHER))
        return brought_in(first, second)

    @property
    def frozen(self) -> Mapping[str, np.ndarray]:
        """Untrained parameters and buffers by name, if drawn or of `state_dict`.

        Of published ones those drawn alone.
        """
        return _arrays(self._same)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor of the CPU as a dense array, without its history; bfloat16 as float32."""
    tensor = tensor.detach().to_dense()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _is_same(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Return whether two tensors are the same to the bit; of NaN too."""
    if other is None or tensor.shape != other.shape or tensor.dtype != other.dtype:
        return False
    return as_array(tensor).tobytes() == as_array(other).tobytes()


def _untrained(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return frozen parameters and buffers, not copied."""
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    found = {**frozen, **dict(module.named_buffers())}
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors besides parameters that `state_dict` has."""
    own = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    tensors = {n: t for n, t in module.state_dict().items() if isinstance(t, Tensor)}
    return {name: tensor.cpu() for name, tensor in tensors.items() if name not in own}


def refuse_changed_buffers(module: nn.Module, trained: nn.Module) -> None:
    """Refuse a buffer that training changes, and `state_dict` has: no update carries it.

    Args:
        module: As every user finds it.
        trained: A user's copy, after its training.

    Raises:
        ValueError: If there is one.
    """
    before, after = persistent_buffers(module), persistent_buffers(trained)
    for name, tensor in (before | after).items():
        if name not in before or not _is_same(tensor, before[name]):
            raise ValueError(
                f"buffer {name!r} changes while a user trains: it leaves the bounded update, so "
                "the change is dropped, and the model would be measured and released without it; "
                "use nn.GroupNorm or nn.LayerNorm for running statistics, or register what may be "
                "lost with persistent=False"
            )


def copied_apart(module: nn.Module, loss: Loss) -> tuple[nn.Module, Loss]:
    """Return copies of a module and its loss that share the parameters, and nothing else.

    A loss may hold the parameters, say for a penalty: they stay the same objects.

    Raises:
        ValueError: If they cannot be copied.
    """
    memo = {id(p): p for p in module.parameters()}
    try:
        own, own_loss = copy.deepcopy((module, loss), memo)
    except Exception as error:
        raise ValueError(
            f"{type(module).__name__} or its loss cannot be copied ({type(error).__name__}: "
            f"{error}), and every user trains on a copy; hold no locks, files or tensors with a "
            "history"
        ) from error
    return own, own_loss


Kept = Sequence[tuple[nn.Parameter, Tensor, bool]]
"""Parameters with the tensors that hold their values, and whether they are trained."""


def kept_parameters(module: nn.Module) -> Kept:
    """Return what `put_back` needs."""
    return [(p, p.data, p.requires_grad) for p in module.parameters()]


def put_back(kept: Kept) -> None:
    """Undo that a forward pass froze parameters or put other tensors into them.

    Copies share them: the next user would be trained otherwise, or fail.
    """
    for parameter, data, trained in kept:
        parameter.data = data
        parameter.requires_grad_(trained)


@contextmanager
def parameters_apart(kept: Kept) -> Iterator[None]:
    """Have parameters hold copies of their values meanwhile: the same objects, other memory.

    A forward pass that writes into them, as of an embedding with a `max_norm`, reaches nobody else.
    """
    for parameter, data, _ in kept:
        parameter.data = data.clone()
    try:
        yield
    finally:
        put_back(kept)


# Shorter tensors of a loss are settings, such as weights of classes.
_FEW = 32


def brought_by(loss: Callable[..., Any]) -> tuple[str, ...]:
    """Return names of tensors that a loss brings, such as a teacher's weights."""
    own = _untrained(loss) | dict(loss.named_parameters()) if isinstance(loss, nn.Module) else {}
    found = {name: array for name, array in _arrays(own).items() if array.size >= _FEW}
    return brought_in(found, found)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: as_array(tensor.cpu()) for name, tensor in tensors.items()}
