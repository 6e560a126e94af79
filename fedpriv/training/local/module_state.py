"""State that a module or a loss keeps besides its trained parameters: put back, or detected.

Buffers, attributes and generators are put back after each user (`OwnState`). A running mean in a
plain attribute would carry one example into the gradient of the next, where no bound sees it: while
examples are trained one after the other, what each leaves behind is compared (`held`). Before a run
`refuse_kept_state` looks further, on public or synthetic examples.
"""

from __future__ import annotations

import copy
import itertools
import queue
import random
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from inspect import getgeneratorlocals
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.rng import Key
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import own_stream, unlike_streams
from fedpriv.tree import brought_in

T = TypeVar("T")
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
        self._known: Mapping[str, torch.Tensor] | None = None
        self._brought: tuple[str, ...] | None = None

    def __call__(self) -> nn.Module:
        """Return another module."""
        module = self._make()
        if self._known is None:
            self._known = self._find_untrained() if _untrained(module) else {}
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, tensor in self._known.items():
                own[name].copy_(tensor)
        return module

    def _find_untrained(self) -> dict[str, torch.Tensor]:
        first, again = self._made(_FROZEN), _untrained(self._made(_FROZEN))
        found = _untrained(first)
        for name, tensor in found.items():
            if _compared(tensor) != _compared(again.get(name)):
                raise ValueError(
                    f"{name!r}, which is not trained (a buffer, or requires_grad=False), is "
                    "another whenever the module is made, and it must be the same in each "
                    "process; draw it by torch, or from a seed, or load it from a file"
                )
        other = _untrained(self._made(_ANOTHER))
        drawn = {n for n, tensor in found.items() if _compared(tensor) != _compared(other.get(n))}
        buffers = dict(first.named_buffers())
        return {
            name: tensor.clone()
            for name, tensor in found.items()
            if name in drawn or not (self._published or name in buffers)
        }

    def _made(self, key: Key) -> nn.Module:
        with unlike_streams():  # what NumPy draws of it is another in each process
            return made_from(key, self._make)

    @property
    def brought(self) -> tuple[str, ...]:
        """Names of untrained tensors that the function brings; of published files none.

        Frozen parameters and buffers, and what else a module holds or its code names (`held`).
        """
        if self._brought is None:
            pair = () if self._published else map(self._made, (_FROZEN, _ANOTHER))
            found = [_arrays(_untrained(one)) | held_arrays(one) for one in pair]
            self._brought = brought_in(*found) if found else ()
        return self._brought

    @property
    def frozen(self) -> Mapping[str, np.ndarray]:
        """Untrained parameters and drawn buffers by name; of published ones those drawn alone."""
        if self._known is None:
            self()
        return {name: as_array(tensor) for name, tensor in (self._known or {}).items()}


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor of the CPU as a dense array, without its history; bfloat16 as float32."""
    tensor = tensor.detach().to_dense()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _untrained(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return frozen parameters and buffers, not copied."""
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    found = {**frozen, **dict(module.named_buffers())}
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put every layer in evaluation mode, and afterwards back to its own."""
    before = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for layer, training in before.items():
            layer.training = training


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Restore buffers that a forward pass changes: they would reveal one example to the next."""
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
    """State of modules and a loss besides parameters, kept so that it can be restored.

    A forward pass may keep something of the user that trains: a running mean in an attribute, the
    hidden state of a recurrent layer. The next user would contribute of it, past its bound.

    Put back are buffers, plain attributes and all that lies in them (lists, dictionaries, objects,
    generators), which parameters, buffers, layers and hooks there are, and which parameters are
    trained. What holds the users' state elsewhere is not: values of frozen parameters, class
    attributes, globals, variables that a function closes over, and what cannot be copied. There
    `fedpriv.training.local.module_state.refuse_kept_state` looks, before a run.

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
        """Restore the state at the beginning and at the end of the `with`."""
        self.put_back()
        try:
            yield
        finally:
            self.put_back()

    def put_back(self) -> None:
        """Restore the state."""
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


_KEY = Key.simulation(0).fold("kept state")
_SAME = 1e-4
# Enough for any model, and not for a data set that a function happens to name.
_MOST_LOOKED_AT = 100_000
# Of what is looked at for every sum of a simulation.
_MOST_OF_USERS = 5_000
# Shorter arrays that a module holds besides its tensors are settings, not weights.
_FEW = 32
# Longer arrays are compared by their sums.
_LONG = 1 << 20
# A module of so few parameters is asked more often, and so many times more in the end.
_CHEAP, _CALLS = 1 << 20, 40
# By how much other batches have larger and smaller numbers, and of how many examples one is.
_LARGE, _MANY = 100.0, 32
_HERE = str(Path(__file__).parents[2])
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
_SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic)
# Seeded for each user, and moved by any thread.
_GLOBAL_GENERATORS = (random.random.__self__, np.random.random.__self__)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def refuse_kept_state(
    make: Callable[[], nn.Module], loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
) -> None:
    """Refuse a module or a loss that one user's batch changes for the next one's.

    Pairs of batches go through in turn: as given, of larger and of smaller numbers, of one example
    and of many, and in the end all of them again, some dozens in all where the module is small.
    Looked at are each batch's gradient, which must be the same whatever went before, on a module
    made anew too, and what each leaves behind in attributes, lists, dictionaries and objects, in
    frozen parameters, in class attributes, in variables that functions close over, and in globals
    that they name. Buffers are not: they are put back. Nor is the state of the global generators,
    which other threads move: they are seeded for each user (`fedpriv.training.streams`), and
    otherwise in each look, so that a gradient that follows from Python's or NumPy's is refused.

    Not found is what shows on none of these batches and lies elsewhere (a file, a C extension, a
    library's own globals): what is kept of particular inputs, of more calls than these, of another
    process or thread, or is made once of the first data that a process ever sees. In a simulation
    `unchanged_by_users` looks again, with the users' own examples.

    Args:
        make: Makes the module, the same each time, on one device.
        loss: From (outputs, targets) to the mean loss of a batch.
        x: Inputs `(n, ...)` of no one on a roster, on the module's device.
        y: Their targets.

    Raises:
        KeepsStateError: Names where it is kept. A module that raises is no matter of this.
    """
    module = make().train()
    weights = [p.detach().clone() for p in module.parameters()]
    cheap = sum(w.numel() for w in weights) <= _CHEAP
    taken, behind = [], {}
    for first, second in _pairs(x, y, cheap):
        try:
            before = _gradients(module, loss, first)
            behind = held(module, loss)
            other = _gradients(module, loss, second)
        except Exception as error:
            end_if_interrupted(error)
            continue
        refuse_other(behind, held(module, loss))
        taken += [(first, before), (second, other)]
    if not taken:
        return
    for _ in range(-(-_CALLS // len(taken)) if cheap else 1):
        for batch, before in taken:  # the last is of the shape after which was looked
            _refuse_another(module, loss, batch, before)
    refuse_other(behind, held(module, loss))
    anew = make().train()
    with torch.no_grad():
        for parameter, weight in zip(anew.parameters(), weights, strict=True):
            parameter.data.copy_(weight)
    for batch, before in reversed(taken):
        _refuse_another(anew, loss, batch, before)


def _gradients(
    module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], of: tuple[Tensor, Tensor]
) -> list[Tensor | None]:
    trained = [p for p in module.parameters() if p.requires_grad]
    device = next(module.parameters()).device
    with (
        unlike_streams(),
        own_stream(_KEY, device),
        unchanged_buffers(module),
        torch.enable_grad(),
    ):
        found = loss(module(of[0]), of[1])
        return list(torch.autograd.grad(found, trained, allow_unused=True))


def _refuse_another(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: tuple[Tensor, Tensor],
    before: list[Tensor | None],
) -> None:
    """Refuse a module on which a batch has another gradient than it had before."""
    try:
        after = _gradients(module, loss, batch)
    except Exception as error:
        end_if_interrupted(error)
        raise KeepsStateError(
            f"the model raised a {type(error).__name__} at a batch that it had taken before: it "
            "keeps something of one batch for the next; detach and keep nothing"
        ) from error
    if not all(map(_near, before, after)):
        raise KeepsStateError(
            "a batch's gradient is another one after other batches went through: the module or "
            "the loss keeps something where no bound sees it, or draws from a generator of its "
            "own, or from Python's or NumPy's; keep nothing, and draw from torch's own generators"
        )


def _pairs(x: Tensor, y: Tensor, cheap: bool) -> list[tuple[tuple[Tensor, Tensor], ...]]:
    """Return pairs of batches, each pair of one shape, of different examples where there are two.

    Each but the first is of other numbers, or of another number of examples; of what is expensive
    there are fewer.
    """
    half = len(x) // 2
    ends = [(x[:half], y[:half]), (x[half : 2 * half], y[half : 2 * half])]
    if not half:
        ends = [(x, y), (-x if x.is_floating_point() else x, y)]
    pairs = [tuple(ends)]
    if x.is_floating_point():
        scales = (_LARGE, 1 / _LARGE) if cheap else (_LARGE,)
        pairs += [tuple((scale * a, b) for a, b in ends) for scale in scales]
    if len(x):
        for number in (_MANY, 1) if cheap else (1,):
            index = [torch.arange(number, device=a.device) % len(a) for a, _ in ends]
            pairs.append(tuple((a[i], b[i]) for (a, b), i in zip(ends, index, strict=True)))
    return pairs


@contextmanager
def unchanged_by_users(*roots: Any) -> Iterator[None]:
    """Refuse at the end of the `with` what users have changed of what objects and functions hold.

    Looked at is what `refuse_kept_state` looks at. What is new there, or was None, may be a
    constant that was made at the first call, and is let pass. It reveals something of the users'
    examples, and is for simulations alone.

    Raises:
        KeepsStateError: Names where.
    """
    before = held(*roots, most=_MOST_OF_USERS, trained=False)
    yield
    after = held(*roots, most=_MOST_OF_USERS, trained=False)
    nothing = _compared(None)
    both = {p for p, value in before.items() if p in after and value != nothing}
    refuse_other({p: before[p] for p in both}, {p: after[p] for p in both})


def refuse_other(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse two states, as `held` returns them, that are not the same.

    Raises:
        KeepsStateError: Names the first place that differs.
    """
    for place in sorted(before.keys() | after.keys()):
        if place not in before or place not in after or before[place] != after[place]:
            raise KeepsStateError(
                f"a batch leaves something behind in {place}, where it would reach other users or "
                "examples past the bound; let the forward pass and the loss change nothing (return "
                "it, or make it a constant), and draw random numbers from torch's own generators"
            )


def _near(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.allclose(left, right, rtol=_SAME, atol=_SAME * _SAME, equal_nan=True)


def held(*roots: Any, most: int = _MOST_LOOKED_AT, trained: bool = True) -> Mapping[str, Any]:
    """Return what objects and functions hold, by place: values that can be compared.

    Args:
        roots: Where to begin.
        most: How many values are looked at.
        trained: Whether at trained parameters, too, where an attribute names them, as in layers of
            recurrent networks: users change them, and each is given them anew.
    """
    return {place: compared for place, _, compared in _held(roots, most, trained)}


def held_arrays(*roots: Any) -> dict[str, np.ndarray]:
    """Return the arrays of numbers that objects and functions hold, by place; as of `held`.

    Trained parameters and buffers of modules are left out, and what has fewer numbers than `_FEW`.
    """
    found = {}
    for place, value, _ in _held(roots, _MOST_LOOKED_AT, trained=False):
        if isinstance(value, Tensor):
            value = as_array(value.cpu())
        if isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.size >= _FEW:
            found[place] = value
    return found


def brought_by(loss: Callable[..., Any]) -> tuple[str, ...]:
    """Return names of arrays that a loss brings, such as a teacher's weights."""
    own = _untrained(loss) | dict(loss.named_parameters()) if isinstance(loss, nn.Module) else {}
    found = held_arrays(loss) | {n: a for n, a in _arrays(own).items() if a.size >= _FEW}
    return brought_in(found, found)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: as_array(tensor.cpu()) for name, tensor in tensors.items()}


def _held(roots: Iterable[Any], most: int, trained: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place of each value, the value, and what it is compared by."""
    number = 0
    seen: dict[int, Any] = {}
    left = [(_name(root), root) for root in roots]
    while left and len(seen) + number < most:
        place, value = left.pop()
        if any(value is one for one in _GLOBAL_GENERATORS):
            continue
        if not trained and isinstance(value, nn.Parameter) and value.requires_grad:
            continue
        compared = _compared(value)
        if compared is not None:
            number += 1
            yield place, value, compared
        elif id(value) not in seen:
            seen[id(value)] = value
            left += _inside(place, value)


def _compared(value: Any) -> Any:
    """Return what distinguishes a value from another; None for what is looked into instead."""
    if isinstance(value, (*_SCALARS, itertools.count)):
        return type(value), repr(value)
    if isinstance(value, torch.Generator):
        return _digest(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, Tensor):
        return value.shape, value.dtype, _digest(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        if value.size > _LONG and value.dtype.kind in "biuf":
            return value.shape, value.dtype, repr(value.sum(dtype=np.float64))
        return value.shape, value.dtype, blake2b(value.tobytes(), digest_size=16).digest()
    return None


def _digest(tensor: Tensor) -> Any:
    try:
        if tensor.numel() > _LONG:
            return repr(tensor.detach().sum(dtype=torch.float64).item())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return blake2b(flat.numpy().tobytes(), digest_size=16).digest()
    except Exception:  # sparse, or of a transformation that has ended
        return type(tensor).__name__


def _inside(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what lies in a value, and where."""
    if isinstance(value, Mapping):
        for name in list(value):
            yield f"the key {name!r:.40} of {place}", True
            yield f"{place}[{name!r:.40}]", value[name]
    elif isinstance(value, (list, tuple, deque)):
        yield f"len({place})", len(value)
        for number, item in enumerate(value):
            yield f"{place}[{number}]", item
    elif isinstance(value, (set, frozenset)):
        yield place, len(value)
        yield f"what is in {place}", "".join(sorted(map(repr, filter(_is_scalar, value))))
    elif isinstance(value, types.MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, partial):
        yield from ((place, value.func), (place, value.args), (place, value.keywords))
    elif isinstance(value, types.FunctionType):
        yield from _of_function(place, value)
    elif isinstance(value, type):
        if _is_own(sys.modules.get(value.__module__)):
            for name, item in list(vars(value).items()):
                if not name.startswith("__"):
                    yield f"{value.__qualname__}.{name} of the class", item
            yield from ((place, base) for base in value.__bases__)
    elif isinstance(value, (classmethod, staticmethod)):
        yield place, value.__func__
    elif isinstance(value, nn.Module):
        yield from _of_layer(place, value)
    elif isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        yield f"how far {place} is", None if frame is None else frame.f_lasti
        yield from (
            (f"{name} in {place}", item) for name, item in getgeneratorlocals(value).items()
        )
    elif isinstance(value, ContextVar):
        yield f"{place}.get()", value.get(None)
    elif isinstance(value, threading.local):
        yield f"vars({place})", vars(value)
    elif isinstance(value, (queue.Queue, queue.SimpleQueue)):
        yield f"{place}.qsize()", value.qsize()
    elif _is_own(sys.modules.get(type(value).__module__)):
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    yield f"{place}.{name}", getattr(value, name)
        yield from (
            (f"{place}.{name}", i) for name, i in list(getattr(value, "__dict__", {}).items())
        )
        yield place, type(value)


def _of_layer(place: str, layer: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, item in list(vars(layer).items()):
        if name not in _EVERY_MODULES:
            yield f"{place}.{name}", item
    for name, parameter in layer._parameters.items():
        if parameter is not None and not parameter.requires_grad:
            yield f"the frozen parameter {place}.{name}", parameter
    for name, child in layer._modules.items():
        yield f"{place}.{name}", child
    for hooks in _HOOKS:
        for number, hook in enumerate(getattr(layer, hooks, {}).values()):
            yield f"hook {number} of {place}", hook
    yield place, type(layer)


def _of_function(place: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function closes over, its defaults, and globals that its code names."""
    if not _is_own(sys.modules.get(function.__module__)):
        return
    code, scope = function.__code__, function.__globals__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"{name!r}, which {place} closes over", cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield f"the defaults of {place}", (function.__defaults__, function.__kwdefaults__)
    yield f"the attributes of {place}", vars(function)
    names = _names(code)
    for name in names & scope.keys():
        item = scope[name]
        if not isinstance(item, types.ModuleType):
            yield f"the global {function.__module__}.{name}", item
        elif _is_own(item):
            for inner in names & vars(item).keys():
                yield f"the global {item.__name__}.{inner}", vars(item)[inner]


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(item) for item in code.co_consts if isinstance(item, types.CodeType))
    return set(code.co_names).union(*inner)


def _is_own(module: types.ModuleType | None) -> bool:
    """Return whether a module is neither ours nor a library's, whose caches mean nothing."""
    file = getattr(module, "__file__", None)
    if file is None:  # of a notebook, or an interpreter; else built in
        return module is not None and module.__name__ == "__main__"
    return not str(file).startswith((_HERE, *_LIBRARIES))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, _SCALARS)


def _name(value: Any) -> str:
    return value.__name__ if isinstance(value, types.FunctionType) else type(value).__name__
