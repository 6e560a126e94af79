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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.models.images import SoftmaxRegression
from fedpriv.rng import Key
from fedpriv.sums import RunningSum
from fedpriv.training.bounded_sum import Stack
from fedpriv.training.devices import bytes_at_once, usable_device
from fedpriv.training.failures import KeepsStateError, contributes_zero
from fedpriv.training.local.indices import IndicesWithin
from fedpriv.training.local.module import check_module, load_params, model_inputs, model_targets
from fedpriv.training.local.module_state import copied_apart, kept_parameters, put_back
from fedpriv.training.per_example.example_sum import ExampleGradients, Examples, add_sums
from fedpriv.training.per_example.losses import (
    Loss,
    check_loss,
    evaluation_losses,
    losses_on_points,
    synthetic_inputs,
)
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import own_stream
from fedpriv.tree import Params

Way = Literal["factors", "vmap", "loop"]
WAYS: tuple[Way, ...] = ("factors", "vmap", "loop")

_KEY = Key.simulation(0).fold("synthetic examples")
# Of the offset's square: what float64 may leave of an update and an offset that cancel.
_SAFETY = 2.0**-40
_TRIED = 3
_NUMBERS_AT_A_TIME = 1 << 20
_MOST = 1024
_WIDEST = 10.0  # params further from zero say nothing of a module
_SAME = 1e-4  # relative differences that count as rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """What a bound does to one parameter's updates before their norm: (own Δ + offset) · m.

    Attributes:
        like: The parameter.
        own: Weight of the example's own update.
        offset: float64 of the parameter's shape; None for zeros.
        multiplier: float64 of the parameter's shape; None for ones.
    """

    like: Tensor = field(repr=False)
    own: float = 1.0
    offset: Tensor | None = None
    multiplier: Tensor | None = None

    def full(self, array: np.ndarray) -> Tensor:
        """Return an array in the parameter's shape, on its device, float64."""
        spread = np.broadcast_to(np.asarray(array, np.float64), tuple(self.like.shape))
        return torch.from_numpy(np.array(spread)).to(self.like.device)

    def squares(self, gradients: Tensor) -> Tensor:
        """Return ‖(-own g + offset) m‖² of gradients `(b, *shape)`, float64 `(b,)`."""
        flat, found = gradients.flatten(1), gradients.new_zeros(len(gradients), dtype=torch.float64)
        if self.offset is None and self.multiplier is None:
            return torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64).square()
        for columns in _blocks(flat):
            rows = flat[:, columns].double() * -self.own
            if self.offset is not None:
                rows += self.offset.flatten()[columns]
            if self.multiplier is not None:
                rows *= self.multiplier.flatten()[columns]
            found += rows.square().sum(dim=1)
        return found

    @property
    def constant(self) -> float:
        """‖offset · m‖²."""
        if self.offset is None:
            return 0.0
        product = self.offset if self.multiplier is None else self.offset * self.multiplier
        return float(product.square().sum())

    def update(self, gradient: Tensor, weight: float) -> Tensor:
        """Return (-own Σ w g + Σ w offset) m of a weighted sum of gradients, float64."""
        found = gradient * -self.own
        if self.offset is not None and weight:
            found += self.offset * weight
        if self.multiplier is not None:
            found *= self.multiplier
        return found


