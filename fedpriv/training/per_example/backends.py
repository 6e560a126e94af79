"""Backends of per-example gradients: their choice and a trial of independence on synthetic inputs.

=========  ============================================  =========================================
backend    for                                           what it holds
=========  ============================================  =========================================
ghost      modules all of whose trained layers have a    inputs and outputs of layers; gradients
           rule (`ghost.rule_of`)                        of convolutions and other small weights
vmap       what `torch.func` can batch                   every example's whole gradient
loop       everything else: `nn.LSTM`, functional        the same, one example after the other
           dropout, code that looks at values
=========  ============================================  =========================================

A module whose forward pass mixes examples, or a weight used past its layer, would break the bound
without a word. So a backend is taken only if, on synthetic inputs and params near the given ones,
it finds what plain autograd finds for each example alone (`Trial`). No example of the training set
is looked at, so the choice is as public as the model.

What a trial cannot see: code that decides by values or by a batch size that it did not meet (tried
are 1, 3 and a whole chunk); something that is kept in a closure, a global or an object of a class
of its own, unless it moves the next gradient at once; a mixing of a part in 10^9 (10^6 in modules
of more than 16 million parameters, or that ask for float32). `backend="loop"` is safe for code that
decides, since no two examples go through the module together.

What the trial looks for:

* something that a forward pass keeps and the next one reads: refused, whatever the backend;
* random numbers from torch's own generators: only the loop gives each example a stream;
* gradients that differ from those of each example alone;
* for a batch that goes through the module at once, at the size of a chunk: gradients that move
  when the batch does.

The trial is of the module itself, since a loss may hold its parameters, say for a penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedpriv.rng import Key
from fedpriv.training.devices import bytes_at_once
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.module_state import (
    OwnState,
    one_by_one,
    unaffected_by_another,
    unchanged_buffers,
)
from fedpriv.training.local.vectorised import random_layer
from fedpriv.training.per_example.ghost import ExampleMasks, GhostPass
from fedpriv.training.per_example.ghost_norms import Before, Dense, Factor
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import kept_generators, own_stream

KEY = Key.simulation(0).fold("synthetic examples")


_WIDEST = 10.0


@contextmanager
def moved(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Train a module at params near its own, in a precision; then put everything back.

    Everything is params, buffers, plain attributes, modes and torch's generators. The parameters
    stay the same objects, so that who else holds them sees them moved.
    """
    before = OwnState(module)
    params = list(module.parameters())
    device, rng = params[0].device, KEY.fold("params").generator()
    try:
        module.train()
        for p in params:
            # Params that have diverged say nothing about the module, and compare with nothing.
            p.data = (
                p.data.to(dtype, copy=True).nan_to_num_(0.0, 0.0, 0.0).clamp_(-_WIDEST, _WIDEST)
            )
            if p.requires_grad:  # zeros, for one, hide mistakes
                change = 0.05 * rng.standard_normal(tuple(p.shape), np.float32)
                p.data.add_(torch.from_numpy(change).to(device))
        for layer in module.modules():
            for name, buffer in layer.named_buffers(recurse=False):
                floats = buffer.is_floating_point()
                setattr(layer, name, buffer.to(dtype if floats else None, copy=True))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        before.put_back()


def synthetic_inputs(
    module: nn.Module, x: np.ndarray, y: np.ndarray, number: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, list[Key]]:
    """Return inputs, targets and keys of synthetic examples, on the module's device.

    Inputs are normal, so that examples differ in sign and size; targets, which may be shares or
    chances, uniform; words are of every embedding's vocabulary, classes the first two.

    Args:
        module: Whose embeddings are looked at.
        x: Inputs of the training set; only shape and dtype of one are looked at.
        y: Targets, likewise.
        number: How many.
        dtype: Of what is not an integer.
    """
    known = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    device = next(module.parameters()).device
    left = _values(x, number, "x", min(known, default=2)).to(device)
    right = _values(y, number, "y", 2).to(device)
    return (
        left.to(dtype) if left.is_floating_point() else left,
        right.to(dtype) if right.is_floating_point() else right,
        [KEY.fold(n) for n in range(number)],
    )


