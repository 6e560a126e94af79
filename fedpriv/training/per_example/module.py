"""Single examples' gradients, for any `nn.Module`.

=========  ==============================================  ======================================
way        for                                             what it holds of an example
=========  ==============================================  ======================================
factors    modules whose trained parameters are those of   each layer's input and the gradient by
           linear layers that are called once on vectors   its output
vmap       what else `torch.func` can vectorise            its whole gradient
loop       everything else: `nn.LSTM`, code that looks at  the same, one example after the other
           values
=========  ==============================================  ======================================

The module is given one example at a time, vectorised or not, so that no example can reach another
through it. Gradients are made on a copy of module and loss, so that nothing that they keep reaches
the next ones.

Reference for the factors: Goodfellow, "Efficient Per-Example Gradient Computations" (2015).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.models.images import SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.sums import RunningSum
from fedpriv.training.bounded_sum import Stack
from fedpriv.training.devices import bytes_at_once, kept_bytes, usable_device
from fedpriv.training.dp_agd import move_along
from fedpriv.training.failures import KeepsStateError, contributing_zero_on_failure
from fedpriv.training.local.module import check_module, load_params, model_inputs, model_targets
from fedpriv.training.local.module_state import copied_apart, kept_parameters, parameters_apart
from fedpriv.training.per_example.example_sum import ExampleGradients, Examples
from fedpriv.training.per_example.losses import (
    Loss,
    check_loss,
    evaluation_losses,
    example_loss,
    synthetic_inputs,
)
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import own_stream
from fedpriv.tree import Params

Way = Literal["factors", "vmap", "loop"]
WAYS: tuple[Way, ...] = ("factors", "vmap", "loop")

_KEY = Key.simulation(0).fold("synthetic examples")
_TRIED = 3
_NUMBERS_AT_A_TIME = 1 << 20
_MOST = 1024
_SAME = 1e-4  # relative differences that count as rounding


Updates = Mapping[str, tuple[Tensor, ...]]
"""Minus the gradients of some examples by name, float32: one tensor `(b, *shape)`, or the two
factors `(b, rows)` and `(b, columns)` of outer products."""


def _whole(parts: Sequence[Tensor]) -> Tensor:
    """Return `(b, *shape)`; two factors are multiplied out."""
    return parts[0] if len(parts) == 1 else parts[0][:, :, None] * parts[1][:, None]


def _shape_of(parts: Sequence[Tensor]) -> list[int]:
    """Return the shape of one example's update."""
    return [width for part in parts for width in part.shape[1:]]


