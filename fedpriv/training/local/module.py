"""Local SGD of any `nn.Module` with a user-defined loss, one user after another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from fedpriv.libraries import one_thread
from fedpriv.models.lora import check_adapters
from fedpriv.rng import Key
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.failures import failures_are_raised
from fedpriv.training.local.module_state import (
    Kept,
    Loss,
    copied_apart,
    kept_parameters,
    persistent_buffers,
    put_back,
    refuse_changed_buffers,
)
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.sgd import (
    SGD,
    ClientOptimizer,
    Gradient,
    as_tensor,
    multiplier_tensor,
    train_locally,
)
from fedpriv.training.streams import own_stream
from fedpriv.training.work import UserTrainer
from fedpriv.tree import Params, Tree


def model_inputs(array: Any) -> np.ndarray:
    """Return inputs as float32 where they are floats, and as int64 where they are integers.

    int32 and truth values stay what they are: layers take both.
    """
    return _converted(np.asarray(array), integers="bhBHIlLqQ")


def model_targets(array: Any) -> np.ndarray:
    """Return targets as float32 where they are floats, and as int64 where they are classes.

    Truth values are the classes 0 and 1.
    """
    return _converted(np.asarray(array), integers="?bhiBHIlLqQ")


def _converted(array: np.ndarray, integers: str) -> np.ndarray:
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    return array.astype(np.int64, copy=False) if array.dtype.char in integers else array


_BATCH_NORM = (nn.modules.batchnorm._BatchNorm,)


def check_module(module: nn.Module) -> nn.Module:
    """Return the module if every tensor that learns is a floating parameter of its own.

    Raises:
        ValueError: For batch normalisation and for buffers that training would change: their
            statistics mix the examples of a user outside the bounded update. Or if it has
            adapters and trains none.
    """
    for name, child in module.named_modules():
        if isinstance(child, _BATCH_NORM):
            raise ValueError(
                f"layer {name or 'itself'!r} is {type(child).__name__}: its running statistics "
                "leave the bounded update and average over a user's examples; use nn.GroupNorm "
                "or nn.LayerNorm instead"
            )
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise ValueError(
                f"parameter {name!r} is on the device 'meta' and has no values; load its values "
                "before the module is returned"
            )
        if parameter.dtype != torch.float32:
            raise ValueError(f"parameter {name!r} is {parameter.dtype}; call module.float()")
        if parameter.ndim == 0:
            raise ValueError(f"parameter {name!r} has no axis; give it the shape (1,)")
    for name, buffer in persistent_buffers(module).items():
        if not buffer.dtype.is_floating_point:
            raise ValueError(
                f"buffer {name!r} is {buffer.dtype}: an integer cannot be clipped or noised; "
                "make a constant in forward(), on the inputs' device, instead, or register it with "
                "persistent=False"
            )
    check_adapters(module)
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("the module has no parameter to train; set requires_grad on some")
    return module


def module_params(module: nn.Module) -> Params:
    """Return copies of the module's trainable parameters as float32 arrays."""
    return {
        name: p.detach().cpu().numpy().copy()
        for name, p in module.named_parameters()
        if p.requires_grad
    }