def other_batch(x: Tensor) -> Tensor:
    """Return inputs of which every second is another one, larger and of one sign."""
    other = x.clone()
    other[1::2] = 4 * x[1::2].abs() if x.is_floating_point() else x.max()
    return other


def _values(array: np.ndarray, number: int, what: str, numbers: int) -> Tensor:
    shape, rng = (number, *array.shape[1:]), KEY.fold(what).generator()
    if not np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(rng.integers(numbers, size=shape).astype(array.dtype))
    values = rng.standard_normal(shape) if what == "x" else rng.random(shape)
    return torch.from_numpy(np.asarray(values))


Loss = Callable[[Tensor, Tensor], Tensor]


class Pass(Protocol):
    """Makes per-example gradients of a chunk."""

    def gradients(self, x: Tensor, y: Tensor, keys: Sequence[Key] | None) -> Mapping[str, Factor]:
        """Return the gradients at the module's own parameters, by name.

        Args:
            x: Inputs `(b, ...)`, b at least 1.
            y: Targets `(b, ...)`.
            keys: One for each example; None for a forward pass that draws nothing.
        """
        ...


class VmapPass:
    """Per-example gradients by `torch.func`: what has no batching rule raises `RuntimeError`."""

    def __init__(self, module: nn.Module, loss: Loss, masks: ExampleMasks) -> None:
        self._module, self._loss, self._masks = module, loss, masks

    def gradients(self, x: Tensor, y: Tensor, keys: Sequence[Key] | None) -> dict[str, Dense]:
        """Return the gradients of a chunk's examples, at the module's own parameters."""
        own = {n: p.detach() for n, p in self._module.named_parameters() if p.requires_grad}
        masks = self._drawn(x, keys)

        def loss_of(params: dict[str, Tensor], x: Tensor, y: Tensor, masks: list[Tensor]) -> Tensor:
            with self._masks.given([mask.unsqueeze(0) for mask in masks]):
                outputs = functional_call(self._module, params, (x.unsqueeze(0),))
            return self._loss(outputs, y.unsqueeze(0))

        each = vmap(grad(loss_of), in_dims=(None, 0, 0, 0))
        return {name: Dense(g.detach()) for name, g in each(own, x, y, masks).items()}

    def _drawn(self, x: Tensor, keys: Sequence[Key] | None) -> list[Tensor]:
        """Return every call's masks `(b, ...)`; the numbers are those the ghost path draws."""
        if keys is None or not self._masks:
            return []
        each = []
        for row, key in zip(x.split(1), keys, strict=True):
            with torch.no_grad(), self._masks.drawn([key]) as masks:
                self._module(row)
            each.append(masks)
        return [torch.cat(rows) for rows in zip(*each, strict=True)]


class LoopPass:
    """Per-example gradients one after the other: slow, and for every module that keeps nothing.

    Layers that draw from torch's own generator have a stream of each example's own. Buffers are
    put back after each example. What a forward pass keeps anywhere else would tell the next
    example of this one: a chunk's examples must leave the same plain attributes behind, and the
    trial (`fedpriv.training.per_example.backends`) has looked for more.
    """

    def __init__(self, module: nn.Module, loss: Loss, masks: ExampleMasks) -> None:
        self._module, self._loss, self._masks = module, loss, masks

    def gradients(self, x: Tensor, y: Tensor, keys: Sequence[Key] | None) -> dict[str, Dense]:
        """Return the gradients of a chunk's examples, at the module's own parameters.

        Raises:
            KeepsStateError: A ValueError; if examples leave different attributes behind.
        """
        own = {n: p for n, p in self._module.named_parameters() if p.requires_grad}
        made = {n: p.new_zeros((len(x), *p.shape)) for n, p in own.items()}
        with kept_generators():
            for number in one_by_one(self._module, len(x)):
                one = slice(number, number + 1)
                key = None if keys is None else keys[number]
                with own_stream(key, x.device), self.single_loss(x[one], y[one], key) as loss:
                    found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
                for name, gradient in zip(own, found, strict=True):
                    if gradient is not None:
                        made[name][number] = gradient
        return {name: Dense(gradients) for name, gradients in made.items()}

    @contextmanager
    def single_loss(self, x: Tensor, y: Tensor, key: Key | None) -> Iterator[Tensor]:
        """Give one example's loss, of `x` and `y` with a first axis of one; then mend buffers.

        What the module draws by itself comes from torch's generators as they stand.
        """
        with unchanged_buffers(self._module):
            with self._masks.drawn(None if key is None else [key]), torch.enable_grad():
                loss = self._loss(self._module(x), y)
            yield loss


