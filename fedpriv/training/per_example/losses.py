"""Losses of single examples, and checks that a user-defined loss is one of each example.

Outputs `(n, 1)` minus targets `(n,)` are n × n differences in PyTorch, of every prediction with
every target: the mean is a finite number, and not the error. Nothing raises, a batch of one is
right, and training goes towards the mean of all targets. So who is given a loss asks here first.

`evaluation_losses` evaluates each example as if no other were there: `torch.func.vmap` gives the
module a batch of one and takes many of those together, and what has no batching rule goes one
after the other.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedpriv.rng import Key
from fedpriv.training.dp_agd import move_along
from fedpriv.training.local.indices import IndicesWithin
from fedpriv.training.local.module import load_params, model_inputs, model_targets
from fedpriv.training.local.module_state import (
    Loss,
    copied_apart,
    kept_parameters,
    parameters_apart,
)
from fedpriv.training.local.sgd import as_tensor
from fedpriv.training.stopping import end_if_interrupted
from fedpriv.training.streams import own_stream
from fedpriv.tree import Params

_KEY = Key.simulation(0).fold("outputs and targets")
_EXAMPLES = Key.simulation(0).fold("synthetic examples")
# A batch of two meets outputs of two numbers, one of eight makes shares differ.
_BATCHES = (2, 8)
_SAME = 1e-4


def check_loss(
    module: nn.Module,
    loss: Loss,
    x: Any,
    y: Any,
    *,
    finite: bool = True,
    drawn: bool = False,
    measured: Callable[[Tensor, Tensor], None] = lambda outputs, targets: None,
) -> None:
    """Refuse a loss that no module can learn by, before anything is charged.

    A module or a loss that raises is no matter of this: it is tried before a run, and raises there.

    Args:
        module: At any params; it is as it was afterwards.
        loss: From (outputs, targets) to the mean loss of a batch.
        x: A few inputs `(n, ...)`, of no one on a roster.
        y: Their targets.
        finite: Whether a loss that is not finite is refused too.
        drawn: Whether the inputs were drawn: the model may take none such, and where its outputs
            are not finite, the loss need not be.
        measured: Called with the outputs and the targets, for what else is to be looked at.

    Raises:
        ValueError: If the loss is no tensor of one number with a gradient, pairs predictions with
            the targets of others, or is not finite; says what to return.
    """
    device = next(module.parameters()).device
    with own_stream(None, device), torch.enable_grad():  # a loss may draw, too
        try:
            module, loss = copied_apart(module, loss)
            outputs = module.eval()(as_tensor(model_inputs(x)).to(device))
        except Exception as error:
            end_if_interrupted(error)
            return
        targets = as_tensor(model_targets(y)).to(device)
        if not isinstance(outputs, Tensor):
            return
        check_pairs(lambda o, t: float(loss(o, t)), outputs, targets, "the loss")
        measured(outputs, targets)
        try:
            found: Any = loss(outputs, targets)
        except Exception as error:
            end_if_interrupted(error)
            return
    if not isinstance(found, Tensor):
        raise ValueError(
            f"the loss returned a {type(found).__name__}; return a tensor of one number, the mean "
            "over the batch, without float(), .item() or NumPy, which lose its gradient"
        )
    if found.numel() != 1:
        raise ValueError(
            f"the loss returned a tensor of shape {tuple(found.shape)}; return one number, the "
            "mean over the batch: reduction='mean', or .mean()"
        )
    if outputs.requires_grad and not found.requires_grad:
        raise ValueError(
            "the loss has no gradient; make it of the outputs by PyTorch's operations alone, "
            "without .detach(), .item(), .argmax() or torch.no_grad()"
        )
    excused = drawn and not bool(outputs.isfinite().all())
    if finite and not excused and not math.isfinite(value := float(found.detach())):
        raise ValueError(
            f"the loss is {value} on public or synthetic examples, before the first round; return "
            "a finite mean over the batch (no logarithm or root of zero, no empty mean), or give "
            "the task a synthetic_batch of examples that it takes"
        )


def check_pairs(
    value: Callable[[Tensor, Tensor], float], outputs: Tensor, targets: Tensor, what: str
) -> None:
    """Refuse what compares predictions with the targets of other examples by broadcasting.

    It is tried on uniform numbers in the shapes of a batch: if its value is that of the outputs and
    the targets spread over each other, and not the mean over single examples, it spreads them.

    Args:
        value: From (outputs, targets) to a mean.
        outputs: Of a batch; only shape, dtype and device are looked at.
        targets: Likewise.
        what: What to call it in a message.

    Raises:
        ValueError: If it does.
    """
    # Of as many axes, the first is everybody's and pairs each example with itself.
    if outputs.ndim == targets.ndim or outputs.shape[:1] != targets.shape[:1]:
        return
    for number in _BATCHES:
        left, right = _values(outputs, number, "outputs"), _values(targets, number, "targets")
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, about the very thing that is looked for
                found = value(left, right)
                spread = value(*torch.broadcast_tensors(left, right))
                pairs = zip(left.split(1), right.split(1), strict=True)
                single = sum(value(*pair) for pair in pairs) / number
        except Exception as error:
            end_if_interrupted(error)
            continue
        if _close(found, spread) and not _close(found, single):
            left, right = _shape(outputs), _shape(targets)
            raise ValueError(
                f"{what} compares outputs {left} with targets {right} by broadcasting: every "
                "prediction with all targets, and not with its own; make the shapes equal: "
                "let the model end in nn.Flatten(0) for outputs (n,), or give targets in the "
                "outputs' shape"
            )


def _close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=_SAME, abs_tol=_SAME * _SAME)


def _values(like: Tensor, number: int, what: str) -> Tensor:
    rng, shape = _KEY.fold(what).fold(number).generator(), (number, *like.shape[1:])
    floats = like.is_floating_point()  # of classes there are two, so that both are met
    made = rng.random(shape) if floats else (np.indices(shape).sum(axis=0) + 1) % 2
    return torch.from_numpy(made).to(like.device, like.dtype)


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(['n', *map(str, tensor.shape[1:])])}{',' if tensor.ndim == 1 else ''})"


def example_loss(
    module: nn.Module, loss: Loss, params: Mapping[str, Tensor], x: Tensor, y: Tensor
) -> Tensor:
    """Return the loss of one example, which the module is given as a batch of one, of shape ().

    If an index is beyond a tensor of the example's own, it is NaN, and so are its gradients.

    Args:
        module: It and the loss are copies, of which no other example is to know.
        loss: Mean loss of a batch.
        params: In the place of the module's, by name; others stay.
        x: Input.
        y: Target.
    """
    with IndicesWithin() as indices:
        value = loss(functional_call(module, dict(params), (x[None],)), y[None])
    return indices.or_nan(value).reshape(())


def evaluation_losses(
    module: nn.Module, loss: Loss, x: Tensor, y: Tensor, chunk: int
) -> np.ndarray:
    """Return the losses of single examples in evaluation mode, float64 `(n,)`.

    The module is given one example at a time, so that none can reach another through it; what is
    drawn is the same for all. One that looks beyond a tensor of its own has NaN, and so has one at
    which module or loss raise.

    Args:
        module: Copied, as is the loss, for each chunk.
        loss: From (outputs, targets) to the mean loss of a batch, here always of one.
        x: Inputs `(n, ...)`, on the module's device.
        y: Targets `(n, ...)`.
        chunk: Examples that are held at once.
    """

    def single() -> Callable[[Tensor, Tensor], Tensor]:
        own, own_loss = copied_apart(module, loss)
        return partial(example_loss, own.eval(), own_loss, {})

    def alone(place: int) -> float:
        try:
            with own_stream(None, x.device), parameters_apart(kept):
                return float(single()(x[place], y[place]))
        except Exception as error:  # of this example: the others have their losses
            end_if_interrupted(error)
            return math.nan

    found, kept = np.empty(len(x)), kept_parameters(module)
    with torch.no_grad():
        try:
            for start in range(0, len(x), chunk):
                part, each = slice(start, start + chunk), vmap(single())
                found[part] = each(x[part], y[part]).double().cpu().numpy()
        except Exception as error:  # no batching rule, or what one of the examples raises
            end_if_interrupted(error)
            found[:] = [alone(place) for place in range(len(x))]
    return found


def synthetic_inputs(
    module: nn.Module, x: np.ndarray, y: np.ndarray, number: int
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of synthetic examples, on the module's device.

    Inputs are normal, so that examples differ in sign and size; targets, which may be shares or
    chances, uniform; words are of every embedding's vocabulary, classes the first two.

    Args:
        module: Whose embeddings are looked at.
        x: Inputs of the training set; only shape and dtype of one are looked at.
        y: Targets, likewise.
        number: How many.
    """
    known = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    device = next(module.parameters()).device
    left = _synthetic(x, number, "x", min(known, default=2)).to(device)
    return left, _synthetic(y, number, "y", 2).to(device)