def _blocks(rows: Tensor) -> list[slice]:
    """Return columns of which float64 copies are small: at least one, and one block of none."""
    size = max(1, _NUMBERS_AT_A_TIME // max(1, len(rows)))
    return [slice(first, first + size) for first in range(0, max(1, rows.shape[1]), size)]


@dataclass(frozen=True, slots=True)
class Dense:
    """Gradients of a chunk of examples, or of means of groups, by name `(b, *shape)`."""

    tensors: Mapping[str, Tensor]

    def squares(self, public: Mapping[str, Public]) -> Tensor:
        """Return the squared norms that are to be bounded, float64 `(b,)`."""
        found = [public[name].squares(rows) for name, rows in self.tensors.items()]
        return torch.stack(found).sum(dim=0)

    def total(self, weights: Tensor) -> dict[str, Tensor]:
        """Return Σ w_i g_i, of those whose weight is not 0, float64; weights are too, `(b,)`."""
        kept = weights != 0
        own, every = weights[kept], bool(kept.all())
        flat = {n: (t if every else t[kept]).flatten(1) for n, t in self.tensors.items()}
        found = {n: [own @ t[:, part].double() for part in _blocks(t)] for n, t in flat.items()}
        return {
            n: torch.cat(parts).reshape(self.tensors[n].shape[1:]) for n, parts in found.items()
        }

    def dense(self) -> Dense:
        """Return the gradients themselves."""
        return self


@dataclass(frozen=True, slots=True)
class Factors:
    """Gradients of linear layers as outer products of two rows an example.

    Attributes:
        layers: Name of the matrix, and its two factors `(b, rows)` and `(b, columns)`.
        biases: Gradients by name, `(b, width)`.
    """

    layers: Mapping[str, tuple[Tensor, Tensor]]
    biases: Mapping[str, Tensor]

    def squares(self, public: Mapping[str, Public]) -> Tensor:
        """Return the squared norms that are to be bounded, float64 `(b,)`."""
        found = [public[name].squares(rows) for name, rows in self.biases.items()]
        for name, (left, right) in self.layers.items():
            each = public[name]
            left, right = left.double(), right.double()
            outer = left.square().sum(dim=1)
            if each.multiplier is not None:
                outer = left.square() @ each.multiplier.square() * right.square()
                found.append(each.own**2 * outer.sum(dim=1))
            else:
                found.append(each.own**2 * outer * right.square().sum(dim=1))
            if each.offset is not None:  # ‖u + o‖² = ‖u‖² + 2 <u, o> + ‖o‖², and u = -own g
                weights = each.offset
                if each.multiplier is not None:
                    weights = weights * each.multiplier.square()
                crossed = (left @ weights * right).sum(dim=1)
                found.append(each.constant - 2.0 * each.own * crossed)
        return torch.stack(found).sum(dim=0).clamp(min=0.0)

    def total(self, weights: Tensor) -> dict[str, Tensor]:
        """Return Σ w_i g_i, of those whose weight is not 0, float64; weights are too, `(b,)`."""
        kept = weights != 0
        own = weights[kept, None]
        found = {n: (own * rows[kept]).sum(dim=0) for n, rows in self.biases.items()}
        for name, (left, right) in self.layers.items():
            found[name] = (own * left[kept]).T @ right[kept].double()
        return found

    def dense(self) -> Dense:
        """Return the gradients themselves."""
        made = {n: left[:, :, None] * right[:, None] for n, (left, right) in self.layers.items()}
        return Dense({**made, **self.biases})


Gradients = Dense | Factors


@dataclass(frozen=True, kw_only=True)
class GradientStack(Stack):
    """Minus the gradients of a chunk of examples, or the means over groups.

    Attributes:
        gradients: On the module's device.
        public: What the bound does to each parameter's part before its norm.
    """

    gradients: Gradients = field(repr=False)
    public: Mapping[str, Public] = field(repr=False)

    def mixed(self, mixture: Mixture) -> GradientStack:
        """Return own · Δ + offset of every contribution Δ."""
        public = {
            name: replace(each, own=mixture.own, offset=each.full(mixture.offset[name]))
            for name, each in self.public.items()
        }
        return replace(self, public=public)

    def times(self, multiplier: Params) -> GradientStack:
        """Return every contribution times factors by name."""
        public = dict(self.public)
        for name in public.keys() & multiplier.keys():
            if not np.all(multiplier[name] == 1):
                public[name] = replace(public[name], multiplier=public[name].full(multiplier[name]))
        return replace(self, public=public)

    def norms(self) -> np.ndarray:
        """Return the norms; of an update that an offset nearly cancels, a little more."""
        safety = _SAFETY * sum(each.constant for each in self.public.values())
        return torch.sqrt(self.gradients.squares(self.public) + safety).cpu().numpy()

    def add_to(
        self, total: RunningSum, factors: np.ndarray, besides: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Add the contributions."""
        weight, device = float(factors.sum()), next(iter(self.public.values())).like.device
        sums = self.gradients.total(torch.from_numpy(factors).to(device))
        arrays = {n: self.public[n].update(part, weight).cpu().numpy() for n, part in sums.items()}
        return add_sums(total, arrays, factors, besides)


class ModuleGradients(ExampleGradients):
    """A module on a training set of arrays, seen one example at a time.

    Guarantees:
        * An example's own contribution has at most the bound's norm: norms, mixtures and sums of
          float32 gradients are float64. Where thousands of updates nearly cancel the offset of a
          mixture, their sum rounds by a part in 10^5 of the bound.
        * An example's gradient depends on the params, on itself and on what the module draws, but
          for the last bits of float32, which depend on who shares its chunk. Where a gradient is
          nothing but such bits, `Normalise` makes them as long as the bound, and `Clip` too if its
          norm is as short: an example then moves the sum by more than its contribution.
        * What is drawn (dropout) depends on no example's values, but on an example's place in the
          batch, and so on how many are before it.
        * Memory is bounded: examples go through the module in chunks.
        * An example with a norm that is not finite contributes zero, alone. So does one at which
          module or loss raise, such as a label that is no class; in micro-batches that ends the
          run.

    The way is chosen at the first call, on synthetic inputs.

    Args:
        module: A checked module, which is on the device while it is used; its parameters are
            overwritten.
        loss: From (outputs, targets) to the mean loss of a batch. For private sums it is called
            with batches of one. One that is a module is on the device, too.
        x: Inputs `(n, ...)`; memory maps are read batch by batch.
        y: Targets `(n, ...)`.
        device: Such as "cpu" or "cuda:0".
        chunk: Examples at once; None for as many as fit into what a step may hold there.
        way: One of `WAYS`; None for the first of these that works.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        x: np.ndarray,
        y: np.ndarray,
        *,
        device: str = "cpu",
        chunk: int | None = None,
        way: Way | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs but {len(y)} targets; give one for each")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk {chunk!r} must be at least 1, or None")
        if way is not None and way not in WAYS:
            raise ValueError(f"way {way!r} is not known; use one of {', '.join(WAYS)}, or None")
        self._device = usable_device(device)
        self._module = check_module(module)
        self._loss, self._x, self._y = loss, x, y
        self._given_chunk = chunk
        self._given_way: Way | None = way
        self._own = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._size = sum(p.numel() for p in self._own.values())
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
        found = ModuleGradients(
            self._module,
            self._loss,
            self._x,
            self._y,
            device=device,
            chunk=self._given_chunk,
            way=self._given_way,
        )
        error = found._raised()
        if error is not None and self._raised() is None:
            raise ValueError(
                f"device {device!r}: the module or its loss raises {type(error).__name__} there: "
                f"{error}; make new tensors on the device of what forward() and the loss are given"
            ) from error
        return found

    def on_synthetic(self, number: int) -> ModuleGradients:
        """Return the same module on synthetic examples in the form of these; no value is read."""
        x, y = synthetic_inputs(self._module, *self._none(), number)
        return ModuleGradients(self._module, self._loss, x.cpu().numpy(), y.cpu().numpy())

    def stacks(self, params: Params, index: Examples, key: Key | None = None) -> Iterator[Stack]:
        """Yield the updates of chunks of examples or groups; see `ExampleGradients`.

        Args:
            params: float32 by name, all trained parameters; not changed.
            index: Distinct positions in the training set, or groups of them; may be empty.
            key: Needed if the module draws at random, as dropout does.

        Raises:
            ValueError: If a key is needed and missing, if params are not the module's, or if a
                group is empty.
        """
        alone = isinstance(index, np.ndarray)
        if not alone and any(len(group) == 0 for group in index):
            raise ValueError("a group is empty; leave it out, it has no mean")
        self._load(params)
        chosen = self._choose()
        if chosen.draws and key is None:
            raise ValueError("the module draws at random while it trains: give this round's key")
        self._module.train()
        step = self._given_chunk or chosen.chunk(dense=not alone)
        if alone:
            chunks = (self._sound(part, key) for part in _parts(index, step))
        else:
            chunks = self._means(index, step, key)
        public = {name: Public(like=p.detach()) for name, p in self._own.items()}
        for chunk in chunks:
            if chunk is not None:
                yield GradientStack(gradients=chunk, public=public)

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
        for part in _parts(index, self._given_chunk or self._choose().chunk(dense=True)):
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
        self._load(params)
        x, y = self._batch(index)
        chunk = self._given_chunk or self._choose().chunk(dense=True)
        return losses_on_points(
            self._module,
            lambda: evaluation_losses(self._copied, x, y, chunk),
            params,
            direction,
            sizes,
            len(index),
        )

    def check_losses(self) -> None:
        """Try the losses of single examples on synthetic ones.

        Raises:
            KeepsStateError: A ValueError; if an example's loss depends on what went before it.
        """
        self._move()
        x, y = synthetic_inputs(self._module, *self._none(), _TRIED)
        try:
            first = evaluation_losses(self._copied, x, y, 1)
            again = evaluation_losses(self._copied, x.flip(0), y.flip(0), 1)[::-1]
        except Exception as error:  # has no use for synthetic inputs
            end_if_interrupted(error)
            return
        if not np.allclose(first, again, rtol=_SAME, atol=1e-8, equal_nan=True):
            raise KeepsStateError(_kept_by(self._module))

    def _copied(self) -> tuple[nn.Module, Loss]:
        return copied_apart(self._module, self._loss)

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

    def _raised(self) -> Exception | None:
        """Return what the module and its loss raise at synthetic examples; None for nothing."""
        self._move()
        x, y = synthetic_inputs(self._module, *self._none(), _TRIED)
        try:
            _by_loop(self._module.train(), self._loss, x, y)
        except Exception as error:
            end_if_interrupted(error)
            return error
        return None

    def _choose(self) -> _Chosen:
        if self._chosen is None:
            self._move()
            like = self._none()
            x, y = synthetic_inputs(self._module, *like, 2)
            few = (tensor.cpu().numpy() for tensor in (x, y))
            with _moved(self._module):
                module, loss = copied_apart(self._module, self._loss)
                check_loss(module.train(), loss, *few, finite=False)
            self._chosen = choose_way(self._module, self._loss, *like, self._given_way)
        return self._chosen

    def _none(self) -> tuple[np.ndarray, np.ndarray]:
        """Return no inputs and no targets, in the form of the training set's."""
        return model_inputs(self._x[:0]), model_targets(self._y[:0])

    def _batch(self, part: np.ndarray) -> tuple[Tensor, Tensor]:
        found = model_inputs(self._x[part]), model_targets(self._y[part])
        x, y = (torch.from_numpy(array).to(self._device) for array in found)
        return x, y

    def _of(self, part: np.ndarray, key: Key | None) -> Gradients:
        """Return the gradients of a chunk of examples, at the module's own parameters."""
        x, y = self._batch(part)
        stream = None if key is None else key.fold("examples").fold(int(part[0]))
        with own_stream(stream, self._device):
            return _MAKES[self._choose().way](self._module, self._loss, x, y)

    def _sound(self, part: np.ndarray, key: Key | None) -> Gradients | None:
        """Return the gradients of a chunk without the examples that raise alone; None of none.

        Raises:
            Exception: What the chunk raises though none of its examples does.
        """
        try:
            return self._of(part, key)
        except Exception as error:  # whatever an example of a class that is none raises, say
            end_if_interrupted(error)
            whole = error
        sound = []
        for position in part.tolist():
            try:
                self._of(np.array([position]), key)
                sound.append(position)
            except Exception as error:
                contributes_zero(error)
        if len(sound) == len(part):
            raise whole
        return self._of(np.array(sound), key) if sound else None

    def _means(self, groups: Sequence[np.ndarray], step: int, key: Key | None) -> Iterator[Dense]:
        """Yield the mean gradients of as many whole groups as fit into a chunk."""
        waiting: list[np.ndarray] = []
        for group in groups:
            if waiting and sum(map(len, waiting)) + len(group) > step:
                yield self._grouped(waiting, step, key)
                waiting = []
            waiting.append(group)
        if waiting:
            yield self._grouped(waiting, step, key)

    def _grouped(self, groups: list[np.ndarray], step: int, key: Key | None) -> Dense:
        """Return the means over groups; one that is larger than a chunk is alone in its list."""
        index = np.concatenate(groups)
        sizes = torch.tensor([len(group) for group in groups], device=self._device)
        place = torch.repeat_interleave(sizes)
        means = {n: p.new_zeros((len(groups), *p.shape)) for n, p in self._own.items()}
        for members in _parts(np.arange(len(index)), step):
            for name, rows in self._of(index[members], key).dense().tensors.items():
                means[name].index_add_(0, place[members[0] : members[-1] + 1], rows)
        return Dense({n: m / sizes.reshape(-1, *(1,) * (m.ndim - 1)) for n, m in means.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A way that works for a module.

    Attributes:
        way: Its name.
        held: Numbers that it holds of an example.
        size: Numbers of an example's whole gradient.
        memory: Bytes that may be held.
        draws: Whether a forward pass draws at random.
    """

    way: Way
    held: int
    size: int
    memory: int
    draws: bool

    def chunk(self, *, dense: bool) -> int:
        """Return how many examples at once fit, with their whole gradients or as they are made."""
        held = self.held + (3 * self.size if dense or self.way != "factors" else 0)
        return max(1, min(_MOST, self.memory // (4 * held)))


def choose_way(
    module: nn.Module, loss: Loss, x: np.ndarray, y: np.ndarray, only: Way | None
) -> _Chosen:
    """Return the first way that works for a module, or a certain one.

    Args:
        module: On its device. It is as it was afterwards.
        loss: Mean loss of a batch.
        x: No inputs, in the form of the training set's.
        y: No targets, likewise.
        only: A way that must work.

    Raises:
        ValueError: If the way does not work for this module.
        KeepsStateError: A ValueError; if an example's gradient depends on what went before it.
    """
    size = sum(p.numel() for p in module.parameters() if p.requires_grad)
    memory = bytes_at_once(next(module.parameters()).device)
    draws = any(type(layer) is nn.Dropout and layer.p > 0 for layer in module.modules())
    refused = ""
    with _moved(module):
        try:
            inputs, targets = synthetic_inputs(module, x, y, _TRIED)
            held, others = _tried(module, loss, inputs, targets)
        except KeepsStateError:
            raise
        except Exception as error:
            end_if_interrupted(error)
            if only is None:  # synthetic inputs fit nothing; the real ones may fit this way
                return _Chosen(way="loop", held=size, size=size, memory=memory, draws=draws)
            raise ValueError(f"way {only!r} cannot be tried: {_text(error)}") from error
        for way in WAYS if only is None else (only,):
            try:
                with own_stream(None, inputs.device):
                    _check_no_other_use(module, loss, inputs[:1], targets[:1], way)
                    _MAKES[way](module, loss, inputs, targets)
            except Exception as error:
                end_if_interrupted(error)
                refused = _text(error)
                continue
            return _Chosen(way=way, held=held, size=size, memory=memory, draws=draws or others)
    raise ValueError(f"way {only!r} does not work for this module: {refused}")


def _tried(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> tuple[int, bool]:
    """Return the numbers that a forward pass keeps, and whether it draws, `nn.Dropout` aside.

    Raises:
        KeepsStateError: If an example's gradient is another one after others.
        Exception: What module or loss raise.
    """
    _put_in_mode(module, draws=False)
    with own_stream(None, x.device):
        before = torch.get_rng_state(), _gpu_state(x.device)
        held = _kept(module, loss, x[:1], y[:1])
        draws = not all(map(torch.equal, before, (torch.get_rng_state(), _gpu_state(x.device))))
    _put_in_mode(module, draws=draws)
    alone = _by_loop(module, loss, x, y, alike=True).tensors
    again = _by_loop(module, loss, x.flip(0), y.flip(0), alike=True).tensors
    for name, first in alone.items():
        atol = _SAME * float(first.nan_to_num().abs().max())
        if not torch.allclose(again[name].flip(0), first, rtol=0.0, atol=atol, equal_nan=True):
            raise KeepsStateError(_kept_by(module))
    return held, draws


@contextmanager
def _moved(module: nn.Module) -> Iterator[None]:
    """Give a module params near its own, and its own again afterwards.

    The parameters stay the same objects: a loss may hold them, say for a penalty.
    """
    before = [(p, p.data) for p in module.parameters()]
    modes = {layer: layer.training for layer in module.modules()}
    rng = _KEY.fold("params").generator()
    try:
        for p, data in before:
            # Params that have diverged say nothing about the module, and compare with nothing.
            p.data = data.nan_to_num(0.0, 0.0, 0.0).clamp_(-_WIDEST, _WIDEST)
            if p.requires_grad:  # zeros, for one, hide mistakes
                change = 0.05 * rng.standard_normal(tuple(p.shape), np.float32)
                p.data.add_(torch.from_numpy(change).to(data.device))
        yield
    finally:
        for p, data in before:
            p.data = data
        for layer, training in modes.items():
            layer.training = training


def _put_in_mode(module: nn.Module, *, draws: bool) -> None:
    """Let a module train without drawing: of other draws than dropout in evaluation mode."""
    module.train(not draws)
    for layer in module.modules():
        if type(layer) is nn.Dropout:
            layer.training = False


def _gpu_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.zeros(0)


def _kept(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> int:
    """Return how many numbers autograd keeps of an example, params aside."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += 0 if tensor.untyped_storage().data_ptr() in own else tensor.numel()
        return tensor

    copied, own_loss = copied_apart(module, loss)
    with (
        torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
        torch.enable_grad(),
    ):
        own_loss(copied(x), y)
    return 2 * kept


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def _gradients(value: Tensor, own: Iterable[Tensor]) -> list[Tensor]:
    """Return gradients by tensors; zeros by those that the value does not use."""
    own = list(own)
    found = torch.autograd.grad(value, own, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(own, found, strict=True)]


def _by_loop(module: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, alike: bool = False) -> Dense:
    """Return gradients that are made one after the other, each on a new copy.

    Args:
        module: At its own parameters.
        loss: Mean loss of a batch.
        x: Inputs `(b, ...)`.
        y: Targets `(b, ...)`.
        alike: Whether all examples draw the same numbers.
    """
    own = _trained(module)
    made = {name: p.new_zeros((len(x), *p.shape)) for name, p in own.items()}
    kept = kept_parameters(module)
    for place in range(len(x)):
        one = slice(place, place + 1)
        copied, own_loss = copied_apart(module, loss)
        try:
            with own_stream(None, x.device) if alike else nullcontext(), torch.enable_grad():
                value = own_loss(copied(x[one]), y[one])
            found = _gradients(value, own.values())
        finally:
            put_back(kept)
        for name, gradient in zip(own, found, strict=True):
            made[name][place] = gradient
    return Dense(made)


def _by_vmap(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Dense:
    """Return gradients by `torch.func`: what has no batching rule raises."""
    copied, own_loss = copied_apart(module, loss)

    def loss_of(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with IndicesWithin() as indices:
            value = own_loss(functional_call(copied, params, (x.unsqueeze(0),)), y.unsqueeze(0))
        return indices.or_nan(value)

    own = {name: p.detach() for name, p in _trained(module).items()}
    each = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")
    return Dense({name: found.detach() for name, found in each(own, x, y).items()})


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


def _check_no_other_use(module: nn.Module, loss: Loss, x: Tensor, y: Tensor, way: Way) -> None:
    """Refuse a way that would miss a part of the gradient.

    Args:
        module: At its own parameters.
        loss: Mean loss of a batch.
        x: One input `(1, ...)`.
        y: Its target.
        way: Of `_by_vmap` what a loss itself does with a parameter would be missed, of
            `_by_factors` whatever is done with it outside its layer.

    Raises:
        ValueError: If the loss has a gradient where all that is seen of the parameters is constant.
    """
    if way == "loop":
        return
    copied, own_loss = copied_apart(module, loss)
    constant = {name: p.detach() for name, p in copied.named_parameters()}
    if way == "factors":
        for layer in _linear_layers(copied).values():
            same = copy.deepcopy(layer).requires_grad_(False)
            layer.register_forward_hook(lambda _, inputs, __, same=same: same(*inputs))
        constant = {}
    with torch.enable_grad():
        value = own_loss(functional_call(copied, constant, (x,)), y)
    own = list(_trained(module).values())
    found = torch.autograd.grad(value, own, allow_unused=True) if value.requires_grad else ()
    if any(gradient is not None for gradient in found):
        raise ValueError("the forward pass or the loss uses a parameter where it is not seen")


def _by_factors(module: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Factors:
    """Return gradients by the inputs of linear layers, and by their outputs' gradients.

    Raises:
        ValueError: As `_linear_layers`, or if a layer is called more than once, or on other things
            than one vector an example.
    """
    copied, own_loss = copied_apart(module, loss)
    own = {name: p.detach() for name, p in copied.named_parameters()}
    layers, shifts, inputs = _linear_layers(copied), dict[str, Tensor](), dict[str, Tensor]()

    def keeper(owner: str) -> Callable[..., Tensor]:
        def keep(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if owner in inputs or given[0].ndim != 2 or len(given[0]) != 1:
                raise ValueError(f"{owner!r} is called twice, or not on one vector an example")
            inputs[owner] = given[0][0]
            return output + shifts[owner]

        return keep

    for owner, layer in layers.items():
        layer.register_forward_hook(keeper(owner))

    def loss_of(zeros: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        shifts.update(zeros)
        inputs.clear()
        with IndicesWithin() as indices:
            value = own_loss(functional_call(copied, own, (x.unsqueeze(0),)), y.unsqueeze(0))
        return indices.or_nan(value), dict(inputs)

    def named(owner: str) -> tuple[str, int, str]:
        matrix, axis = _LINEAR[type(layers[owner])]
        prefix = f"{owner}." if owner else ""
        return prefix + matrix, axis, f"{prefix}bias"

    zeros = dict[str, Tensor]()
    for owner in layers:
        matrix, axis, _ = named(owner)
        zeros[owner] = torch.zeros(own[matrix].shape[axis], device=x.device)
    each = vmap(grad(loss_of, has_aux=True), in_dims=(None, 0, 0), randomness="different")
    backs, given = each(zeros, x, y)
    matrices, biases = {}, {}
    for owner, found in backs.items():
        matrix, axis, bias = named(owner)
        back = found.detach()
        if owner in given:
            inner = given[owner]
        else:  # the layer was not called
            inner = back.new_zeros(len(x), own[matrix].shape[1 - axis])
        matrices[matrix] = (back, inner) if axis == 0 else (inner, back)
        biases[bias] = back
    trained = _trained(module)
    return Factors(
        {name: pair for name, pair in matrices.items() if name in trained},
        {name: rows for name, rows in biases.items() if name in trained},
    )


_MAKES: dict[Way, Callable[..., Gradients]] = {
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


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _parts(index: np.ndarray, step: int) -> Iterator[np.ndarray]:
    """Yield parts of nearly equal length, none longer than a step."""
    if len(index):
        yield from np.array_split(index, -(-len(index) // step))
