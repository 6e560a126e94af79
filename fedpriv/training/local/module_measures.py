"""Measures of any `nn.Module`: functions of its outputs and the targets, batch by batch.

Without a word from the person, outputs and targets say what kind of task it is:

=====================================================  =========================================
targets                                                measures
=====================================================  =========================================
integers `(n,)`, outputs `(n, classes)`                `CLASSIFICATION`
floats, as many as there are outputs                   `REGRESSION`
integers `(n, time)`, outputs `(n, time, classes)`     `next_token("last")`
integers `(n, time)`, outputs `(n, classes, time)`     `next_token("middle")`
anything else                                          the loss alone
=====================================================  =========================================

The loss is always among them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.measures import ACCURACY, LOSS, Measure, check_measures
from fedpriv.models.text import IGNORED
from fedpriv.training.evaluate import WHOLE, MadeOf, Metrics, Part, Total, chunks, combined
from fedpriv.training.local.module import model_inputs, model_targets
from fedpriv.training.local.sgd import as_tensor

_LOG = logging.getLogger(__name__)

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMeasure:
    """A measure, and the function of (outputs, targets) of a batch that takes it.

    Attributes:
        measure: Its name, label, direction and form.
        compute: From outputs and targets to the sum of what is measured and how much is counted,
            `(sum, count)`, to a tensor of one value for each that is counted, or to a number: the
            mean over the batch's examples.
        value_is: What is made of the mean over all batches.
    """

    measure: Measure
    compute: Callable[[Tensor, Tensor], Any]
    value_is: MadeOf = "mean"

    @torch.no_grad()
    def total(self, outputs: Tensor, targets: Tensor) -> Total:
        """Return the total of a batch.

        Raises:
            ValueError: If the function returns none of the three.
        """
        found: Any = self.compute(outputs, targets)
        if isinstance(found, Tensor) and found.ndim > 0:
            total, count = float(found.double().sum()), found.numel()
            return Total(sum=total, count=count, value_is=self.value_is)
        if isinstance(found, tuple) and len(found) == 2:
            return Total(sum=float(found[0]), count=int(found[1]), value_is=self.value_is)
        if not isinstance(found, Tensor | float | int | np.number):
            raise ValueError(
                f"measure {self.measure.name!r} returned a {type(found).__name__}; return (sum, "
                "count), a tensor of one value for each example, or a mean over the batch"
            )
        count = int(counted(targets).sum())  # PyTorch's mean over none is NaN
        total = float(found) * count if count else 0.0
        return Total(sum=total, count=count, value_is=self.value_is)

    def mean(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the mean of a batch, before any root or power is taken."""
        total = self.total(outputs, targets)
        return total.sum / total.count


def counted(targets: Tensor) -> Tensor:
    """Return which examples have a target that is counted, bool `(n,)`."""
    if not len(targets) or targets.is_floating_point():
        return torch.ones(len(targets), dtype=torch.bool)
    return (targets != IGNORED).reshape(len(targets), -1).any(dim=1)


def counted_places(y: np.ndarray) -> np.ndarray:
    """Return positions of examples with a target that is counted, int64, in order."""
    return np.flatnonzero(counted(as_tensor(model_targets(y))).numpy())


def commonest_share(y: np.ndarray) -> float | None:
    """Return the accuracy of always answering the commonest of classes `(n,)`; None without any."""
    _, counts = np.unique(y[counted_places(y)], return_counts=True)
    return float(counts.max() / counts.sum()) if counts.size else None


def _right(outputs: Tensor, targets: Tensor) -> tuple[int, int]:
    kept = targets != IGNORED
    return int((outputs.argmax(dim=1) == targets)[kept].sum()), int(kept.sum())


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).double().abs()


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return _absolute(outputs, targets).square()


