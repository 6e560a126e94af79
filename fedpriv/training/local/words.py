"""Local SGD of a next-word LSTM (`WordLSTM`), with gradients kept as products.

PyTorch's own backward pass makes a matrix of a gradient for the scores, which local SGD then reads
once more. Here scores are computed for words that count only, their gradient is written down by
hand, and a step adds the product of its two factors to the weights in place. The recurrent part is
left to PyTorch, whose fused LSTM (oneDNN's) is faster than any loop. This is the way on the CPU; on
a device `VectorisedTrainer` trains many users at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from fedpriv.libraries import one_thread
from fedpriv.models.text import IGNORED, lstm_states
from fedpriv.rng import Key
from fedpriv.training.algorithm import Context
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.local.sgd import (
    SGD,
    Gradient,
    as_tensor,
    multiplier_tensor,
    train_locally,
)
from fedpriv.training.work import Select, UserTrainer
from fedpriv.tree import Params, Tree

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A gradient `left.T @ right`.

    Attributes:
        left: `(tokens, rows)`.
        right: `(tokens, columns)`.
    """

    left: torch.Tensor = field(repr=False)
    right: torch.Tensor = field(repr=False)

    def dense(self, like: torch.Tensor) -> torch.Tensor:
        """Return the gradient as a matrix."""
        return self.left.t() @ self.right

    def step(self, parameter: torch.Tensor, rate: float) -> None:
        """Take a step of SGD."""
        parameter.addmm_(self.left.t(), self.right, alpha=-rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A gradient of some rows of a matrix; a row may be named more than once.

    Attributes:
        index: int64 `(n,)`.
        values: `(n, columns)`.
    """

    index: torch.Tensor = field(repr=False)
    values: torch.Tensor = field(repr=False)

    def dense(self, like: torch.Tensor) -> torch.Tensor:
        """Return the gradient as a matrix."""
        return torch.zeros_like(like).index_add_(0, self.index, self.values)

    def step(self, parameter: torch.Tensor, rate: float) -> None:
        """Take a step of SGD."""
        parameter.index_add_(0, self.index, self.values, alpha=-rate)


def gradients(params: Tensors, x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[str, Gradient]]:
    """Yield the parts of the gradient of `next_word_loss`; a name may come twice.

    All are computed before the first is yielded, so parameters may be changed in between.

    Args:
        params: Of a `WordLSTM`, by name; tied where there is no "output".
        x: int64 tokens `(n, time)`.
        y: int64 targets `(n, time)`; what is ignored is at the end.
    """
    # What is behind the longest sentence of a batch moves nothing.
    longest = int((y != IGNORED).sum(dim=1).max()) if len(y) else 0
    if longest == 0:
        return
    tokens, counted = x[:, :longest].t(), (y[:, :longest] != IGNORED).t()
    targets = y[:, :longest].t()[counted]
    with torch.enable_grad():
        recurrent = [params[name].detach().requires_grad_() for name in _RECURRENT]
        embedded = params["embedding.weight"].detach()[tokens].requires_grad_()
        states = lstm_states(embedded, *recurrent)
    with torch.no_grad():
        scores, project = params.get("output"), params["project.weight"]
        if scores is None:
            scores = params["embedding.weight"]
        seen = states.detach()[counted]
        projected = torch.addmm(params["project.bias"], seen, project.t())
        errors = torch.addmm(params["output_bias"], projected, scores.t()).softmax(dim=1)
        errors[torch.arange(len(targets), device=errors.device), targets] -= 1.0
        errors.mul_(1.0 / y.numel())
        back = errors @ scores
        of_states = torch.zeros_like(states)
        of_states[counted] = back @ project
        found: list[tuple[str, Gradient]] = [
            (_scores_name(params), Outer(left=errors, right=projected)),
            ("output_bias", errors.sum(dim=0)),
            ("project.weight", Outer(left=back, right=seen)),
            ("project.bias", back.sum(dim=0)),
        ]
    of_embedded, *of_recurrent = torch.autograd.grad(states, [embedded, *recurrent], of_states)
    found += [(n, g) for n, g in zip(_RECURRENT, of_recurrent, strict=True)]
    rows = Rows(index=tokens.reshape(-1), values=of_embedded.flatten(0, 1))
    yield from (*found, ("embedding.weight", rows))


def dense_gradients(params: Tensors, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradient of `next_word_loss` by name, of the params' shapes."""
    summed = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    for name, part in gradients(params, x, y):
        summed[name] += part if isinstance(part, torch.Tensor) else part.dense(params[name])
    return summed


_RECURRENT = ("from_input", "from_state", "gate_bias")


def _scores_name(params: Tensors) -> str:
    return "output" if "output" in params else "embedding.weight"


def token_scores(
    params: Tensors, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores `(counted, tokens)` at targets that are not ignored, and those targets."""
    places = (y != IGNORED).t()
    embedded = params["embedding.weight"][x.t()]
    states = lstm_states(embedded, *(params[name] for name in _RECURRENT))[places]
    projected = torch.addmm(params["project.bias"], states, params["project.weight"].t())
    scores = params[_scores_name(params)]
    return torch.addmm(params["output_bias"], projected, scores.t()), y.t()[places]


#: From a user's sentences to inputs and targets, int64 `(n, time)` each.
Encode = Callable[[Any], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTrainer(UserTrainer):
    """Local SGD on a user's sentences, by gradients that are kept as products.

    It is `ModuleTrainer` on a `WordLSTM` with `next_word_loss`, to a relative 1e-4 of the update
    (float32 in another order), and keeps no model of its own, so that threads may share it. Several
    users side by side were measured on a processor and are slower: every user has weights of its
    own, and a product of stacked matrices reads them just as often.

    Guarantees:
        * A user's update depends on the params, its examples and its key, and on no other user.
        * On one thread of one machine the same arguments give the same bits.

    Attributes:
        schedule: How much work.
        encode: From chosen sentences to tokens.
        multiplier: 1/A by parameter name, applied to every gradient before the step.
        select: As of `fedpriv.training.work.Trainer`.
    """

    #: Nothing of it ever changes, so threads may share it.
    thread_safe: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = ("proximal", "optimizer", "rate")

    schedule: LocalSgd
    encode: Encode
    multiplier: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    select: Select | None = None

    def train(self, params: Params, context: Context, examples: Any, key: Key) -> Tree:
        """Return `local - global` params, float32; zeros of a user without sentences."""
        rng = key.generator()
        chosen = examples.take(self.schedule.choose(len(examples), rng))
        x, y = (torch.from_numpy(array) for array in self.encode(chosen))
        start = {n: as_tensor(np.ascontiguousarray(a)) for n, a in params.items()}
        local = {name: tensor.clone() for name, tensor in start.items()}
        factors = {
            name: multiplier_tensor(name, np.asarray(m, np.float32), local[name].ndim, "cpu")
            for name, m in self.multiplier.items()
        }

        make = self.schedule.optimizer or SGD
        # An optimiser with a memory, or a pull, takes each name once.
        in_parts = self.schedule.optimizer is None and self.schedule.proximal_mu == 0.0

        def parts(batch: np.ndarray) -> Iterable[tuple[str, Gradient]]:
            index = torch.from_numpy(batch)
            if in_parts:
                return gradients(local, x[index], y[index])
            return dense_gradients(local, x[index], y[index]).items()

        with one_thread():
            train_locally(
                local,
                parts,
                start=start,
                batches=self.schedule.batches(len(chosen), rng),
                pull=self.schedule.proximal_mu,
                optimizer=make(
                    learning_rate=self.schedule.learning_rate * context.rate, multiplier=factors
                ),
            )
            # Subtracted in place: a copy of the whole model less.
            return {name: local[name].sub_(start[name]).numpy() for name in local}
