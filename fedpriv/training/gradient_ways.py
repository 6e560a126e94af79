"""Which way a module's per-example gradients are made, found on made-up examples.

=========  ============================================  =========================================
way        for                                           what it holds
=========  ============================================  =========================================
factored   modules all of whose trained layers have a    inputs and outputs of layers; gradients
           rule (`layer_rules`)                          of convolutions and other small weights
vmap       what `torch.func` can batch                   every example's whole gradient
loop       everything else: `nn.LSTM`, functional        the same, one example after the other
           dropout, code that looks at values
=========  ============================================  =========================================

A module whose forward pass mixes examples, or uses a weight past its layer, would break the bound
without a word. So the factored way is taken only if, on made-up examples and params near the
given ones, it finds what plain autograd finds for each example alone. No example of the training
set is looked at, so the choice is as public as the model. (Code that decides by what it sees in a
batch can still behave on made-up examples and not on real ones: `way="loop"` is safe for that.)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.rng import Key
from fedpriv.training.example_masks import ExampleMasks
from fedpriv.training.factored import FactoredPass
from fedpriv.training.factors import Before, Factor
from fedpriv.training.users_at_once import random_layer
from fedpriv.training.whole_gradients import LoopPass, VmapPass, unchanged_buffers

Way = Literal["factored", "vmap", "loop"]
WAYS: tuple[Way, ...] = ("factored", "vmap", "loop")
Loss = Callable[[Tensor, Tensor], Tensor]

_BYTES = 256 << 20
_MOST = 1024
_TRIED = 3
_WIDE_PARAMS = 1 << 24
_KEY = Key.simulation(0).fold("made-up examples")
_PASSES = {"factored": FactoredPass, "vmap": VmapPass, "loop": LoopPass}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A way that works for a module.

    Attributes:
        way: Its name.
        run: Makes the gradients.
        chunk: Examples at once that fit into 256 MiB, by what was held for made-up ones.
        is_random: Whether the forward pass draws, so that examples need keys.
    """

    way: Way
    run: Pass
    chunk: int
    is_random: bool


