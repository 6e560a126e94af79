"""A module's per-example gradients tried on made-up examples, before the training set is touched.

Every way is held against plain autograd on each example alone. What the trial looks for:

* something that a forward pass keeps and the next one reads: refused, whatever the way;
* random numbers from torch's own generators: only the loop gives each example a stream;
* gradients that differ from those of each example alone;
* for a batch that goes through the module at once, at the size of a chunk: gradients that move
  when the company does.

The trial is of the module itself, since a loss may hold its parameters, say for a penalty. They
are put back afterwards, with buffers and attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.rng import Key
from fedpriv.training.example_masks import ExampleMasks
from fedpriv.training.factors import Before, Factor
from fedpriv.training.module_state import own_stream, unchanged_buffers
from fedpriv.training.plain_attributes import (
    KeepsStateError,
    attributes,
    put_back,
    refuse_change,
)
from fedpriv.training.whole_gradients import LoopPass, Pass

Loss = Callable[[Tensor, Tensor], Tensor]
Found = Mapping[str, Factor]

_TRIED = 3
_KEY = Key.simulation(0).fold("made-up examples")


class DiffersError(ValueError):
    """A way finds something else than each example alone gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a trial computes in, and the relative differences that are still rounding.

    Attributes:
        dtype: Of params, inputs and targets.
        alone: Between an example in a batch and alone, where sums are taken in another order.
        company: Between two batches of one size, where an example goes through the same sums.
    """

    dtype: torch.dtype
    alone: float
    company: float


WIDE = Precision(dtype=torch.float64, alone=1e-6, company=1e-9)
NARROW = Precision(dtype=torch.float32, alone=1e-3, company=1e-6)


class Trial:
    """A module with params near its own and a few made-up examples; see `on_trial`."""

    def __init__(
        self, module: nn.Module, loss: Loss, x: np.ndarray, y: np.ndarray, precision: Precision
    ) -> None:
        self._module, self._precision = module, precision
        self._shapes = x, y
        self._device = next(module.parameters()).device
        self._oracle = LoopPass(module, loss, ExampleMasks(module))
        self._own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._kept = 0

    def alone(self) -> int:
        """Return how many numbers one example's forward pass keeps.

        Raises:
            KeepsStateError: If an example finds what another has left.
            Exception: Whatever the module raises at made-up examples.
        """
        x, y, keys = self._examples(_TRIED)
        start = attributes(self._module)
        with self._counted():
            first = self._oracle.gradients(x[:1], y[:1], keys[:1])
        kept, behind = self._kept, attributes(self._module)
        put_back(self._module, start)
        self._oracle.gradients(x[1:2], y[1:2], keys[1:2])
        refuse_change(behind, attributes(self._module))
        again = self._oracle.gradients(x[:1], y[:1], keys[:1])
        refuse_change(behind, attributes(self._module))
        try:
            _compare(again, [0], [first], self._precision.company)
        except DiffersError:
            raise KeepsStateError(
                "an example's gradient is another one after a second example went through the "
                "module: it, or the loss, keeps something, where no bound sees it; let it keep "
                "nothing and draw from nothing but torch's own generators"
            ) from None
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

    def few(self, run: Pass) -> int:
        """Return how many numbers a way holds for one example.

        Raises:
            ValueError: If it does not find what each example alone gives, or changes a buffer.
        """
        x, y, keys = self._examples(_TRIED)
        before = [buffer.clone() for buffer in self._module.buffers()]
        with unchanged_buffers(self._module), self._counted() if self._watches(run) else nullcontext():
            found = run.gradients(x, y, keys)
            if not all(map(torch.equal, before, self._module.buffers())):
                raise ValueError("the forward pass changes a buffer")
        for number in range(_TRIED):
            self._compare_alone(found, number, x, y, keys)
        return max(1, self._kept // _TRIED + sum(_held(factor) for factor in found.values()))

    def chunk(self, run: Pass, size: int) -> None:
        """Try a batch of the size that will be used.

        Raises:
            DiffersError: If an example's gradient is not the one found of it alone, or if it moves
                when every second example is another one.
        """
        x, y, keys = self._examples(size)
        with unchanged_buffers(self._module):
            found = run.gradients(x, y, keys)
        rows = torch.zeros((3, size), dtype=torch.float64)
        rows[0, 0] = rows[1, -1] = 1.0
        rows[2, ::2] = torch.from_numpy(_KEY.fold("signs").generator().standard_normal(size))[::2]
        rows = rows.to(self._device)
        squares, (first, last, total) = _summed(found, rows)
        del found
        for number, one in ((0, first), (size - 1, last)):
            self._refuse_other(one, squares[number], self._alone(number, x, y, keys))
        with unchanged_buffers(self._module):
            found = run.gradients(_other_company(x), y, keys)
        others, (moved,) = _summed(found, rows[2:])
        limit = self._precision.company
        stay = (others - squares)[::2].abs() <= limit * squares[::2]
        if not (_gap(moved, total) <= limit and bool(stay.all())):
            raise DiffersError(
                f"in a batch of {size} an example's gradient depends on the other examples; "
                "take means over each example's own axes only"
            )

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

    def _examples(self, number: int) -> tuple[Tensor, Tensor, list[Key]]:
        (x, y), dtype = self._shapes, self._precision.dtype
        made = (
            _made_up(x, number, "x", _vocabulary(self._module)),
            _made_up(y, number, "y", 2),
        )
        left, right = (
            tensor.to(self._device, dtype if tensor.is_floating_point() else None)
            for tensor in made
        )
        return left, right, [_KEY.fold(n) for n in range(number)]

    def _compare_alone(
        self, found: Found, number: int, x: Tensor, y: Tensor, keys: list[Key]
    ) -> None:
        one = slice(number, number + 1)
        expected = self._oracle.gradients(x[one], y[one], keys[one])
        _compare(found, number, expected, self._precision.alone)


@contextmanager
def on_trial(
    module: nn.Module, loss: Loss, x: np.ndarray, y: np.ndarray, precision: Precision
) -> Iterator[Trial]:
    """Give a trial of the module itself; params, buffers, attributes and modes are put back.

    Args:
        module: On its device.
        loss: Mean loss of a batch.
        x: Inputs of the training set; only shape and dtype of one are looked at.
        y: Targets, likewise.
        precision: What to compute in.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    params = [(p, p.data) for p in module.parameters()]
    buffers = [
        (layer, name, buffer)
        for layer in module.modules()
        for name, buffer in layer.named_buffers(recurse=False)
    ]
    before = attributes(module)
    device = params[0][0].device
    rng = _KEY.fold("params").generator()
    try:
        module.train()
        for p, data in params:
            p.data = data.to(precision.dtype, copy=True)
            if p.requires_grad:  # zeros, for one, hide mistakes
                moved = 0.05 * rng.standard_normal(tuple(p.shape), np.float32)
                p.data.add_(torch.from_numpy(moved).to(device))
        for layer, name, buffer in buffers:
            floats = buffer.is_floating_point()
            setattr(layer, name, buffer.to(precision.dtype if floats else None, copy=True))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield Trial(module, loss, x, y, precision)
    finally:
        for p, data in params:
            p.data = data
        for layer, name, buffer in buffers:
            setattr(layer, name, buffer)
        for layer, mode in modes:
            layer.training = mode
        put_back(module, before)


