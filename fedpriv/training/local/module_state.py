"""What a module keeps besides its trained params: frozen ones, buffers, attributes, generators."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
    before = _buffers_of(module.modules())
    try:
        yield
    finally:
        _put_buffers_back(before)


_Buffers = list[tuple[nn.Module, dict[str, tuple[torch.Tensor | None, torch.Tensor | None]]]]


def _buffers_of(layers: Any) -> _Buffers:
    """Return each layer's buffers with a copy; one that is None may be set by a forward pass."""
    return [
        (layer, {n: (b, None if b is None else b.clone()) for n, b in layer._buffers.items()})
        for layer in layers
    ]


def _put_buffers_back(before: _Buffers) -> None:
    with torch.no_grad():
        for layer, buffers in before:
            for name in [name for name in layer._buffers if name not in buffers]:
                del layer._buffers[name]
            for name, (buffer, value) in buffers.items():
                back = buffer if buffer is None or value is None else buffer.copy_(value)
                if name not in layer._buffers or layer._buffers[name] is not back:
                    layer._buffers[name] = back


# What every module has: dictionaries of parameters, buffers, children and hooks, and flags.
_EVERY_MODULES = frozenset(vars(nn.Module()))
_CONSTANTS = (
    int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device, np.generic,
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
)  # fmt: skip


class OwnState:
    """What modules and a loss hold besides the values of their parameters, to be put back.

    A forward pass may keep something of the user that trains: a running mean in an attribute, the
    hidden state of a recurrent layer. The next user would contribute of it, past its bound.

    Put back are buffers, plain attributes and all that lies in them (lists, dictionaries, objects,
    generators), which parameters, buffers, layers and hooks there are, and which parameters are
    trained. What holds the users' state elsewhere is not: values of frozen parameters, class
    attributes, globals, variables that a function closes over, and what cannot be copied. There
    `fedpriv.training.local.hidden_state.refuse_kept_state` looks, before a run.

    Args:
        roots: Modules, or objects that are called as the loss; functions are left as they are.
    """

    def __init__(self, *roots: Any) -> None:
        objects: dict[int, Any] = {}
        for root in roots:
            if isinstance(root, nn.Module):
                objects |= {id(layer): layer for layer in root.modules()}
            elif not isinstance(root, _CONSTANTS) and hasattr(root, "__dict__"):
                objects[id(root)] = root
        layers = [one for one in objects.values() if isinstance(one, nn.Module)]
        self._buffers = _buffers_of(layers)
        parameters = {id(p): p for layer in layers for p in layer._parameters.values()}
        parameters.pop(id(None), None)
        self._parameters = [
            (p, p.data, p.requires_grad) for p in parameters.values() if p is not None
        ]
        # These are themselves in a copy of whatever refers to them.
        self._shared = {**objects, **parameters}
        self._shared |= {id(b): b for _, named in self._buffers for b, _ in named.values()}
        self._shared.pop(id(None), None)
        memo = dict(self._shared)
        self._objects = [self._of(one, memo) for one in objects.values()]

    @staticmethod
    def _of(one: Any, memo: dict[int, Any]) -> tuple[Any, dict, dict, list]:
        """Return an object with its constants, copies of the rest, and its own dictionaries."""
        constants, rest, filled = {}, {}, []
        for name, value in vars(one).items():
            constants[name] = value
            if isinstance(one, nn.Module) and name in _EVERY_MODULES:
                if name != "_buffers" and isinstance(value, (dict, set)):
                    filled.append((value, value.copy()))
            elif not _is_constant(value):
                try:
                    rest[name] = copy.deepcopy(value, memo)
                except Exception:  # a lock, an open file, a tensor with a history
                    continue
        return one, constants, rest, filled

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Have everything as it was, at the beginning of the `with` and at its end."""
        self.put_back()
        try:
            yield
        finally:
            self.put_back()

    def put_back(self) -> None:
        """Have everything as it was."""
        memo = dict(self._shared)
        for one, constants, rest, filled in self._objects:
            held = vars(one)
            held.clear()
            held.update(constants)
            for name, value in rest.items():
                held[name] = copy.deepcopy(value, memo)
            for dictionary, before in filled:
                if dictionary or before:
                    dictionary.clear()
                    dictionary.update(before)
        for parameter, data, trained in self._parameters:
            parameter.data = data
            parameter.requires_grad_(trained)
        _put_buffers_back(self._buffers)


def _is_constant(value: Any) -> bool:
    return isinstance(value, _CONSTANTS) or (
        type(value) is tuple and all(_is_constant(item) for item in value)
    )
