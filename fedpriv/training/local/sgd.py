"""The loop of local training on torch tensors, and the client optimisers that take its steps.

`train_locally` is the one loop: `ModuleTrainer` and `WordTrainer` give it gradients. Two fast paths
take the steps of `SGD` without it: `VectorisedTrainer` those of many users at once (`SGD.move`),
and `CompiledSoftmaxTrainer` is compiled (`fedpriv.kernels.sparse_softmax`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
import torch


def train_locally(
    params: Mapping[str, torch.Tensor],
    gradients: Callable[[np.ndarray], Iterable[tuple[str, Gradient]]],
    *,
    start: Mapping[str, torch.Tensor],
    batches: Iterable[np.ndarray],
    pull: float,
    optimizer: ClientOptimizer,
) -> None:
    """Train a user's params in place: one step of the optimiser for every batch.

    Args:
        params: Trained tensors by name.
        gradients: Of the positions of a batch. Yields (parameter name, mean gradient, or a part of
            it); all gradients are computed before the first step. With a proximal term each name
            comes once.
        start: The round's params, which a proximal term pulls towards; tensors that are not among
            them are not pulled.
        batches: Positions of each step's examples.
        pull: μ of the proximal term; 0 for none.
        optimizer: Takes the steps.

    Raises:
        ValueError: If a step puts another tensor in the place of one.
    """
    state, own = optimizer.init(params), dict(params)
    for batch in batches:
        parts = gradients(batch)
        with torch.no_grad():
            if pull != 0.0:
                parts = [
                    (n, as_dense(g, own[n]) + pull * (own[n] - start[n]) if n in start else g)
                    for n, g in parts
                ]
            optimizer.step(params, parts, state)
        for name, tensor in own.items():
            if params[name] is not tensor:
                raise ValueError(
                    f"a step of {optimizer_name(optimizer)} put another tensor in the place of "
                    f"{name!r}; change params in place, as by params[name].sub_(...)"
                )


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

    def step(
        self,
        params: Mapping[str, torch.Tensor],
        gradients: Iterable[tuple[str, Gradient]],
        state: Any,
    ) -> None:
        """Change the params, and the state, in place: one step.

        Args:
            params: Trained tensors by name.
            gradients: Pairs of a name and its gradient. A tensor that the loss does not use has
                none. Parts of one gradient, which add up, are given to `SGD` alone.
            state: As `init` returned it.
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

    def step(
        self,
        params: Mapping[str, torch.Tensor],
        gradients: Iterable[tuple[str, Gradient]],
        state: Any,
    ) -> None:
        """Take one step."""
        for name, given in gradients:
            gradient = precondition(self.multiplier, name, params[name], given)
            if isinstance(gradient, torch.Tensor):
                params[name].sub_(gradient, alpha=self.learning_rate)
            else:
                gradient.step(params[name], self.learning_rate)

    def move(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return what a step subtracts from a parameter, or from one of each of many users.

        Multiplied first and then subtracted: fused, the remainder of a loop over users would be
        rounded otherwise.
        """
        if name in self.multiplier:
            gradient = gradient * self.multiplier[name]
        return gradient * self.learning_rate


#: Optimisers that users had, as long as they exist.
_USED: WeakSet[torch.optim.Optimizer] = WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptimizer:
    """Steps of any optimiser of PyTorch, on preconditioned gradients, and of a scheduler of it.

    Optimiser and scheduler are made again for every user in every round, so that no state of a user
    is kept. Weight decay and the like are part of the user's update and are bounded with it.

    Attributes:
        learning_rate: The optimiser's `lr`: that of the schedule.
        multiplier: 1/A by parameter name, as of `SGD`.
        optimizer: From an iterable of tensors and `lr=` to the optimiser, such as
            `partial(torch.optim.AdamW, weight_decay=0.01)`.
        scheduler: From the optimiser to a scheduler, which takes a step after each of the
            optimiser's, such as `partial(torch.optim.lr_scheduler.StepLR, step_size=10)`; None for
            one rate.
    """

    learning_rate: float
    multiplier: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)
    optimizer: Callable[..., torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None

    def init(self, params: Mapping[str, torch.Tensor]) -> Any:
        """Return the optimiser and its scheduler.

        Raises:
            ValueError: If a step of either takes more than the gradients, or the optimiser is
                another user's.
        """
        optimizer = self.optimizer(params.values(), lr=self.learning_rate)
        if optimizer in _USED:
            raise ValueError(
                "client_optimizer gives the same optimiser twice, and with it one user's state to "
                "the next; let it make a new one whenever it is called"
            )
        _USED.add(optimizer)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS computes the loss several times a step, and local training once; take an "
                "optimiser whose step() takes no closure"
            )
        scheduler = None if self.scheduler is None else self.scheduler(optimizer)
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau's step takes a measured value, and a user's steps have none; "
                "take a scheduler whose step() takes nothing"
            )
        return optimizer, scheduler

    def step(
        self,
        params: Mapping[str, torch.Tensor],
        gradients: Iterable[tuple[str, Gradient]],
        state: Any,
    ) -> None:
        """Take one step."""
        optimizer, scheduler = state
        try:
            for name, given in gradients:
                own = params[name]
                own.grad = as_dense(precondition(self.multiplier, name, own, given), own)
            optimizer.step()
        finally:  # a step that raises leaves nothing of its user's at the module either
            for own in params.values():
                own.grad = None
        if scheduler is not None:
            scheduler.step()


def as_client_optimizer(given: Any) -> Callable[..., ClientOptimizer]:
    """Return what makes a client optimiser from `learning_rate=` and `multiplier=`.

    Args:
        given: That already, such as `SGD`, or a class of PyTorch's optimisers, or a `partial` of
            one, which `TorchOptimizer` then takes the steps of.

    Raises:
        ValueError: If it is an optimiser that was made already, or has a rate of its own.
    """
    made, own = (given.func, given.keywords) if isinstance(given, partial) else (given, {})
    if not callable(given) or isinstance(given, torch.optim.Optimizer):
        raise ValueError(
            f"client_optimizer is a {type(given).__name__} made already, and each user starts "
            "again; give the class, or a partial of it with its settings, such as "
            "partial(torch.optim.AdamW, weight_decay=0.01)"
        )
    for name in own.keys() & {"lr", "learning_rate"}:
        raise ValueError(
            f"client_optimizer has {name}={own[name]!r}, and the rate is the experiment's "
            "local_learning_rate; leave it out"
        )
    maker: Callable[..., Any] = given
    if isinstance(made, type) and issubclass(made, torch.optim.Optimizer):
        return partial(TorchOptimizer, optimizer=maker)
    return maker


def optimizer_name(given: Any) -> str:
    """Return what a client optimiser, or what makes one, is called."""
    if isinstance(given, partial):
        return optimizer_name(given.keywords.get("optimizer", given.func))
    if isinstance(given, TorchOptimizer):
        return optimizer_name(given.optimizer)
    return getattr(given, "__name__", type(given).__name__)


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