@dataclass(frozen=True, kw_only=True)
class GradientStack(Stack):
    """Minus the gradients of a chunk of examples, or the means over groups, not bounded yet.

    A contribution is (own · Δ + offset) · multiplier in float64. Two factors are multiplied out
    only where there is an offset.

    Attributes:
        updates: Δ, on the module's device.
        own: Weight of Δ.
        offset: float64 by name; empty for zeros.
        multiplier: float64 by name, in a tensor's shape; ones for a name that is left out.
    """

    updates: Updates = field(repr=False)
    own: float = 1.0
    offset: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor], repr=False)
    multiplier: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor], repr=False)

    def mixed(self, mixture: Mixture) -> GradientStack:
        """Return own · Δ + offset of every contribution Δ."""
        return replace(self, own=mixture.own, offset=self._on_device(mixture.offset))

    def times(self, multiplier: Params) -> GradientStack:
        """Return every contribution times factors by name."""
        changed = {name: a for name, a in multiplier.items() if not np.all(a == 1)}
        return replace(self, multiplier=self._on_device(changed))

    def _on_device(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Return arrays in the shapes of the tensors, on their device, float64."""
        found = {}
        for name in self.updates.keys() & arrays.keys():
            parts = self.updates[name]
            full = np.array(np.broadcast_to(arrays[name], _shape_of(parts)), np.float64)
            found[name] = torch.from_numpy(full).to(parts[0].device)
        return found

    def _in_factors(self, name: str) -> bool:
        return len(self.updates[name]) == 2 and not self.offset

    def _rows(self, name: str) -> Iterator[tuple[slice, Tensor]]:
        """Yield examples, and their contributions to one tensor, float64 `(b, n)`."""
        parts = self.updates[name]
        step = max(1, _NUMBERS_AT_A_TIME // max(1, math.prod(_shape_of(parts))))
        for first in range(0, len(parts[0]), step):
            examples = slice(first, first + step)
            rows = _whole([part[examples].double() for part in parts])
            if self.offset:
                rows = rows.mul_(self.own).add_(self.offset[name])
            if name in self.multiplier:
                rows = rows.mul_(self.multiplier[name])
            yield examples, rows.flatten(1)

    def norms(self) -> np.ndarray:
        """Return the norms."""
        found = []
        for name, parts in self.updates.items():
            if self._in_factors(name):
                left, right = (part.double().square() for part in parts)
                if name in self.multiplier:
                    left = left @ self.multiplier[name].square()
                else:
                    left = left.sum(dim=1, keepdim=True)
                found.append((left * right).sum(dim=1))
            else:
                found.append(torch.cat([(r * r).sum(dim=1) for _, r in self._rows(name)]))
        return torch.stack(found).sum(dim=0).sqrt().cpu().numpy()

    def add_to(
        self, total: RunningSum, factors: np.ndarray, besides: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Add the contributions; of those left out nothing is multiplied: 0 · ∞ is no 0."""
        kept = np.flatnonzero(factors)
        if len(kept) < len(factors):
            few = {n: tuple(part[kept] for part in parts) for n, parts in self.updates.items()}
            besides = {name: rows[kept] for name, rows in besides.items()}
            return replace(self, updates=few).add_to(total, factors[kept], besides)
        sums = {}
        for name, parts in self.updates.items():
            weights = torch.from_numpy(factors).to(parts[0].device)
            if self._in_factors(name):
                left, right = (part.double() for part in parts)
                found = (weights[:, None] * left).T @ right
                if name in self.multiplier:
                    found *= self.multiplier[name]
            else:
                found = weights.new_zeros(_shape_of(parts))
                for examples, rows in self._rows(name):
                    found.view(-1).addmv_(rows.T, weights[examples])
            sums[name] = found.cpu().numpy()
        total.add({**sums, **{name: rows.sum(axis=0) for name, rows in besides.items()}}, 1.0)
        return np.zeros(0, np.int64)


class ModuleGradients(ExampleGradients):
    """A module on a training set of arrays, seen one example at a time.

    Guarantees:
        * An example's own contribution has at most the bound's norm: norms, mixtures and sums of
          float32 gradients are float64.
        * An example's gradient depends on the params, on itself and on what the module draws, but
          for the last bits of float32, which depend on who shares its chunk. Where a gradient is
          nothing but such bits, `Normalise` makes them as long as the bound, and `Clip` too if its
          norm is as short: an example then moves the sum by more than its contribution.
        * What is drawn (dropout) depends on no example's values, but on an example's place in the
          batch, and so on how many are before it.
        * Memory is bounded: examples go through the module in chunks.
        * An example with a norm that is not finite contributes zero, alone. So does one at which
          module or loss raise, such as a label that is no class; in a micro-batch it adds nothing
          to the mean.

    The way is chosen at the first call, on synthetic inputs.

    Args:
        module: A checked module, which is on the device while it is used; its parameters are
            overwritten.
        loss: From (outputs, targets) to the mean loss of a batch. For private sums it is called
            with batches of one. One that is a module is on the device, too.
        x: Inputs `(n, ...)`; memory maps are read batch by batch.
        y: Targets `(n, ...)`.
        device: Such as "cpu" or "cuda:0".
        way: One of `WAYS`, which must work; None for the first of these that works.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        x: np.ndarray,
        y: np.ndarray,
        *,
        device: str = "cpu",
        way: Way | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs but {len(y)} targets; give one for each")
        self._device = usable_device(device)
        self._module = check_module(module)
        self._loss, self._x, self._y = loss, x, y
        self._given_way: Way | None = way
        self._own = _trained(module)
        self._chosen: _Chosen | None = None

    @property
    def way(self) -> Way:
        """How gradients are made; chosen at the present params if not yet."""
        return self._choose().way

    def on_device(self, device: str) -> ModuleGradients:
        """Return the same module on the same examples, computed on a device.

        Both have the module in common, which goes where it is used.

        Raises:
            ValueError: If there is no such device here, or if the module or its loss raises there,
                at synthetic examples, what it does not raise here: its tensors are elsewhere, or an
                operation has no deterministic form on that device.
        """
        found = copy.copy(self)
        found._device, found._chosen = usable_device(device), None
        error = found._choose().error
        if error is not None and self._choose().error is None:
            raise ValueError(
                f"device {device!r}: the module or its loss raises {type(error).__name__} there: "
                f"{error}; make new tensors on the device of what forward() and the loss are given"
            ) from error
        return found

    def on_synthetic(self, number: int) -> ModuleGradients:
        """Return the same module on synthetic examples in the form of these; no value is read."""
        x, y = self._synthetic(number)
        return ModuleGradients(self._module, self._loss, x.cpu().numpy(), y.cpu().numpy())

    def stacks(self, params: Params, index: Examples, key: Key | None = None) -> Iterator[Stack]:
        """Yield the updates of chunks of examples or groups; see `ExampleGradients`.

        Args:
            params: float32 by name, all trained parameters; not changed.
            index: Distinct positions in the training set, or groups of them; may be empty.
            key: What the module draws from, as dropout does; None draws the same each time.

        Raises:
            ValueError: If params are not the module's, or if a group is empty.
        """
        alone = isinstance(index, np.ndarray)
        if not alone and any(len(group) == 0 for group in index):
            raise ValueError("a group is empty; leave it out, it has no mean")
        self._load(params)
        self._module.train()
        step = self._chunk(dense=not alone)
        if alone:
            found = (updates for _, updates in self._each(index, step, key))
        else:
            found = self._means(index, step, key)
        yield from (GradientStack(updates=updates) for updates in found)

    def gradient(
        self, params: Params, index: np.ndarray, key: Key | None = None
    ) -> dict[str, np.ndarray]:
        """Return the mean gradient over examples, float32: for public data, nothing bounded.

        Args:
            params: As for `stacks`.
            index: int64 `(b,)`, at least one.
            key: What the module draws from; None for evaluation mode, without dropout.

        Raises:
            ValueError: If there is no example.
        """
        if len(index) == 0:
            raise ValueError("no examples: their mean gradient is not defined")
        self._load(params)
        totals = {name: torch.zeros_like(p) for name, p in self._own.items()}
        for part in _parts(index, self._chunk(dense=True)):
            x, y = self._batch(part)
            module, loss = copied_apart(self._module, self._loss)
            module.train(key is not None)
            stream = None if key is None else key.fold("gradient").fold(int(part[0]))
            with own_stream(stream, self._device), torch.enable_grad():
                mean = loss(module(x), y) * (len(part) / len(index))
            for name, own in zip(self._own, _gradients(mean, self._own.values()), strict=True):
                totals[name] += own
        return {name: total.cpu().numpy() for name, total in totals.items()}

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], index: np.ndarray
    ) -> np.ndarray:
        """Return losses, float64 (examples, sizes); see `fedpriv.training.dp_agd.ExampleLosses`.

        Raises:
            ValueError: If params are not the module's.
        """
        x, y = self._batch(index)
        found = np.empty((len(index), len(sizes)))
        for place, size in enumerate(sizes):
            self._load(move_along(params, direction, size))
            chunk = self._chunk(dense=True)
            found[:, place] = evaluation_losses(self._module, self._loss, x, y, chunk)
        return found

    def check_losses(self) -> None:
        """Try the losses of single examples on synthetic ones.

        Raises:
            KeepsStateError: A ValueError; if an example's loss depends on what went before it.
        """
        x, y = self._synthetic(_TRIED)
        first = evaluation_losses(self._module, self._loss, x, y, 1)
        again = evaluation_losses(self._module, self._loss, x.flip(0), y.flip(0), 1)[::-1]
        if not np.allclose(first, again, rtol=_SAME, atol=1e-8, equal_nan=True):
            raise KeepsStateError(_kept_by(self._module))

    def _load(self, params: Params) -> None:
        if params.keys() != self._own.keys():
            odd = sorted(params.keys() ^ self._own.keys())
            raise ValueError(f"params and the module's trained parameters differ in {odd}")
        self._move()
        load_params(self._module, params)

    def _move(self) -> None:
        """Have the module, and a loss that is one, on the device."""
        if next(self._module.parameters()).device != self._device:
            for root in (self._module, self._loss):
                if isinstance(root, nn.Module):
                    root.to(self._device)

    def _synthetic(self, number: int) -> tuple[Tensor, Tensor]:
        """Return synthetic inputs and targets in the form of the training set's, on the device."""
        self._move()
        return synthetic_inputs(
            self._module, model_inputs(self._x[:0]), model_targets(self._y[:0]), number
        )

    def _choose(self) -> _Chosen:
        if self._chosen is None:
            x, y = self._synthetic(_TRIED)
            ways = WAYS if self._given_way is None else (self._given_way,)
            with _moved(self._module):
                module, loss = copied_apart(self._module, self._loss)  # its modes are its own
                module.train()
                check_loss(module, loss, x.cpu().numpy(), y.cpu().numpy(), finite=False)
                self._chosen = _choose_way(module, loss, x, y, ways)
        return self._chosen

    def _chunk(self, *, dense: bool) -> int:
        """Return how many examples at once fit, with their whole gradients or as they are made."""
        chosen, size = self._choose(), sum(p.nbytes for p in self._own.values())
        held = chosen.held + (3 * size if dense or chosen.way != "factors" else 0)
        return max(1, min(_MOST, bytes_at_once(self._device) // held))

    def _batch(self, part: np.ndarray) -> tuple[Tensor, Tensor]:
        found = model_inputs(self._x[part]), model_targets(self._y[part])
        x, y = (torch.from_numpy(array).to(self._device) for array in found)
        return x, y

    def _of(self, part: np.ndarray, key: Key | None) -> Updates:
        """Return minus the gradients of a chunk of examples, at the module's own parameters."""
        x, y = self._batch(part)
        stream = None if key is None else key.fold("examples").fold(int(part[0]))
        with own_stream(stream, self._device):
            return _MAKES[self._choose().way](self._module, self._loss, x, y)

    def _each(
        self, index: np.ndarray, step: int, key: Key | None
    ) -> Iterator[tuple[np.ndarray, Updates]]:
        """Yield places in the index and the updates of chunks, without examples that raise alone.

        A chunk that raises is made one by one.
        """
        for places in _parts(np.arange(len(index)), step):
            made = list[tuple[np.ndarray, Updates]]()
            try:
                made.append((places, self._of(index[places], key)))
            except Exception as error:  # whatever an example of a class that is none raises, say
                end_if_interrupted(error)
                for place in np.split(places, len(places)):
                    with contributing_zero_on_failure():
                        made.append((place, self._of(index[place], key)))
            yield from made

    def _means(self, groups: Sequence[np.ndarray], step: int, key: Key | None) -> Iterator[Updates]:
        """Yield the means of as many groups as fit into a chunk, or of a single larger one."""
        while groups:
            sizes = torch.tensor([len(group) for group in groups], device=self._device)
            number = max(1, int((sizes.cumsum(0) <= step).sum()))
            sizes, index = sizes[:number], np.concatenate(groups[:number])
            place = torch.repeat_interleave(sizes)
            means = {n: p.new_zeros((number, *p.shape)) for n, p in self._own.items()}
            for members, updates in self._each(index, step, key):
                for name, parts in updates.items():
                    means[name].index_add_(0, place[members[0] : members[-1] + 1], _whole(parts))
            yield {n: (m / sizes.reshape(-1, *(1,) * (m.ndim - 1)),) for n, m in means.items()}
            groups = groups[number:]


class _Chosen(NamedTuple):
    """A way that works for a module.

    Attributes:
        way: Its name.
        held: Bytes that it holds of an example, whole gradients aside.
        error: What the module or its loss raises at synthetic examples; None for nothing.
    """

    way: Way
    held: int = 1
    error: Exception | None = None


def _choose_way(
    module: nn.Module, loss: Loss, x: Tensor, y: Tensor, ways: Sequence[Way]
) -> _Chosen:
    """Return the first of some ways that works; the last where synthetic examples raise.

    Args:
        module: In training mode.
        loss: Mean loss of a batch.
        x: Synthetic inputs, on the module's device.
        y: Their targets.
        ways: In the order in which they are tried.

    Raises:
        ValueError: If no way works for this module.
        KeepsStateError: A ValueError; if an example's gradient depends on what went before it.
    """
    try:
        copied, own_loss = copied_apart(module, loss)
        with own_stream(None, x.device), torch.enable_grad(), kept_bytes(module) as kept:
            own_loss(copied(x[:1]), y[:1])
        _check_apart(module, loss, x, y)
    except KeepsStateError:
        raise
    except Exception as error:  # synthetic inputs fit nothing; the real ones may
        end_if_interrupted(error)
        return _Chosen(ways[-1], error=error)
    for way in ways:
        try:
            with own_stream(None, x.device):
                _MAKES[way](module, loss, x, y)
            return _Chosen(way, held=max(1, 2 * sum(kept)))
        except Exception as error:
            end_if_interrupted(error)
            refused = f"{type(error).__name__}: {error}"
    raise ValueError(f"way {ways[-1]!r} does not work for this module: {refused}")


def _check_apart(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
    """Refuse what keeps something of one example for the next.

    Raises:
        KeepsStateError: If an example's gradient is another one after other examples.
        Exception: What module or loss raise.
    """

    def alone(order: Iterable[int]) -> dict[str, Tensor]:
        made: dict[int, Updates] = {}
        for place in order:
            with own_stream(None, x.device):
                made[place] = _by_loop(module, loss, x[[place]], y[[place]])
        return {n: torch.cat([made[place][n][0] for place in range(len(x))]) for n in made[0]}

    first, again = alone(range(len(x))), alone(reversed(range(len(x))))
    for name, rows in first.items():
        far = _SAME * float(rows.nan_to_num().abs().max())
        if not torch.allclose(again[name], rows, rtol=0.0, atol=far, equal_nan=True):
            raise KeepsStateError(_kept_by(module))


@contextmanager
def _moved(module: nn.Module) -> Iterator[None]:
    """Give a module small random params, and its own again afterwards: zeros or NaN hide mistakes.

    The parameters stay the same objects: a loss may hold them, say for a penalty.
    """
    before, rng = {p: p.data for p in _trained(module).values()}, _KEY.fold("params").generator()
    try:
        for p, data in before.items():
            p.data = torch.from_numpy(0.05 * rng.standard_normal(tuple(p.shape))).to(data)
        yield
    finally:
        for p, data in before.items():
            p.data = data


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def _gradients(value: Tensor, own: Iterable[Tensor]) -> list[Tensor]:
    """Return gradients by tensors; zeros by those that the value does not use."""
    own = list(own)
    found = torch.autograd.grad(value, own, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(own, found, strict=True)]


def _by_loop(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Updates:
    """Return updates that are made one after the other, each on a new copy, parameters included.

    Args:
        module: At its own parameters.
        loss: Mean loss of a batch.
        x: Inputs `(b, ...)`.
        y: Targets `(b, ...)`.
    """
    own = _trained(module)
    made = {name: p.new_zeros((len(x), *p.shape)) for name, p in own.items()}
    kept = kept_parameters(module)
    for place in range(len(x)):
        one = slice(place, place + 1)
        copied, own_loss = copied_apart(module, loss)
        with parameters_apart(kept):
            with torch.enable_grad():
                value = own_loss(copied(x[one]), y[one])
            found = _gradients(-value, own.values())
        for name, update in zip(own, found, strict=True):
            made[name][place] = update
    return {name: (rows,) for name, rows in made.items()}


def _by_vmap(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Updates:
    """Return updates by `torch.func`: what has no batching rule raises.

    Raises:
        ValueError: As of `_check_seen`.
    """
    copied, own_loss = copied_apart(module, loss)

    def update(params: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        value = example_loss(copied, own_loss, params, x, y)
        return -value, value

    own = {name: p.detach() for name, p in _trained(module).items()}
    each = vmap(grad(update, has_aux=True), in_dims=(None, 0, 0), randomness="different")
    with torch.enable_grad():
        updates, values = each(own, x, y)
    _check_seen(module, values)
    return {name: (found.detach(),) for name, found in updates.items()}


def _check_seen(module: nn.Module, values: Tensor) -> None:
    """Refuse a way that misses a part of the gradient.

    Args:
        module: At its own parameters, which the way has detached where it sees them.
        values: The losses that it took the gradients of.

    Raises:
        ValueError: If the losses have a gradient by a parameter all the same.
    """
    own = list(_trained(module).values())
    found = (
        torch.autograd.grad(values.sum(), own, allow_unused=True) if values.requires_grad else ()
    )
    if any(gradient is not None for gradient in found):
        raise ValueError("the forward pass or the loss uses a parameter where it is not seen")


_LINEAR = {nn.Linear: ("weight", 0), SoftmaxRegression: ("kernel", 1)}
"""Classes of layers with a matrix and a bias, the matrix's name and its axis of outputs; no derived
ones."""


def _linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of all trained parameters by name.

    Raises:
        ValueError: If one is no linear layer, or shares a parameter.
    """
    trained = {n for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    owners = sorted({name.rpartition(".")[0] for name in trained})
    layers = {owner: module.get_submodule(owner) for owner in owners}
    for owner, layer in layers.items():
        if type(layer) not in _LINEAR or len(trained) != len(_trained(module)):
            raise ValueError(f"{owner!r} is no linear layer of its own parameters")
    return layers


def _by_factors(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Updates:
    """Return updates by the inputs of linear layers, and by their outputs' gradients.

    Raises:
        ValueError: As of `_linear_layers` and `_check_seen`, or if a layer is called more than
            once, or on other things than one vector an example.
    """
    copied, own_loss = copied_apart(module, loss)
    layers, shifts, inputs = _linear_layers(copied), dict[str, Tensor](), dict[str, Tensor]()

    def tapped(owner: str, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        constant = copy.deepcopy(layer, {id(p): p.detach() for p in layer.parameters()})

        def forward(given: Tensor) -> Tensor:
            if owner in inputs or given.ndim != 2 or len(given) != 1:
                raise ValueError(f"{owner!r} is called twice, or not on one vector an example")
            inputs[owner] = given[0]
            return type(constant).forward(constant, given) + shifts[owner]

        return forward

    def update(
        zeros: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        shifts.update(zeros)
        inputs.clear()
        value = example_loss(copied, own_loss, {}, x, y)
        return -value, (value, dict(inputs))

    zeros = dict[str, Tensor]()
    for owner, layer in layers.items():
        matrix, axis = _LINEAR[type(layer)]
        zeros[owner] = torch.zeros(layer.get_parameter(matrix).shape[axis], device=x.device)
        layer.forward = tapped(owner, layer)
    each = vmap(grad(update, has_aux=True), in_dims=(None, 0, 0), randomness="different")
    with torch.enable_grad():
        backs, (values, given) = each(zeros, x, y)
    _check_seen(module, values)
    updates: dict[str, tuple[Tensor, ...]] = {}
    for owner, layer in layers.items():
        (matrix, axis), back = _LINEAR[type(layer)], backs[owner].detach()
        width, prefix = layer.get_parameter(matrix).shape[1 - axis], f"{owner}." if owner else ""
        inner = given.get(owner, back.new_zeros(len(x), width))  # of a layer that was not called
        updates[prefix + matrix] = (back, inner) if axis == 0 else (inner, back)
        updates[f"{prefix}bias"] = (back,)
    return {name: updates[name] for name in _trained(module)}


_MAKES: dict[Way, Callable[..., Updates]] = {
    "factors": _by_factors,
    "vmap": _by_vmap,
    "loop": _by_loop,
}


def _kept_by(module: nn.Module) -> str:
    return (
        f"{type(module).__name__} or its loss keeps something of one example that moves the next, "
        "where a copy does not reach (a global, a closure, a class, Python's or NumPy's "
        "generators); keep nothing, and draw from torch's own generators"
    )


def _parts(index: np.ndarray, step: int) -> Iterator[np.ndarray]:
    """Yield parts of nearly equal length, none longer than a step."""
    if len(index):
        yield from np.array_split(index, -(-len(index) // step))