CLASSIFICATION = (ModuleMeasure(measure=ACCURACY, compute=_right),)
REGRESSION = (
    ModuleMeasure(
        measure=Measure(
            name="mean_squared_error", label="mean squared error", higher_is_better=False
        ),
        compute=_squared,
    ),
    ModuleMeasure(
        measure=Measure(
            name="mean_absolute_error", label="mean absolute error", higher_is_better=False
        ),
        compute=_absolute,
    ),
)


def next_token(classes: Literal["last", "middle"] = "last") -> tuple[ModuleMeasure, ...]:
    """Return perplexity and token accuracy of sequences; targets of -100 are not counted.

    Args:
        classes: Where the outputs' classes are: "last" `(n, time, classes)`, or "middle"
            `(n, classes, time)`.
    """
    if classes not in ("last", "middle"):
        raise ValueError(f"classes {classes!r} are not known; use 'last' or 'middle'")

    def middle(outputs: Tensor) -> Tensor:
        return outputs.transpose(1, 2) if classes == "last" else outputs

    def right(outputs: Tensor, targets: Tensor) -> tuple[int, int]:
        return _right(middle(outputs), targets)

    def cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        summed = nn.functional.cross_entropy(middle(outputs), targets, reduction="sum")
        return summed, int((targets != IGNORED).sum())

    return (
        ModuleMeasure(
            measure=Measure(name="perplexity", label="perplexity", higher_is_better=False),
            compute=cross_entropy,
            value_is="exp of mean",
        ),
        ModuleMeasure(
            measure=Measure(name="token_accuracy", label="token accuracy", form="share"),
            compute=right,
        ),
    )


