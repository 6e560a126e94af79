"""Which backend makes a module's per-example gradients, found on synthetic inputs.

=========  ============================================  =========================================
backend    for                                           what it holds
=========  ============================================  =========================================
ghost      modules all of whose trained layers have a    inputs and outputs of layers; gradients
           rule (`layer_rules`)                          of convolutions and other small weights
vmap       what `torch.func` can batch                   every example's whole gradient
loop       everything else: `nn.LSTM`, functional        the same, one example after the other
           dropout, code that looks at values
=========  ============================================  =========================================

A module whose forward pass mixes examples, or a weight used past its layer, would break the bound
without a word. So a backend is taken only if, on synthetic inputs and params near the given ones,
it finds what plain autograd finds for each example alone
(`fedpriv.training.per_example.independence`). No example of the training set is looked at, so the
choice is as public as the model.

What a trial cannot see: code that decides by values or by a batch size that it did not meet (tried
are 1, 3 and a whole chunk); something that is kept in a closure, a global or an object of a class
of its own, unless it moves the next gradient at once; a mixing of a part in 10^9 (10^6 in modules
of more than 16 million parameters, or that ask for float32). `backend="loop"` is safe for code that
decides, since no two examples go through the module together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor, nn

from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.users_at_once import random_layer
from fedpriv.training.per_example.ghost.backward import GhostPass
from fedpriv.training.per_example.ghost.masks import ExampleMasks
from fedpriv.training.per_example.independence import NARROW, WIDE, Precision, Trial
from fedpriv.training.per_example.synthetic_inputs import moved
from fedpriv.training.per_example.whole import LoopPass, Pass, VmapPass
from fedpriv.training.stopping import end_if_interrupted

PerExampleBackend = Literal["ghost", "vmap", "loop"]
PER_EXAMPLE_BACKENDS: tuple[PerExampleBackend, ...] = ("ghost", "vmap", "loop")
Loss = Callable[[Tensor, Tensor], Tensor]

_BYTES = 256 << 20
_MOST = 1024
_WIDE_PARAMS = 1 << 24
_PASSES = {"ghost": GhostPass, "vmap": VmapPass, "loop": LoopPass}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A backend that works for a module.

    Attributes:
        backend: Its name.
        run: Makes the gradients.
        chunk: Examples at once that fit into 256 MiB, by what was held for synthetic ones.
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
            256 MiB go; None for the chunk that is returned.

    Raises:
        ValueError: If `only` does not work for this module, or if examples reach each other
            through what the module keeps, so that no backend does; says why.
    """
    masks = ExampleMasks(module)
    is_random = bool(masks) or _draws_elsewhere(module)
    most = max(1, len(x) if chunk is None else min(chunk, len(x)))
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
                refused |= dict.fromkeys(PER_EXAMPLE_BACKENDS, _said(error))
                continue
            made = 2 * _size(module) + 2 * kept
            for backend in PER_EXAMPLE_BACKENDS if only is None else (only,):
                try:
                    run = _PASSES[backend](module, loss, masks)
                    fit = (
                        _fitting(made)
                        if backend == "loop"
                        else _tried(trial, run, draws, made, most)
                    )
                except Exception as error:
                    end_if_interrupted(error)
                    refused[backend] = _said(error)
                    continue
                return Chosen(backend=backend, run=run, chunk=fit, is_random=is_random or draws)
        break
    else:
        if only is None:  # synthetic inputs fit no backend; the real ones may fit this one
            run = LoopPass(module, loss, masks)
            fit = _fitting(2 * _size(module))
            return Chosen(backend="loop", run=run, chunk=fit, is_random=is_random)
    raise ValueError(f"backend {only!r} does not work for this module: {refused[only or 'loop']}")


def _tried(trial: Trial, run: Pass, draws: bool, made: int, most: int) -> int:
    """Return how many examples at once fit; raise if examples would not be kept apart.

    Args:
        trial: Of the module.
        run: What puts more than one example through.
        draws: Whether the module draws from torch's own generators.
        made: Numbers to hold for an example whose whole gradient is made.
        most: Examples that will ever go through at once.
    """
    if draws:
        raise ValueError(
            "its forward pass draws at random outside of nn.Dropout, and only backend 'loop' gives "
            "every example a stream of its own; use nn.Dropout layers where you can"
        )
    if not isinstance(run, GhostPass):  # takes examples apart by itself
        trial.few(run, count=False)
        return _fitting(made)
    fit = _fitting(trial.few(run, count=True))
    trial.chunk(run, min(fit, most))
    return fit


def _fitting(floats: int) -> int:
    """Return how many examples of so many float32 fit into memory at once."""
    return max(1, min(_MOST, _BYTES // (4 * floats)))


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _said(error: Exception) -> str:
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