def load_params(module: nn.Module, params: Mapping[str, np.ndarray]) -> nn.Module:
    """Write params, and buffers among them, into the module's own tensors; return the module.

    Raises:
        TypeError: If it is no module, but a function that makes one, say.
        ValueError: If a tensor has another shape.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{type(module).__name__} is no torch module; if it makes one, call it first"
        )
    with torch.no_grad():
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, array in params.items():
            if own[name].shape != array.shape:  # copy_ would broadcast
                raise ValueError(
                    f"tensor {name!r} has shape {list(array.shape)}, and the module's has "
                    f"{list(own[name].shape)}"
                )
            own[name].copy_(as_tensor(np.ascontiguousarray(array)))
    return module


@dataclass(frozen=True, slots=True)
class ArrayExamples:
    """One user's examples as two arrays.

    Attributes:
        x: Inputs `(n, ...)`.
        y: Targets `(n, ...)`.
    """

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} inputs but {len(self.y)} targets; give one for each")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: np.ndarray) -> ArrayExamples:
        """Return the examples at these positions."""
        return ArrayExamples(self.x[index], self.y[index])


def as_arrays(examples: Any) -> tuple[Any, Any]:
    """Return the inputs and targets of `ArrayExamples`."""
    return examples.x, examples.y


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTrainer(UserTrainer):
    """Local training of one resident module, one user after another.

    On one CPU core the step is as bare as PyTorch lets it be: gradients come from
    `torch.autograd.grad` and not through `.grad` and an optimiser, which makes a whole user of a
    small model 1.05 to 1.1 times faster than a loop with `optim.SGD`. A CNN spends two thirds of a
    step in convolutions at the core's peak; there only keeping freed memory paid (1.05 to 1.1,
    `fedpriv.training.devices`). The channels-last layout, `torch._foreach_add_`, updates fused
    into the backward pass and oneDNN's absence were measured: 1.00 to 1.03 for the first three, 0.8
    for the last. `benchmarks/dense_training.py` prints the ratios.

    Guarantees:
        * A user's update depends on the params, its examples and its key, and on no other user, as
          far as module and loss keep things in themselves: each user has copies of them. Values of
          frozen parameters are shared, so that no forward pass may write to them.
        * Batches are fresh, aligned tensors wherever the examples lie, so on one thread of one
          machine the same arguments give the same bits.

    Attributes:
        module: A checked module; moved to the device, and overwritten by every user.
        loss: From (outputs, targets) to the mean loss of a batch.
        schedule: How much work.
        multiplier: 1/A by parameter name, applied to every gradient before the step.
        device: Where the module lives, such as "cpu" or "cuda:0".
        encode: From some examples to inputs and targets.
        make_optimizer: From `learning_rate=` and `multiplier=` to the client optimiser, where the
            schedule names none.
        personal: Parameters that each user trains from these values and keeps to itself: they
            are not in the params that it is given, nor in what it returns.

    Raises:
        ValueError: For a module that `check_module` refuses, or what the optimiser's `init` does.
    """

    #: Of what a schedule may ask besides plain steps.
    takes: ClassVar[tuple[str, ...]] = ("proximal", "optimizer", "rate")

    module: nn.Module
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    schedule: LocalSgd
    multiplier: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    device: str | torch.device = "cpu"
    encode: Callable[[Any], tuple[Any, Any]] = as_arrays
    make_optimizer: Callable[..., ClientOptimizer] = SGD
    personal: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    _own: Mapping[str, nn.Parameter] = field(init=False, repr=False)
    _factors: Mapping[str, torch.Tensor] = field(init=False, repr=False)
    _kept: Kept = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_module(self.module).to(self.device)
        if isinstance(self.loss, nn.Module):
            self.loss.to(self.device)  # weights of classes, say
        own = dict(self.module.named_parameters())
        factors = {
            n: multiplier_tensor(n, m, own[n].ndim, self.device) for n, m in self.multiplier.items()
        }
        object.__setattr__(self, "_factors", factors)
        # What cannot take a user's steps refuses here, and not when rounds are charged.
        self.optimizer_of(NO_CONTEXT).init({n: p for n, p in own.items() if p.requires_grad})
        object.__setattr__(self, "_own", own)
        object.__setattr__(self, "_kept", kept_parameters(self.module))

    def optimizer_of(self, context: Context) -> ClientOptimizer:
        """Return what takes the steps of a round, at the schedule's rate times the round's."""
        make = self.schedule.optimizer or self.make_optimizer
        rate = self.schedule.learning_rate * context.rate
        return make(learning_rate=rate, multiplier=self._factors)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleTrainer:
        """Return a trainer with a module and a loss of its own, as these are now."""
        put_back(self._kept)
        module, loss = copy.deepcopy((self.module, self.loss), memo)
        return replace(self, module=module, loss=loss)

    def copied(self) -> tuple[nn.Module, Loss]:
        """Return module and loss for one user, in training mode: what it keeps goes with them."""
        put_back(self._kept)
        module, loss = copied_apart(self.module, self.loss)
        return module.train(), loss

    def on_device(self, array: np.ndarray) -> torch.Tensor:
        """Return an array as a tensor on the device; on the CPU over the same memory."""
        return as_tensor(np.asarray(array)).to(self.device)

    def encoded(self, chosen: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of chosen examples, one of each at least.

        A module that pads texts has `without_padding(x, y)`, which cuts what all of them are padded
        by: else the longest text of another user, to which all were padded, would move this one's
        last bits.

        Raises:
            ValueError: If there are fewer: with longer users, what is missing would be read as
                zeros, and alone it would raise.
        """
        x, y = map(np.asarray, self.encode(chosen))
        if (cut := getattr(self.module, "without_padding", None)) is not None:
            x, y = cut(x, y)
        if min(len(x), len(y)) < len(chosen):
            raise ValueError(
                f"{len(chosen)} examples are encoded as {len(x)} inputs and {len(y)} targets; "
                "have encode return one of each for every example, and leave out of the data what "
                "is not to be trained on"
            )
        return model_inputs(x), model_targets(y)

    def start(self, params: Params) -> dict[str, torch.Tensor]:
        """Return the global params on the device: copied once for as many users as there are."""
        return {name: self.on_device(np.ascontiguousarray(a)) for name, a in params.items()}

    def train(self, params: Params, context: Context, examples: Any, key: Key) -> Tree:
        """Return `local - global` params, float32, for `ArrayExamples`."""
        update = self.train_from(self.start(params), context, examples, key)
        return {name: tensor.cpu().numpy() for name, tensor in update.items()}

    def train_from(
        self, start: Mapping[str, torch.Tensor], context: Context, examples: Any, key: Key
    ) -> dict[str, torch.Tensor]:
        """Return `local - global` params, float32, on the device.

        Args:
            start: The global params, as `start` returned them. Not changed.
            context: Public facts of the round.
            examples: One user's `ArrayExamples`.
            key: The user's key of this round and attempt.
        """
        trained = self._train(start, (*start, *self.personal), context, examples, key)
        return {name: trained[name] - start[name] for name in start}

    def personalise(self, params: Params, examples: Any, key: Key) -> Params:
        """Return a user's personal parameters, trained at params that stay as they are.

        They are of the user's examples alone, and no ε covers them.
        """
        trained = self._train(self.start(params), tuple(self.personal), NO_CONTEXT, examples, key)
        return {name: tensor.cpu().numpy().copy() for name, tensor in trained.items()}

    def _train(
        self,
        start: Mapping[str, torch.Tensor],
        names: Sequence[str],
        context: Context,
        examples: Any,
        key: Key,
    ) -> dict[str, torch.Tensor]:
        """Return the parameters of these names as a user has trained them."""
        rng = key.generator()
        chosen = examples.take(self.schedule.choose(len(examples), rng))
        x, y = map(self.on_device, self.encoded(chosen))
        trained = {name: self._own[name] for name in names}
        module, own_loss = self.copied()
        with own_stream(key, self.device), one_thread():
            with torch.no_grad():
                for name, tensor in start.items():
                    self._own[name].copy_(tensor)
                for name, array in self.personal.items():
                    self._own[name].copy_(self.on_device(array))

            def gradients(batch: np.ndarray) -> list[tuple[str, Gradient]]:
                index = torch.from_numpy(batch).to(self.device)
                loss = own_loss(module(x[index]), y[index])
                found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
                # A parameter that the loss does not use stays where it is.
                return [(n, g) for n, g in zip(trained, found, strict=True) if g is not None]

            train_locally(
                trained,
                gradients,
                start=start,
                batches=self.schedule.batches(len(chosen), rng),
                pull=self.schedule.proximal_mu,
                optimizer=self.optimizer_of(context),
            )
            if failures_are_raised():
                refuse_changed_buffers(self.module, module)
            return {name: p.detach() for name, p in trained.items()}