_TRIED = 3


class DiffersError(ValueError):
    """A backend finds something else than each example alone gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Precision of a trial, and the relative differences that count as rounding.

    Attributes:
        dtype: Of params, inputs and targets.
        alone: Between an example in a batch and alone, where sums are taken in another order.
        batch: Between two batches of one size, where an example goes through the same sums.
    """

    dtype: torch.dtype
    alone: float
    batch: float


WIDE = Precision(dtype=torch.float64, alone=1e-6, batch=1e-9)
NARROW = Precision(dtype=torch.float32, alone=1e-4, batch=1e-6)


class Trial:
    """A module on synthetic inputs; within `fedpriv.training.per_example.backends.moved`.

    Args:
        module: With the params to try.
        loss: Mean loss of a batch.
        x: Inputs of the training set; only shape and dtype of one are looked at.
        y: Targets, likewise.
        precision: What the module computes in.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, x: np.ndarray, y: np.ndarray, precision: Precision
    ) -> None:
        self._module, self._like, self._precision = module, (x, y), precision
        self._device = next(module.parameters()).device
        self._oracle = LoopPass(module, loss, ExampleMasks(module))
        self._own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._kept = 0

    def alone(self) -> int:
        """Return how many numbers one example's forward pass keeps.

        Raises:
            KeepsStateError: If an example finds what another has left.
            Exception: Whatever the module raises at synthetic inputs.
        """
        counts = []

        def run(number: int) -> _Sum:
            with self._counted():
                found = self._alone(number)
            counts.append(self._kept)
            return found

        alone = self._precision.alone
        unaffected_by_another(
            self._module, OwnState(self._module), run, lambda one, other: one.is_near(other, alone)
        )
        return counts[0]

    def draws(self) -> bool:
        """Return whether a forward pass draws from torch's generators, `nn.Dropout` aside."""
        x, y, keys = self._examples(1)
        on_gpu = self._device.type == "cuda"

        def states() -> list[Tensor]:
            own = [torch.cuda.get_rng_state(self._device)] if on_gpu else []
            return [torch.get_rng_state(), *own]

        with own_stream(keys[0], self._device):
            before = states()
            with self._oracle.single_loss(x, y, keys[0]):
                return not all(map(torch.equal, before, states()))

    def few(self, run: Pass, *, count: bool) -> int:
        """Try a few examples at once; return how many numbers are held for one, if asked to count.

        Raises:
            ValueError: If a gradient is not what the example alone gives, or a buffer changes.
        """
        x, y, keys = self._examples(_TRIED)
        before = [buffer.clone() for buffer in self._module.buffers()]
        # `torch.func` does not let itself be watched.
        with unchanged_buffers(self._module), self._counted() if count else nullcontext():
            found = run.gradients(x, y, keys)
            if not all(map(torch.equal, before, self._module.buffers())):
                raise ValueError("the forward pass changes a buffer")
        held = self._kept // _TRIED + sum(_held(factor) for factor in found.values())
        for number, one in enumerate(_sums(found, list(torch.eye(_TRIED, dtype=torch.float64)))):
            self._refuse_other(one, number, _TRIED)
        return max(1, held)

    def chunk(self, run: Pass, size: int) -> None:
        """Try a batch of the size that will be used.

        Raises:
            DiffersError: If an example's gradient is not the one found of it alone, or if it moves
                when every second example is another one.
        """
        x, y, keys = self._examples(size)
        ends = torch.zeros((2, size), dtype=torch.float64)
        ends[0, 0] = ends[1, -1] = 1.0
        stay = torch.from_numpy(KEY.fold("weights").generator().standard_normal(size))
        stay[1::2] = 0.0
        with unchanged_buffers(self._module):
            first, last, before = _sums(run.gradients(x, y, keys), [*ends, stay])
        self._refuse_other(first, 0, size)
        self._refuse_other(last, size - 1, size)
        with unchanged_buffers(self._module):
            (after,) = _sums(run.gradients(other_batch(x), y, keys), [stay])
        if not before.is_near(after, self._precision.batch):
            raise DiffersError(
                f"in a batch of {size} an example's gradient depends on the other examples; "
                "take means over each example's own axes only"
            )

    def _refuse_other(self, one: _Sum, number: int, size: int) -> None:
        if not self._alone(number, size).is_near(one, self._precision.alone):
            raise DiffersError(
                "its gradients of synthetic inputs are not those of each example alone: does the "
                "forward pass mix examples or use a weight past its layer, or does the loss use "
                "a weight?"
            )

    def _alone(self, number: int, size: int = _TRIED) -> _Sum:
        x, y, keys = self._examples(size)
        one = slice(number, number + 1)
        found = self._oracle.gradients(x[one], y[one], keys[one])
        return _sums(found, [torch.ones(1, dtype=torch.float64)])[0]

    def _examples(self, number: int) -> tuple[Tensor, Tensor, list[Key]]:
        return synthetic_inputs(self._module, *self._like, number, self._precision.dtype)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the numbers that autograd keeps, params aside."""
        self._kept = 0

        def count(tensor: Tensor) -> Tensor:
            own = tensor.untyped_storage().data_ptr() in self._own
            self._kept += 0 if own else tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            yield


@dataclass(frozen=True, slots=True)
class _Sum:
    """A weighted sum of gradients, with the squared norms `(k,)` of those that are in it."""

    squares: Tensor
    total: Mapping[str, Tensor]

    def is_near(self, other: _Sum, tolerance: float) -> bool:
        """Return whether the other is the same but for a relative difference."""
        gap = norm = 0.0
        for name, tensor in self.total.items():
            gap += float((other.total[name].double() - tensor).square().sum())
            norm += float(tensor.double().square().sum())
        rest = (other.squares - self.squares).abs() <= tolerance * self.squares
        return gap <= tolerance**2 * norm and bool(rest.all())


def _sums(found: Mapping[str, Factor], weights: list[Tensor]) -> list[_Sum]:
    """Return the sums of a chunk's gradients by weights, each float64 `(b,)` with zeros."""
    measured = {name: factor.measured(Before()) for name, factor in found.items()}
    squares = torch.stack([each for each, _ in measured.values()]).sum(0)
    return [
        _Sum(
            squares[row != 0],
            {n: summands.weighted_sum(row) for n, (_, summands) in measured.items()},
        )
        for row in (row.to(squares.device) for row in weights)
    ]