def _compare(found: Found, number: int, expected: Found, tolerance: float) -> None:
    """Raise if an example's gradient or its norm is not the one found of it alone."""
    num_examples = len(next(iter(found.values())).squares(Before()))
    one = torch.zeros(num_examples, dtype=torch.float64, device=_device(expected))
    one[number] = 1.0
    squares, sums = _summed(found, one)
    _, true = _summed(expected, torch.ones_like(one[:1]))
    gap = sum(float((sums[n] - total).square().sum()) for n, total in true.items())
    norm = sum(float(total.square().sum()) for total in true.values())
    rest = abs(float(squares[number]) - norm)
    if not (gap <= tolerance**2 * norm and rest <= tolerance * norm):
        raise DiffersError(
            "its gradients of made-up examples are not those of each example alone: does the "
            "forward pass mix examples, or use a weight past its layer? does the loss use one?"
        )


def _summed(found: Found, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return every example's squared norm `(b,)` and the weighted sums of gradients, float64."""
    measured = {name: factor.measured(Before()) for name, factor in found.items()}
    squares = torch.stack([each for each, _ in measured.values()]).sum(0)
    return squares, {n: s.weighted_sum(weights).double() for n, (_, s) in measured.items()}


def _held(factor: Factor) -> int:
    """Return how many numbers a factor holds for one example, twice for those in passing."""
    tensors = [t for t in vars(factor).values() if isinstance(t, Tensor) and len(t) == _TRIED]
    return 2 * sum(t[0].numel() for t in tensors)


def _vocabulary(module: nn.Module) -> int:
    """Return how many words every embedding of the module knows; 2 where there is none."""
    known = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    return min(known, default=2)


def _made_up(array: np.ndarray, number: int, what: str, numbers: int) -> Tensor:
    """Return made-up values of the array's shape and kind.

    Inputs are normal, so that examples differ in sign and size; targets, which may be shares or
    chances, uniform; words and classes of the first numbers.
    """
    shape, rng = (number, *array.shape[1:]), _KEY.fold(what).generator()
    if not np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(rng.integers(numbers, size=shape).astype(array.dtype))
    return torch.from_numpy(rng.standard_normal(shape) if what == "x" else rng.random(shape))


def _other_company(x: Tensor) -> Tensor:
    """Return inputs of which every second is another one, larger and of one sign."""
    other = x.clone()
    rows = other[1::2]
    other[1::2] = 4 * rows.abs() if x.is_floating_point() else x.max()
    return other