def fitting_measures(module: nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[ModuleMeasure, ...]:
    """Return the measures that fit the shapes and dtypes of outputs and targets, if any.

    A module that fails on the inputs is no matter of its measures: it is tried before a run, and
    its error is raised there.

    Args:
        module: Of any params.
        x: A few inputs, at least one, of no one on a roster.
        y: Their targets.

    Raises:
        ValueError: If classes could be last or in the middle.
    """
    try:
        with torch.no_grad():
            outputs = module.eval()(as_tensor(model_inputs(x)))
    except Exception:
        return ()
    if not isinstance(outputs, Tensor):
        return ()
    targets = as_tensor(model_targets(y))
    if targets.is_floating_point():
        if outputs.shape == targets.shape and _is_one_hot(targets):
            _LOG.warning(
                "targets of shape %s are one-hot and taken for numbers: give classes, y.argmax(1), "
                "to have accuracy measured",
                tuple(targets.shape),
            )
        return REGRESSION if outputs.numel() == targets.numel() else ()
    if targets.ndim == 1 and outputs.ndim == 2 and outputs.shape[1] > 1:
        return CLASSIFICATION
    if targets.ndim != 2 or outputs.ndim != 3 or len(outputs) != len(targets):
        return ()
    last, middle = (outputs.shape[axis] == targets.shape[1] for axis in (1, 2))
    if last and middle:
        raise ValueError(
            f"outputs {tuple(outputs.shape)} of targets {tuple(targets.shape)} could have their "
            "classes last or in the middle; say which: measures=next_token('last') or "
            "next_token('middle')"
        )
    return next_token("last") if last else next_token("middle") if middle else ()


def _is_one_hot(targets: Tensor) -> bool:
    two_or_more = targets.ndim == 2 and min(targets.shape) > 1
    whole = bool(((targets == 0) | (targets == 1)).all())
    return two_or_more and whole and bool((targets.sum(1) == 1).all())


def with_loss(measures: Sequence[ModuleMeasure], loss: Loss) -> tuple[ModuleMeasure, ...]:
    """Return the measures, with the mean loss appended where it is not among them.

    It is a diagnostic among others, and released where there is no other.

    Raises:
        ValueError: If one is no `ModuleMeasure`, or they cannot stand side by side.
    """
    found = tuple(measures)
    for own in found:
        if not isinstance(own, ModuleMeasure):
            name = getattr(own, "__name__", type(own).__name__)
            raise ValueError(
                f"measure {name!r} is a {type(own).__name__} and says neither its label nor which "
                f"way is better; give ModuleMeasure(measure=Measure(name={name!r}, label=..., "
                "higher_is_better=...), compute=...)"
            )
    if all(own.measure.name != LOSS.name for own in found):
        shown = replace(LOSS, diagnostic_only=bool(found))
        found += (ModuleMeasure(measure=shown, compute=loss),)
    check_measures([own.measure for own in found])
    return found


def module_metrics(
    module: nn.Module,
    measures: Sequence[ModuleMeasure],
    x: np.ndarray,
    y: np.ndarray,
    part: Part = WHOLE,
) -> Metrics | None:
    """Return the figures of a module in evaluation mode; None without examples.

    Args:
        module: With the params that are measured.
        measures: What is measured.
        x: Inputs `(n, ...)`.
        y: Targets `(n, ...)`.
        part: Which share of the examples.
    """
    return combined(
        Metrics(
            totals={own.measure.name: own.total(outputs, targets) for own in measures},
            num_examples=len(targets),
        )
        for _, outputs, targets in _blocks(module, x, y, part)
    )


def module_totals(
    module: nn.Module, measure: ModuleMeasure, x: np.ndarray, y: np.ndarray, counts: Sequence[int]
) -> list[Total]:
    """Return the total of one measure for each of several users, whose examples follow each other.

    Args:
        module: With the params that are measured.
        measure: What is measured.
        x: Inputs `(n, ...)`.
        y: Targets `(n, ...)`.
        counts: How many examples each user has; they add up to n.
    """
    ends = np.cumsum(counts)
    found = [Total(sum=0.0, count=0, value_is=measure.value_is) for _ in counts]
    for chosen, outputs, targets in _blocks(module, x, y):
        at = chosen.start
        while at < chosen.stop:
            user = int(np.searchsorted(ends, at, side="right"))
            stop = min(int(ends[user]), chosen.stop)
            part = slice(at - chosen.start, stop - chosen.start)
            found[user] += measure.total(outputs[part], targets[part])
            at = stop
    return found


_CHUNK, _NUMBERS = 1024, 1 << 24


def _blocks(
    module: nn.Module, x: np.ndarray, y: np.ndarray, part: Part = WHOLE
) -> Iterator[tuple[slice, Any, Tensor]]:
    """Yield places of examples with their outputs and targets, the same for every measure.

    Outputs may depend on how many examples they are made of: fewer where each has many numbers.
    """

    def outputs(x: np.ndarray) -> Any:
        with torch.no_grad():
            return module(as_tensor(model_inputs(x)))

    size = _CHUNK
    if len(x) > 1 and isinstance(one := outputs(x[:1]), Tensor):
        size = max(1, min(_CHUNK, _NUMBERS // max(one.numel(), 1)))
    for chosen in chunks(len(y), part, size):
        yield chosen, outputs(x[chosen]), as_tensor(model_targets(y[chosen]))


def classifies(measures: Sequence[ModuleMeasure]) -> bool:
    """Return whether a module answers with one class of several, by what it is measured by."""
    return any(own in CLASSIFICATION for own in measures)


def module_class_scores(
    module: nn.Module, x: np.ndarray, y: np.ndarray, part: Part = WHOLE
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of examples: softmax of the outputs, float64 `(n, classes)`, and targets.

    Args:
        module: In evaluation mode, with the params that are measured; its outputs are logits.
        x: Inputs `(n, ...)`.
        y: Classes `(n,)`; examples of class -100 are left out.
        part: Which share of the examples.
    """
    for _, outputs, targets in _blocks(module, x, y, part):
        labels = targets.numpy().astype(np.int64)
        kept = labels != IGNORED
        yield torch.softmax(outputs.double(), dim=1).numpy()[kept], labels[kept]
