"""A module's per-example gradients tried on synthetic inputs, before the training set is touched.

Every backend is held against plain autograd on each example alone. What the trial looks for:

* something that a forward pass keeps and the next one reads: refused, whatever the backend;
* random numbers from torch's own generators: only the loop gives each example a stream;
* gradients that differ from those of each example alone;
* for a batch that goes through the module at once, at the size of a chunk: gradients that move
  when the batch does.

The trial is of the module itself, since a loss may hold its parameters, say for a penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.rng import Key
from fedpriv.training.failures import KeepsStateError
from fedpriv.training.local.hidden_state import (
    attributes,
    put_back,
    refuse_change,
)
from fedpriv.training.local.module_state import own_stream, unchanged_buffers
from fedpriv.training.per_example.ghost.masks import ExampleMasks
from fedpriv.training.per_example.ghost.norms import Before, Factor
from fedpriv.training.per_example.synthetic_inputs import KEY, other_batch, synthetic_inputs
from fedpriv.training.per_example.whole import LoopPass, Pass

Loss = Callable[[Tensor, Tensor], Tensor]

_TRIED = 3


class DiffersError(ValueError):
    """A backend finds something else than each example alone gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a trial computes in, and the relative differences that are still rounding.

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
    """A module on synthetic inputs; within `fedpriv.training.per_example.synthetic_inputs.moved`.

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
        fresh = attributes(self._module)
        with self._counted():
            first = self._alone(0)
        kept, behind = self._kept, attributes(self._module)
        put_back(self._module, fresh)
        self._alone(1)
        refuse_change(behind, attributes(self._module))
        again = self._alone(0)
        refuse_change(behind, attributes(self._module))
        if not first.is_near(again, self._precision.alone):
            raise KeepsStateError(
                "an example's gradient is another one after a second example went through: the "
                "module or the loss keeps something where no bound sees it, or draws from a "
                "generator of its own; keep nothing, and draw from torch's own generators"
            )
        return kept

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