def _held(factor: Factor) -> int:
    """Return how many numbers a factor holds for one example, twice for those in passing."""
    tensors = [t for t in vars(factor).values() if isinstance(t, Tensor) and len(t) == _TRIED]
    return 2 * sum(t[0].numel() for t in tensors)


PerExampleBackend = Literal["ghost", "vmap", "loop"]
PER_EXAMPLE_BACKENDS: tuple[PerExampleBackend, ...] = ("ghost", "vmap", "loop")

_MOST = 1024
_WIDE_PARAMS = 1 << 24
_PASSES = {"ghost": GhostPass, "vmap": VmapPass, "loop": LoopPass}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A backend that works for a module.

    Attributes:
        backend: Its name.
        run: Makes the gradients.
        chunk: Examples at once that fit (`fedpriv.training.devices.bytes_at_once`), by what was
            held for synthetic ones.
        is_random: Whether the forward pass draws, so that examples need keys.
    """

    backend: PerExampleBackend
    run: Pass
    chunk: int
    is_random: bool


def choose(
    module: nn.Module,
    loss: Loss,
    x: np.ndarray,
    y: np.ndarray,
    only: PerExampleBackend | None = None,
    chunk: int | None = None,
) -> Chosen:
    """Return the first backend that works, or a certain one.

    Costs what some ten chunks of training do, once. The module is as it was afterwards.

    Args:
        module: On its device.
        loss: Mean loss of a batch.
        x: Inputs of the training set `(n, ...)`; only n, and the shape and dtype of one, are
            looked at.
        y: Targets, likewise.
        only: A backend that must work.
        chunk: How many examples the caller will put through at once, to be tried as far as
            memory goes; None for the chunk that is returned.

    Raises:
        ValueError: If `only` does not work for this module, or if examples reach each other
            through what the module keeps, so that no backend does; says why.
    """
    masks = ExampleMasks(module)
    is_random = bool(masks) or _draws_elsewhere(module)
    most = max(1, len(x) if chunk is None else min(chunk, len(x)))
    memory = bytes_at_once(next(module.parameters()).device)
    refused: dict[PerExampleBackend, str] = {}
    for precision in _precisions(_size(module)):
        with moved(module, precision.dtype):
            trial = Trial(module, loss, x, y, precision)
            try:
                kept, draws = trial.alone(), trial.draws()
            except KeepsStateError:
                raise
            except Exception as error:  # asks for float32, or has no use for synthetic inputs
                end_if_interrupted(error)
                refused |= dict.fromkeys(PER_EXAMPLE_BACKENDS, _describe_error(error))
                continue
            made = 2 * _size(module) + 2 * kept
            for backend in PER_EXAMPLE_BACKENDS if only is None else (only,):
                try:
                    run = _PASSES[backend](module, loss, masks)
                    fit = (
                        _examples_in(made, memory)
                        if backend == "loop"
                        else _try_sizes(trial, run, draws, made, most, memory)
                    )
                except Exception as error:
                    end_if_interrupted(error)
                    refused[backend] = _describe_error(error)
                    continue
                return Chosen(backend=backend, run=run, chunk=fit, is_random=is_random or draws)
        break
    else:
        if only is None:  # synthetic inputs fit no backend; the real ones may fit this one
            run = LoopPass(module, loss, masks)
            fit = _examples_in(2 * _size(module), memory)
            return Chosen(backend="loop", run=run, chunk=fit, is_random=is_random)
    raise ValueError(f"backend {only!r} does not work for this module: {refused[only or 'loop']}")


def _try_sizes(trial: Trial, run: Pass, draws: bool, made: int, most: int, memory: int) -> int:
    """Return how many examples at once fit; raise if examples would not be kept apart.

    Args:
        trial: Of the module.
        run: What puts more than one example through.
        draws: Whether the module draws from torch's own generators.
        made: Numbers to hold for an example whose whole gradient is made.
        most: Examples that will ever go through at once.
        memory: Bytes that may be held.
    """
    if draws:
        raise ValueError(
            "its forward pass draws at random outside of nn.Dropout, and only backend 'loop' gives "
            "every example a stream of its own; use nn.Dropout layers where you can"
        )
    if not isinstance(run, GhostPass):  # takes examples apart by itself
        trial.few(run, count=False)
        return _examples_in(made, memory)
    fit = _examples_in(trial.few(run, count=True), memory)
    trial.chunk(run, min(fit, most))
    return fit


def _examples_in(floats: int, memory: int) -> int:
    """Return how many examples of so many float32 fit into so many bytes at once."""
    return max(1, min(_MOST, memory // (4 * floats)))


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _precisions(size: int) -> list[Precision]:
    """Return what to try in.

    In float32 a deep network's gradient may move by a part in 10^3 when a sum is taken in another
    order; float64 tells that from a mistake. Code that asks for float32 by name has to do with it,
    and so have models of which a wide copy would be large.
    """
    return [NARROW] if size > _WIDE_PARAMS else [WIDE, NARROW]


def _draws_elsewhere(module: nn.Module) -> bool:
    """Return whether a layer other than `nn.Dropout` is known to draw while it trains."""
    return any(
        random_layer(layer) is not None
        for layer in module.modules()
        if type(layer) is not nn.Dropout and not list(layer.children())
    )
