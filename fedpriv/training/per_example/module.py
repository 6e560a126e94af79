"""Bounded sums of single examples' gradients, for any `nn.Module`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.training.devices import usable_device
from fedpriv.training.failures import KeepsStateError, contributes_zero
from fedpriv.training.local.module import check_module, load_params, model_inputs, model_targets
from fedpriv.training.local.module_state import unchanged_buffers
from fedpriv.training.per_example.backends import (
    PER_EXAMPLE_BACKENDS,
    Chosen,
    LoopPass,
    PerExampleBackend,
    choose,
    moved,
    synthetic_inputs,
)
from fedpriv.training.per_example.example_sum import Examples, factors_of
from fedpriv.training.per_example.ghost import ExampleMasks
from fedpriv.training.per_example.ghost_norms import Before, Dense, Factor, Groups
from fedpriv.training.per_example.losses import SingleLosses, check_loss, example_losses
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import own_stream
from fedpriv.tree import Params

_SMALLEST = 2.0**-120
_NOTHING = Before()
_SAFETY = 2.0**-22
_TRIED = 2


class ModuleGradients:
    """A module on a training set of arrays, seen one example at a time.

    Guarantees:
        * An example's own contribution has at most the bound's norm, to a part in 10^6: norms are
          float64, sums over a chunk float32, sums over chunks float64. Whoever leaves a batch also
          moves the last bits of the others' sum, by 1e-4 of the bound for a thousand like examples.
        * Every example's update depends on the params, on itself and on its own key only, but for
          the last bits of float32, which depend on the batch it is computed in. So does its loss,
          which is of a batch of one, in evaluation mode.
        * Memory is bounded: examples go through the module in chunks.
        * An example with a norm that is not finite contributes zero, alone, and so does one whose
          norm is below 1e-36, which float32 cannot scale up. So does one at which module or loss
          raise, such as a label that is no class; in micro-batches that ends the run.

    The backend is chosen at the first call (`fedpriv.training.per_example.backends`).

    Args:
        module: A checked module, which is on the device while it is used; its parameters are
            overwritten.
        loss: From (outputs, targets) to the mean loss of a batch. For private sums it is called
            with batches of one. One that is a module is on the device, too.
        x: Inputs `(n, ...)`; memory maps are read batch by batch.
        y: Targets `(n, ...)`.
        device: Such as "cpu" or "cuda:0".
        chunk: Examples at once; None for as many as fit into what a step may hold there.
        backend: "ghost", "vmap" or "loop"; None for the first of these that works.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        x: np.ndarray,
        y: np.ndarray,
        *,
        device: str = "cpu",
        chunk: int | None = None,
        backend: PerExampleBackend | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs but {len(y)} targets; give one for each")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk {chunk!r} must be at least 1, or None")
        if backend is not None and backend not in PER_EXAMPLE_BACKENDS:
            raise ValueError(
                f"backend {backend!r} is not known; use one of "
                f"{', '.join(PER_EXAMPLE_BACKENDS)}, or None"
            )
        self._device = usable_device(device)
        self._module = check_module(module)
        self._loss, self._x, self._y = loss, x, y
        self._given_chunk = chunk
        self._given_backend: PerExampleBackend | None = backend
        self._own = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._size = sum(p.numel() for p in self._own.values())
        self._found: Chosen | None = None
        self._single: SingleLosses | None = None

    @property
    def backend(self) -> PerExampleBackend:
        """Name of the backend of per-example gradients; chosen at the present params if not yet."""
        return self._chosen().backend

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
            backend=self._given_backend,
        )
        error = found._try()
        if error is not None and self._try() is None:
            raise ValueError(
                f"device {device!r}: the module or its loss raises {type(error).__name__} there: "
                f"{error}; make new tensors on the device of what forward() and the loss are given"
            ) from error
        return found

    def on_synthetic(self, number: int) -> ModuleGradients:
        """Return the same module on synthetic examples in the form of these; no value is read."""
        x, y, _ = synthetic_inputs(self._module, *self._none(), number, torch.float32)
        return ModuleGradients(self._module, self._loss, x.cpu().numpy(), y.cpu().numpy())

    def bounded_sum(
        self, params: Params, index: Examples, bound: Bound, key: Key | None = None
    ) -> dict[str, np.ndarray]:
        """Return the bounded sum over examples or groups, float64 dense arrays.

        See `ExampleGradients`.

        Args:
            params: float32 by name, all trained parameters; not changed.
            index: Distinct positions in the training set, or groups of them; may be empty.
            bound: Includes what comes before it: mixture and multiplier. On no grid.
            key: Needed if the module draws at random, as dropout does; examples fold their own.

        Raises:
            ValueError: If the bound rounds to a grid, if a key is needed and missing, if params
                are not the module's, or if a group is empty.
        """
        one_by_one = isinstance(index, np.ndarray)
        if not one_by_one and any(len(group) == 0 for group in index):
            raise ValueError("a group is empty; leave it out, it has no mean")
        chosen = self._ready(params, bound, key)
        step = self._given_chunk or chosen.chunk
        if one_by_one:
            parts = (self._sound_factors(part, key) for part in _parts(index, step))
            return self._sum(bound, filter(None, parts))
        return self._sum(bound, self._means(index, step, key))

    def gradient(
        self, params: Params, index: np.ndarray, key: Key | None = None
    ) -> dict[str, np.ndarray]:
        """Return the mean gradient over examples, float32: for public data, nothing bounded.

        Args:
            params: As for `bounded_sum`.
            index: int64 `(b,)`, at least one.
            key: What the module draws from; None for a forward pass without dropout.

        Raises:
            ValueError: If there is no example.
        """
        if len(index) == 0:
            raise ValueError("no examples: their mean gradient is not defined")
        self._load(params)
        chosen = self._chosen()
        masks = ExampleMasks(self._module)
        totals = {name: torch.zeros_like(p) for name, p in self._own.items()}
        step = self._given_chunk or chosen.chunk
        for part in _parts(index, step):
            x, y = self._batch(part)
            keys = self._keys(part, key)
            stream = None if key is None else key.fold("gradient").fold(int(part[0]))
            self._module.train(key is not None)
            with (
                own_stream(stream, self._device),
                unchanged_buffers(self._module),
                torch.enable_grad(),
                masks.drawn(keys),
            ):
                loss = self._loss(self._module(x), y) * (len(part) / len(index))
            found = torch.autograd.grad(loss, list(self._own.values()), allow_unused=True)
            for name, gradient in zip(self._own, found, strict=True):
                if gradient is not None:
                    totals[name] += gradient
        return {name: total.cpu().numpy() for name, total in totals.items()}

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], index: np.ndarray
    ) -> np.ndarray:
        """Return losses, float64 (examples, sizes); see `fedpriv.training.dp_agd.ExampleLosses`.

        Raises:
            ValueError: As `check_losses`, or if params are not the module's.
        """
        self._load(params)
        single = self.check_losses()
        chunk = self._given_chunk or self._chosen().chunk
        batch = self._batch(index)
        return example_losses(
            self._module, lambda: single.of(*batch, chunk), params, direction, sizes, len(index)
        )

    def check_losses(self) -> SingleLosses:
        """Return what evaluates single examples, tried on synthetic ones at the first call.

        Raises:
            ValueError: If an example finds what another has left in the module or the loss.
        """
        self._move()
        if self._single is None:
            like = (_like(array, 1) for array in self._none())
            self._single = SingleLosses(self._module, self._loss, *like)
        return self._single

    def _ready(self, params: Params, bound: Bound, key: Key | None) -> Chosen:
        if bound.granularity is not None:
            raise ValueError("single examples are summed as floats; give a bound without a grid")
        self._load(params)
        chosen = self._chosen()
        if chosen.is_random and key is None:
            raise ValueError("the module draws at random while it trains: give this round's key")
        self._module.train()
        return chosen

    def _load(self, params: Params) -> None:
        if params.keys() != self._own.keys():
            odd = sorted(params.keys() ^ self._own.keys())
            raise ValueError(f"params and the module's trained parameters differ in {odd}")
        self._move()
        load_params(self._module, params)

    def _move(self) -> None:
        """Have the module, and a loss that is one, on the device; parameters stay the same objects.

        A loss may hold them, so that a copy of the module would be another model.
        """
        if next(self._module.parameters()).device != self._device:
            for root in (self._module, self._loss):
                if isinstance(root, nn.Module):
                    root.to(self._device)

    def _try(self) -> Exception | None:
        """Return what the module and its loss raise at synthetic examples; None for nothing."""
        self._move()
        x, y, keys = synthetic_inputs(self._module, *self._none(), _TRIED, torch.float32)
        run = LoopPass(self._module, self._loss, ExampleMasks(self._module))
        with moved(self._module, torch.float32):
            try:
                run.gradients(x, y, keys)
            except Exception as error:
                end_if_interrupted(error)
                return error
        return None

    def _chosen(self) -> Chosen:
        if self._found is None:
            self._move()
            x, y = self._none()
            made = synthetic_inputs(self._module, x, y, 2, torch.float32)
            few = (tensor.cpu().numpy() for tensor in made[:2])
            with moved(self._module, torch.float32):
                check_loss(self._module, self._loss, *few, finite=False)
            self._found = choose(
                self._module,
                self._loss,
                _like(x, len(self._x)),
                _like(y, len(self._y)),
                self._given_backend,
                self._given_chunk,
            )
        return self._found

    def _none(self) -> tuple[np.ndarray, np.ndarray]:
        """Return no inputs and no targets, in the form of the training set's."""
        return model_inputs(self._x[:0]), model_targets(self._y[:0])

    def _batch(self, part: np.ndarray) -> tuple[Tensor, Tensor]:
        found = model_inputs(self._x[part]), model_targets(self._y[part])
        x, y = (torch.from_numpy(array).to(self._device) for array in found)
        return x, y

    def _keys(self, part: np.ndarray, key: Key | None) -> list[Key] | None:
        if key is None or not self._chosen().is_random:
            return None
        return [key.fold(int(position)) for position in part]

    def _factors(self, part: np.ndarray, key: Key | None) -> Mapping[str, Factor]:
        x, y = self._batch(part)
        return self._chosen().run.gradients(x, y, self._keys(part, key))

    def _sound_factors(self, part: np.ndarray, key: Key | None) -> Mapping[str, Factor]:
        """Return the gradients of a chunk without the examples that raise alone; empty of none.

        Raises:
            KeepsStateError: If examples leave different attributes behind.
            Exception: What the chunk raises though none of its examples does.
        """
        try:
            return self._factors(part, key)
        except KeepsStateError:
            raise
        except Exception as error:  # whatever an example of a class that is none raises, say
            end_if_interrupted(error)
            whole = error
        sound = []
        for position in part.tolist():
            try:
                self._factors(np.array([position]), key)
                sound.append(position)
            except Exception as error:
                contributes_zero(error)
        if len(sound) == len(part):
            raise whole
        return self._factors(np.array(sound), key) if sound else {}

    def _means(
        self, groups: Sequence[np.ndarray], step: int, key: Key | None
    ) -> Iterator[Mapping[str, Factor]]:
        """Yield the mean gradients of as many whole groups as fit into a chunk."""
        waiting: list[np.ndarray] = []
        for group in groups:
            if waiting and sum(map(len, waiting)) + len(group) > step:
                yield self._grouped(waiting, key)
                waiting = []
            if len(group) > step:
                yield self._large_group(group, step, key)
            else:
                waiting.append(group)
        if waiting:
            yield self._grouped(waiting, key)

    def _grouped(self, groups: list[np.ndarray], key: Key | None) -> dict[str, Factor]:
        layout = Groups.of_sizes([len(group) for group in groups], self._device)
        factors = self._factors(np.concatenate(groups), key)
        return {name: factor.grouped(layout) for name, factor in factors.items()}

    def _large_group(self, group: np.ndarray, step: int, key: Key | None) -> dict[str, Factor]:
        means = {n: torch.zeros((1, *p.shape), device=self._device) for n, p in self._own.items()}
        for part in _parts(group, step):
            weights = torch.full((len(part),), 1.0 / len(group), dtype=torch.float64)
            for name, factor in self._factors(part, key).items():
                _, summands = factor.measured(_NOTHING)
                means[name][0] += summands.weighted_sum(weights.to(self._device))
        return {name: Dense(mean) for name, mean in means.items()}

    def _sum(self, bound: Bound, chunks: Iterator[Mapping[str, Factor]]) -> dict[str, np.ndarray]:
        """Bound every example's update of every chunk and add them up."""
        before = {name: self._before(bound, name, p) for name, p in self._own.items()}
        # What cancels between update and offset leaves the rounding of both behind.
        safety = _SAFETY * sum(b.constant for b in before.values())
        own = 1.0 if bound.mixture is None else bound.mixture.own
        totals: dict[str, Tensor] = {}
        weight = 0.0
        with torch.no_grad():
            for gradients in chunks:
                measured = {n: f.measured(before[n]) for n, f in gradients.items()}
                squares = torch.stack([found for found, _ in measured.values()]).sum(0)
                norms = torch.sqrt(squares + safety).cpu().numpy()
                factors = factors_of(bound, norms, self._size, _SMALLEST)
                weights = torch.from_numpy(factors).to(self._device)
                weight += float(weights.sum())
                good = torch.isfinite(squares)
                all_good = bool(good.all())
                for name, (_, summands) in measured.items():
                    summands = summands if all_good else summands.kept(good)
                    part = summands.weighted_sum(-own * weights)
                    if name in totals:
                        totals[name] += part
                    else:
                        totals[name] = part.double()
                del gradients, measured, summands, part  # before the next chunk is made
            return {n: self._after(totals.get(n), before[n], weight, n) for n in self._own}

    def _before(self, bound: Bound, name: str, parameter: nn.Parameter) -> Before:
        shape = tuple(parameter.shape)

        def full(array: np.ndarray) -> Tensor:
            spread = np.broadcast_to(np.asarray(array, np.float32), shape)
            return torch.from_numpy(np.array(spread)).to(self._device)

        multiplier = bound.multiplier.get(name)
        if multiplier is not None and np.all(np.asarray(multiplier) == 1):
            multiplier = None
        return Before(
            own=1.0 if bound.mixture is None else bound.mixture.own,
            offset=None if bound.mixture is None else full(bound.mixture.offset[name]),
            multiplier=None if multiplier is None else full(multiplier),
        )

    def _after(self, total: Tensor | None, before: Before, weight: float, name: str) -> np.ndarray:
        """Return the sum of bounded updates from that of weighted gradients."""
        if total is None:
            return np.zeros(tuple(self._own[name].shape))
        if before.offset is not None and weight:
            total.add_(before.offset, alpha=weight)
        if before.multiplier is not None:
            total *= before.multiplier
        return total.cpu().numpy()


def _like(none: np.ndarray, number: int) -> np.ndarray:
    """Return so many examples of a shape and dtype; they have no values and take no memory."""
    return np.broadcast_to(np.zeros((), none.dtype), (number, *none.shape[1:]))


def _parts(index: np.ndarray, step: int) -> Iterator[np.ndarray]:
    """Yield parts of nearly equal length, none longer than a step."""
    if len(index):
        yield from np.array_split(index, -(-len(index) // step))
