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

A module whose forward pass mixes examples, or a weight used past its layer, would break the bound
without a word. So a way is taken only if, on made-up examples and params near the given ones, it
finds what plain autograd finds for each example alone (`fedpriv.training.gradient_trial`). No
example of the training set is looked at, so the choice is as public as the model.

What a trial cannot see: code that decides by values, by a batch size or by a call's number that
the trial did not meet (tried are 1, 3 and a whole chunk); something kept in a closure, a global or
an object of a class of its own, unless it moves the next gradient at once; a mixing below the
rounding of the trial, a part in 10^9 (10^6 where the module cannot be tried in float64). The first
of these is no matter with `way="loop"`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor, nn

from fedpriv.training.example_masks import ExampleMasks
from fedpriv.training.factored import FactoredPass
from fedpriv.training.gradient_trial import NARROW, WIDE, Precision, Trial, on_trial
from fedpriv.training.plain_attributes import KeepsStateError
from fedpriv.training.users_at_once import random_layer
from fedpriv.training.whole_gradients import LoopPass, Pass, VmapPass

Way = Literal["factored", "vmap", "loop"]
WAYS: tuple[Way, ...] = ("factored", "vmap", "loop")
Loss = Callable[[Tensor, Tensor], Tensor]

_BYTES = 256 << 20
_MOST = 1024
_WIDE_PARAMS = 1 << 24
_PASSES = {"factored": FactoredPass, "vmap": VmapPass, "loop": LoopPass}


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
    module: nn.Module,
    loss: Loss,
    x: np.ndarray,
    y: np.ndarray,
    only: Way | None = None,
    chunk: int | None = None,
) -> Chosen:
    """Return the first way that works, or a certain one.

    Costs about what four chunks of training do, once. The module is as it was afterwards.

    Args:
        module: On its device.
        loss: Mean loss of a batch.
        x: Inputs of the training set `(n, ...)`; only n, and the shape and dtype of one, are
            looked at.
        y: Targets, likewise.
        only: A way that must work.
        chunk: How many examples the caller will put through at once, to be tried as far as
            256 MiB go; None for the chunk that is returned.

    Raises:
        ValueError: If `only` does not work for this module, or if examples reach each other
            through what the module keeps, so that no way does; says why.
    """
    size = sum(p.numel() for p in module.parameters() if p.requires_grad)
    masks = ExampleMasks(module)
    is_random = bool(masks) or _draws_elsewhere(module)
    refused: dict[Way, str] = {}
    for precision in _precisions(size):
        with on_trial(module, loss, x, y, precision) as trial:
            try:
                kept, draws = trial.alone(), trial.draws()
            except KeepsStateError:
                raise
            except Exception as error:  # asks for float32, or has no use for made-up examples
                refused |= dict.fromkeys(WAYS, _said(error))
                continue
            for way in WAYS if only is None else (only,):
                floats = 2 * size + 2 * kept
                try:
                    if draws and way != "loop":
                        raise ValueError(_DRAWS)
                    run = _PASSES[way](module, loss, masks)
                    if way != "loop":
                        held = trial.few(run)
                    if way == "factored":
                        floats = held
                    at_once = _fitting(floats)
                    if way == "factored":
                        tried = at_once if chunk is None else min(chunk, at_once)
                        trial.chunk(run, min(tried, len(x)))
                except Exception as error:
                    refused[way] = _said(error)
                    continue
                return Chosen(way=way, run=run, chunk=at_once, is_random=is_random or draws)
            break