def _synthetic(array: np.ndarray, number: int, what: str, numbers: int) -> Tensor:
    shape, rng = (number, *array.shape[1:]), _EXAMPLES.fold(what).generator()
    if not np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(rng.integers(numbers, size=shape).astype(array.dtype))
    values = rng.standard_normal(shape) if what == "x" else rng.random(shape)
    return torch.from_numpy(np.asarray(values, np.float32))


def mean_losses(
    module: nn.Module,
    loss: Loss,
    params: Params,
    direction: Params,
    sizes: Sequence[float],
    x: Tensor,
    y: Tensor,
) -> np.ndarray:
    """Return the mean loss of a batch at every point, float64 (sizes,).

    Args:
        module: Its params are overwritten, and nothing else of it is changed; nothing is drawn, and
            dropout is off.
        loss: From outputs and targets to the mean loss.
        params: float32.
        direction: Likewise.
        sizes: Step sizes.
        x: Inputs, on the module's device.
        y: Targets.
    """
    device, found = next(module.parameters()).device, np.empty(len(sizes))
    own, own_loss = copied_apart(module, loss)
    own.eval()
    with own_stream(None, device), torch.no_grad():
        for place, size in enumerate(sizes):
            load_params(own, move_along(params, direction, size))
            found[place] = float(own_loss(own(x), y))
    return found
