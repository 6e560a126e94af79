"""The loop of local training on torch tensors, and the client optimisers that take its steps.

`train_locally` is the one loop: `ModuleTrainer` and `WordTrainer` give it gradients. Two fast paths
take the steps of `SGD` without it: `VectorisedTrainer` those of many users at once (`SGD.move`),
and `CompiledSoftmaxTrainer` is compiled (`fedpriv.kernels.sparse_softmax`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from fedpriv.training.local.schedule import Schedule


def train_locally(
    params: Mapping[str, torch.Tensor],
    gradients: Callable[[np.ndarray], Iterable[tuple[str, Gradient]]],
    *,
    schedule: Schedule,
    num_chosen: int,
    rng: np.random.Generator,
    optimizer: ClientOptimizer,
) -> None:
    """Train a user's params in place: one step of the optimiser for every batch of the schedule.

    Args:
        params: Trained tensors by name.
        gradients: Of the positions of a batch. Yields (parameter name, mean gradient, or a part of
            it); all gradients are computed before the first step.
        schedule: Batches and epochs.
        num_chosen: How many examples of the user take part.
        rng: Orders the examples of later epochs.
        optimizer: Takes the steps.
    """
    state = optimizer.init(params)
    for batch in schedule.batches(num_chosen, rng):
        parts = gradients(batch)
        with torch.no_grad():
            for name, part in parts:
                optimizer.step(name, params[name], part, state)


class StructuredGradient(Protocol):
    """A gradient kept in factored form, which a plain SGD step applies without forming it."""

    def dense(self, like: torch.Tensor) -> torch.Tensor:
        """Return the gradient as a dense tensor of the parameter's shape."""
        ...

    def step(self, parameter: torch.Tensor, rate: float) -> None:
        """Subtract `rate` times the gradient from a parameter, in place."""
        ...


Gradient = torch.Tensor | StructuredGradient


class ClientOptimizer(Protocol):
    """Base of client optimisers, whose state starts afresh for every user."""

    def init(self, params: Mapping[str, torch.Tensor]) -> Any:
        """Return its state before a user's first step."""
        ...

    def step(self, name: str, parameter: torch.Tensor, gradient: Gradient, state: Any) -> None:
        """Change a parameter, and the state, in place.

        A name may come twice in a step of `WordTrainer`, which takes its steps by `SGD` alone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD:
    """Gradient steps of one rate, preconditioned where a multiplier is given (AdaDPS Algorithm 3).

    Attributes:
        learning_rate: Of every step.
        multiplier: 1/A by parameter name, of the parameter's number of axes and on its device.
    """

    learning_rate: float
    multiplier: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)

    def init(self, params: Mapping[str, torch.Tensor]) -> Any:
        """Return the empty state."""
        return None

    def step(self, name: str, parameter: torch.Tensor, gradient: Gradient, state: Any) -> None:
        """Take one step."""
        gradient = precondition(self.multiplier, name, parameter, gradient)
        if isinstance(gradient, torch.Tensor):
            parameter.sub_(gradient, alpha=self.learning_rate)
        else:
            gradient.step(parameter, self.learning_rate)

    def move(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return what a step subtracts from a parameter, or from one of each of many users.

        Multiplied first and then subtracted: fused, the remainder of a loop over users would be
        rounded otherwise.
        """
        if name in self.multiplier:
            gradient = gradient * self.multiplier[name]
        return gradient * self.learning_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Momentum:
    """Gradient steps with momentum: v <- decay v + g, w <- w - rate v; g preconditioned.

    Attributes:
        learning_rate: Of every step.
        multiplier: 1/A by parameter name, as of `SGD`.
        decay: Of the velocity.
    """

    learning_rate: float
    multiplier: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)
    decay: float = 0.9

    def init(self, params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return velocities of zero."""
        return {name: torch.zeros_like(tensor) for name, tensor in params.items()}

    def step(self, name: str, parameter: torch.Tensor, gradient: Gradient, state: Any) -> None:
        """Take one step."""
        gradient = as_dense(precondition(self.multiplier, name, parameter, gradient), parameter)
        parameter.sub_(state[name].mul_(self.decay).add_(gradient), alpha=self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1) on preconditioned gradients.

    Attributes:
        learning_rate: Of every step.
        multiplier: 1/A by parameter name, as of `SGD`.
        beta1: β₁, of the first moment.
        beta2: β₂, of the second moment.
        adaptivity: Added to the root of the second moment.
    """

    learning_rate: float
    multiplier: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)
    beta1: float = 0.9
    beta2: float = 0.999
    adaptivity: float = 1e-8

    def init(self, params: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
        """Return moments of zero, and how many steps there were."""
        return {n: [torch.zeros_like(t), torch.zeros_like(t), 0] for n, t in params.items()}

    def step(self, name: str, parameter: torch.Tensor, gradient: Gradient, state: Any) -> None:
        """Take one step."""
        gradient = as_dense(precondition(self.multiplier, name, parameter, gradient), parameter)
        (first, second, _), one, two = state[name], self.beta1, self.beta2
        state[name][2] = count = state[name][2] + 1
        first.mul_(one).add_(gradient, alpha=1.0 - one)
        second.mul_(two).addcmul_(gradient, gradient, value=1.0 - two)
        root = (second / (1.0 - two**count)).sqrt_().add_(self.adaptivity)
        parameter.addcdiv_(first, root, value=-self.learning_rate / (1.0 - one**count))


def precondition(
    multiplier: Mapping[str, torch.Tensor], name: str, parameter: torch.Tensor, gradient: Gradient
) -> Gradient:
    """Return a parameter's gradient times 1/A; as it is where there is no multiplier of it."""
    if name not in multiplier:
        return gradient
    return as_dense(gradient, parameter) * multiplier[name]


def as_dense(gradient: Gradient, like: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a tensor of a parameter's shape."""
    return gradient if isinstance(gradient, torch.Tensor) else gradient.dense(like)


def multiplier_tensor(
    name: str, factor: np.ndarray, num_axes: int, device: str | torch.device
) -> torch.Tensor:
    """Return a multiplier on a device, its axes put against a parameter's first ones.

    Raises:
        ValueError: If it has more axes than the parameter.
    """
    array = np.asarray(factor)
    if array.ndim > num_axes:
        raise ValueError(f"multiplier {name!r} has more axes ({array.ndim}) than its parameter")
    return as_tensor(array.reshape(array.shape + (1,) * (num_axes - array.ndim))).to(device)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over the array's memory, or over a copy where it is read-only."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


_LOCK = threading.Lock()
_WITHIN: list[int] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, in each of the threads that are within at the same time.

    How an operation is split among threads shows in its last bits. PyTorch's number of threads is
    partly the process's, so whoever leaves last puts it back.
    """
    with _LOCK:
        _WITHIN.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            before = max(_WITHIN)
            _WITHIN.pop()
            if not _WITHIN:
                torch.set_num_threads(before)