def choose(
    module: nn.Module, loss: Loss, x: np.ndarray, y: np.ndarray, only: Way | None = None
) -> Chosen:
    """Return the first way that works, or a certain one.

    Args:
        module: On its device; a copy of it is tried.
        loss: Mean loss of a batch.
        x: Inputs of the training set; only shape and dtype of one are looked at.
        y: Targets, likewise.
        only: A way that must work.

    Raises:
        ValueError: If `only` does not work for this module; says why.
    """
    size = sum(p.numel() for p in module.parameters() if p.requires_grad)
    is_random = bool(ExampleMasks(module)) or _draws_elsewhere(module)
    device = next(module.parameters()).device
    on_gpu = [device] if device.type == "cuda" else []
    refused: dict[str, str] = {}
    for way in WAYS if only is None else (only,):
        for dtype, tolerance in _precisions(size):
            try:
                with torch.random.fork_rng(devices=on_gpu):
                    trial = _trial(module, x, y, dtype)
                    floats = _try(way, trial, loss, tolerance, size)
                run = _PASSES[way](module, loss, ExampleMasks(module))
            except Exception as error:
                refused[way] = f"{type(error).__name__}: {error}"
                is_random |= "random" in str(error)
                if isinstance(error, _DiffersError):
                    break
                continue
            chunk = max(1, min(_MOST, _BYTES // (4 * floats)))
            return Chosen(way=way, run=run, chunk=chunk, is_random=is_random)
    if only is None:  # the made-up examples fit no way; the real ones may fit this one
        run = LoopPass(module, loss, ExampleMasks(module))
        chunk = max(1, min(_MOST, _BYTES // (8 * size)))
        return Chosen(way="loop", run=run, chunk=chunk, is_random=is_random)
    raise ValueError(f"way {only!r} does not work for this module: {refused[only]}")


class _DiffersError(ValueError):
    """A way finds something else than each example alone gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A copy of the module, its params off special values, with made-up examples."""

    module: nn.Module
    x: Tensor
    y: Tensor
    keys: list[Key]


def _precisions(size: int) -> list[tuple[torch.dtype, float]]:
    """Return what to try in, with the relative difference that is still rounding.

    In float32 a deep network's gradient may move by a part in 10^3 when a sum is taken in another
    order; float64 tells that from a mistake. Code that asks for float32 by name has to do with it,
    and so have models of which a wide copy would be large.
    """
    narrow = (torch.float32, 1e-2)
    return [narrow] if size > _WIDE_PARAMS else [(torch.float64, 1e-6), narrow]


def _trial(module: nn.Module, x: np.ndarray, y: np.ndarray, dtype: torch.dtype) -> _Trial:
    copied = copy.deepcopy(module).to(dtype).train()
    device = next(copied.parameters()).device
    rng = _KEY.fold("params").generator()
    with torch.no_grad():
        for p in copied.parameters():
            if p.requires_grad:  # zeros, for one, hide mistakes
                moved = 0.05 * rng.standard_normal(tuple(p.shape), np.float32)
                p.add_(torch.from_numpy(moved).to(p.device))
    return _Trial(
        module=copied,
        x=_made_up(x, device, dtype, "x", _vocabulary(module)),
        y=_made_up(y, device, dtype, "y", 2),
        keys=[_KEY.fold(number) for number in range(_TRIED)],
    )


def _try(way: Way, trial: _Trial, loss: Loss, tolerance: float, size: int) -> int:
    """Return the floats that a way holds for one example; raise if it does not work."""
    masks, kept = ExampleMasks(trial.module), 0
    own = {p.untyped_storage().data_ptr() for p in trial.module.parameters()}

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += 0 if tensor.untyped_storage().data_ptr() in own else tensor.numel()
        return tensor

    run = _PASSES[way](trial.module, loss, masks)
    oracle = LoopPass(trial.module, loss, masks)
    counted = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
    before = [buffer.clone() for buffer in trial.module.buffers()]
    if way != "factored":  # right by construction, if it runs
        with unchanged_buffers(trial.module):
            run.gradients(trial.x, trial.y, trial.keys)
            _refuse_changes(before, trial.module, way)
        with counted:  # `torch.func` does not let itself be watched
            oracle.gradients(trial.x[:1], trial.y[:1], trial.keys[:1])
        return 2 * size + 2 * kept
    with unchanged_buffers(trial.module), counted:
        found = run.gradients(trial.x, trial.y, trial.keys)
        _refuse_changes(before, trial.module, way)
    for number in range(_TRIED):
        one = slice(number, number + 1)
        expected = oracle.gradients(trial.x[one], trial.y[one], trial.keys[one])
        _compare(found, expected, number, tolerance)
    return max(1, kept // _TRIED + sum(_held(factor) for factor in found.values()))


def _refuse_changes(before: list[Tensor], module: nn.Module, way: Way) -> None:
    """Raise if a forward pass has changed a buffer, unless examples go one by one."""
    same = all(torch.equal(b, a) for b, a in zip(before, module.buffers(), strict=True))
    if not same and way != "loop":
        raise ValueError("the forward pass changes a buffer")


def _held(factor: Factor) -> int:
    """Return how many numbers a factor holds for one example, twice for those in passing."""
    tensors = [t for t in vars(factor).values() if isinstance(t, Tensor) and len(t) == _TRIED]
    return 2 * sum(t[0].numel() for t in tensors)


def _compare(
    found: Mapping[str, Factor], expected: Mapping[str, Factor], number: int, tolerance: float
) -> None:
    """Raise if an example's gradient or its norm is not the one found of it alone."""
    squares = torch.stack([factor.squares(Before()) for factor in found.values()]).sum(0)
    one = torch.zeros_like(squares)
    one[number] = 1.0
    gap = norm = 0.0
    for name, factor in found.items():
        true = expected[name].weighted_sum(one[number : number + 1]).double()
        gap += float((factor.weighted_sum(one).double() - true).square().sum())
        norm += float(true.square().sum())
    rest = abs(float(squares[number]) - norm)
    if not (gap <= tolerance**2 * norm and rest <= tolerance * norm):
        raise _DiffersError(
            "its gradients of made-up examples are not those of each example alone: does the "
            "forward pass mix examples, or use a weight past its layer?"
        )


def _draws_elsewhere(module: nn.Module) -> bool:
    """Return whether a layer other than `nn.Dropout` is known to draw while it trains."""
    return any(
        random_layer(layer) is not None
        for layer in module.modules()
        if type(layer) is not nn.Dropout and not list(layer.children())
    )


def _vocabulary(module: nn.Module) -> int:
    """Return how many words every embedding of the module knows; 2 where there is none."""
    known = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    return min(known, default=2)


def _made_up(
    array: np.ndarray, device: torch.device, dtype: torch.dtype, what: str, numbers: int
) -> Tensor:
    """Return made-up values of the array's shape and kind.

    Inputs are normal, so that examples differ in sign and size; targets, which may be shares or
    chances, uniform; words and classes of the first numbers.
    """
    shape, rng = (_TRIED, *array.shape[1:]), _KEY.fold(what).generator()
    if not np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(rng.integers(numbers, size=shape).astype(array.dtype)).to(device)
    values = rng.standard_normal(shape) if what == "x" else rng.random(shape)
    return torch.from_numpy(np.asarray(values)).to(device, dtype)
