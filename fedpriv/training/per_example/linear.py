"""Per-example gradients of linear models in closed form, one class a loss.

===========================  ==================================  ===============================
model                        params                              loss
===========================  ==================================  ===============================
`LogisticGradients`          weight `(d,)`, bias `(1,)`          log-loss of one logit
`HingeGradients`             weight `(d,)`, bias `(1,)`          hinge of one logit (a linear SVM)
`HuberGradients`             weight `(d,)`, bias `(1,)`          the hinge, with its corner rounded
`OneVsAllGradients`          kernel `(d, k)`, bias `(k,)`        log-losses of k logits
`SoftmaxGradients`           kernel `(d, k)`, bias `(k,)`        cross-entropy of k logits
`LinearRegressionGradients`  weight `(d,)`                       half the squared error
===========================  ==================================  ===============================

All but the last take sparse inputs and never make an example's gradient dense; logits, residuals,
norms and sums are float64. On another device (`on_device`) the module of the same model is trained.

>>> import numpy as np
>>> from fedpriv.mechanisms import Clip
>>> toy = LinearRegressionGradients(np.array([[3.0, 4.0]], np.float32), np.array([-1.0]))
>>> total = toy.bounded_sum(
...     {"weight": np.zeros(2, np.float32)}, np.array([0]), Clip(l2_clip_norm=1.0)
... )
>>> [round(float(value), 5) for value in total["weight"]]
[-0.6, -0.8]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import sparse
from scipy.special import expit
from scipy.special import softmax as probabilities_of

from fedpriv import tree
from fedpriv.ranges import positive_float
from fedpriv.rng import Key
from fedpriv.training.bounded_sum import RowStack, Stack
from fedpriv.training.evaluate import Metrics, Total
from fedpriv.training.per_example.example_sum import ExampleGradients, Examples
from fedpriv.training.per_example.sparse_sums import (
    Layout,
    canonical,
    joined,
    outer_stacks,
    positions,
    size_of,
    with_ones,
)
from fedpriv.training.permutation_sgd import Passes, PermutationSgd, loss_constants, shortened
from fedpriv.tree import Params

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.training.per_example.module import ModuleGradients

Losses = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From logits float64 (n, k) and labels int64 (n,) to losses, or residuals, float64."""


def losses_on_line(
    here: np.ndarray, change: np.ndarray, sizes: Sequence[float], labels: np.ndarray, losses: Losses
) -> np.ndarray:
    """Return losses at logits here + size · change, float64 (n, sizes)."""
    found = [losses(here + size * change, labels) for size in sizes]
    return np.stack(found, axis=1) if found else np.zeros((len(labels), 0))


def logistic_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log(1 + e^-yz) of labels 0 and 1, y = ±1."""
    from torch.nn.functional import logsigmoid

    return -logsigmoid(_signs(labels) * logits)


def hinge_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return max(0, 1 - yz) of labels 0 and 1, y = ±1."""
    return (1.0 - _signs(labels) * logits).clamp(min=0.0)


def huber_losses(logits: Tensor, labels: Tensor, *, width: float) -> Tensor:
    """Return the Huber approximation of the hinge: quadratic within `width` of the corner.

    Reference: Chapelle (2007), Section 2.1; Chaudhuri et al. (2011), Corollary 13.
    """
    near = (1.0 + width - _signs(labels) * logits).clamp(min=0.0)
    quadratic = near.clamp(max=2.0 * width) ** 2 / (4.0 * width)
    return quadratic + (near - 2.0 * width).clamp(min=0.0)


def one_vs_all_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return Σ_j log(1 + e^-yz_j) of classes from 0: k log-losses, y = 1 for the own class."""
    from torch.nn.functional import logsigmoid, one_hot

    return -logsigmoid(_signs(one_hot(labels, logits.shape[1])) * logits).sum(dim=1)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return `softmax_losses` of tensors."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits, labels, reduction="none")


def softmax_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of classes from 0; infinite logits have none."""
    peak = logits.max(axis=1, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        total = np.exp(logits - peak[:, np.newaxis]).sum(axis=1)
        return np.log(total) + (peak - logits[np.arange(len(labels)), labels])


def logistic_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the log-loss's derivative by the logit, float64 (n, 1)."""
    sign = (1.0 - 2.0 * labels)[:, np.newaxis]
    return sign * expit(sign * logits)  # without the cancellation of expit(logit) - 1


def one_vs_all_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the derivative of `one_vs_all_losses` by the logits, float64 (n, k)."""
    found = expit(logits)
    examples = np.arange(len(labels))
    found[examples, labels] = -expit(-logits[examples, labels])
    return found


def softmax_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross-entropy's derivative by the logits, float64 (n, k)."""
    with np.errstate(invalid="ignore"):  # infinite logits: NaN, and so a zero contribution
        shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        shares /= shares.sum(axis=1, keepdims=True)
        examples = np.arange(len(labels))
        shares[examples, labels] = 0.0
        shares[examples, labels] = -shares.sum(axis=1)  # without the cancellation of p - 1
    return shares


def hinge_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the hinge's derivative by the logit, float64 (n, 1); 0 at the corner."""
    sign = _signs(labels)[:, np.newaxis]
    residual = np.where(sign * logits < 1.0, -sign, 0.0)
    return np.where(np.isfinite(logits), residual, np.nan)


def huber_residual(width: float) -> Losses:
    """Return the derivative of `huber_losses` by the logit, float64 (n, 1)."""

    def residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        sign = _signs(labels)[:, np.newaxis]
        slope = np.clip((1.0 + width - sign * logits) / (2.0 * width), 0.0, 1.0)
        return -sign * slope

    return residual


def _signs(labels: Any) -> Any:
    return 2.0 * labels - 1.0


# Examples whose logits are held at a time where all may be asked for.
CHUNK = 1 << 12


def weights_of(params: Params, name: str, shape: tuple[int, int]) -> np.ndarray:
    """Return kernel and bias as one matrix, float64, whose last row is the bias.

    Raises:
        ValueError: If they have other shapes.
    """
    kernel, bias = params[name], params["bias"]
    allowed = (shape, shape[:1]) if shape[1] == 1 else (shape,)
    if kernel.shape not in allowed or bias.shape != shape[1:]:
        raise ValueError(
            f"{name} {kernel.shape} and bias {bias.shape} do not fit {shape[0]} inputs and "
            f"{shape[1]} logits"
        )
    found = np.empty((shape[0] + 1, shape[1]))
    found[:-1], found[-1] = kernel.reshape(shape), bias
    return found


def checked_labels(y: np.ndarray, num_examples: int, num_classes: int) -> np.ndarray:
    """Return classes as int64.

    Raises:
        ValueError: If there is not one for each example, or one is outside the model.
    """
    labels = np.asarray(y)
    if labels.shape != (num_examples,) or labels.dtype.kind not in "iub":
        raise ValueError(
            f"labels {labels.dtype}{labels.shape} must be one integer for each of {num_examples}"
        )
    labels = labels.astype(np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels {labels.min()}..{labels.max()} leave 0..{num_classes - 1}")
    return labels


def nonempty(chosen: np.ndarray) -> np.ndarray:
    """Return positions; refuse none."""
    if not len(chosen):
        raise ValueError("a mean over no examples was asked for; give at least one")
    return chosen


class LinearRegressionGradients(ExampleGradients):
    """Least squares without a bias on dense inputs, loss ½ (x·w - y)².

    Args:
        x: float32 `(n, d)`.
        y: Targets `(n,)`.

    Raises:
        ValueError: If targets and inputs do not fit together.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._x, self._y = np.asarray(x, np.float32), np.asarray(y, np.float64)
        if self._x.ndim != 2 or self._y.shape != self._x.shape[:1]:
            raise ValueError(
                f"targets {self._y.shape} do not fit inputs {self._x.shape}: (n,) and (n, d)"
            )

    @property
    def num_examples(self) -> int:
        """Examples in the set."""
        return len(self._x)

    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over examples, float32.

        Raises:
            ValueError: If there are no examples.
        """
        chosen = nonempty(positions(index, self.num_examples))
        inputs, residuals = self._residuals(params, chosen)
        return {"weight": (residuals @ inputs / len(chosen)).astype(np.float32)}

    def loss(self, params: Params) -> float:
        """Return the mean loss over all examples."""
        _, residuals = self._residuals(params, np.arange(self.num_examples))
        return float(np.square(residuals).mean() / 2)

    def _residuals(self, params: Params, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = params["weight"]
        if weight.shape != self._x.shape[1:]:
            raise ValueError(f"weight {weight.shape} does not fit {self._x.shape[1]} inputs")
        inputs = self._x[chosen].astype(np.float64)
        # Row by row: a product of the whole batch has other last bits in another batch.
        return inputs, (inputs * weight.astype(np.float64)).sum(axis=1) - self._y[chosen]

    def stacks(self, params: Params, index: Examples, key: Key | None = None) -> Iterator[Stack]:
        """Yield the updates of examples or groups, all at once; see `ExampleGradients`."""
        chosen, starts = joined(index, self.num_examples)
        if not len(chosen):
            return
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite contributes zero
            inputs, residuals = self._residuals(params, chosen)
            updates = inputs * -residuals[:, np.newaxis]
            if starts is not None:
                updates = np.add.reduceat(updates, starts[:-1], axis=0)
                updates /= np.diff(starts)[:, np.newaxis]
        yield RowStack({"weight": updates})


def linear_class_scores(
    params: Params, x: sparse.csr_matrix, y: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of examples: probabilities, float64 `(n, classes)`, and labels, int64 `(n,)`.

    Args:
        params: As of `linear_metrics`; a model by its "weight" has two classes.
        x: CSR `(n, d)`.
        y: Classes `(n,)`.

    Raises:
        ValueError: As `linear_metrics`.
    """
    for logits, labels in _class_logits(params, x, y):
        yield probabilities_of(logits, axis=1), labels


def linear_metrics(params: Params, x: sparse.csr_matrix, y: np.ndarray) -> Metrics:
    """Return "accuracy" and "loss", in nats and float64, of a model on sparse inputs.

    Args:
        params: Of `LogisticGradients` (by its "weight") or `SoftmaxGradients` (by its "kernel").
        x: CSR `(n, d)`.
        y: Classes `(n,)`. Ties go to the lowest class.

    Raises:
        ValueError: If there are no examples, or shapes or labels do not fit.
    """
    right, loss = 0, 0.0
    for logits, labels in _class_logits(params, x, y):
        right += int(np.count_nonzero(logits.argmax(axis=1) == labels))
        loss += float(softmax_losses(logits, labels).sum())  # NaN of params that have diverged
    number = len(nonempty(y))
    totals = {"accuracy": Total(sum=right, count=number), "loss": Total(sum=loss, count=number)}
    return Metrics(totals=totals, num_examples=number)


def _class_logits(
    params: Params, x: sparse.csr_matrix, y: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of examples: logits, float64 `(n, classes)`, and labels, int64 `(n,)`.

    The first of two classes that share one logit has the logit 0.
    """
    rows, name = canonical(x), "weight" if "weight" in params else "kernel"
    num_logits = 1 if name == "weight" else params[name].shape[1]
    weights = weights_of(params, name, (size_of(rows)[1], num_logits))
    labels = checked_labels(y, size_of(rows)[0], max(num_logits, 2))
    for start in range(0, len(labels), CHUNK):
        part = slice(start, start + CHUNK)
        logits = rows[part] @ weights[:-1] + weights[-1]
        if num_logits == 1:
            logits = np.hstack([np.zeros_like(logits), logits])
        yield logits, labels[part]


# Above this share of entries that are not zero, products of dense rows are quicker.
_DENSE = 0.3


@dataclass(frozen=True, slots=True)
class LinearLoss:
    """A loss of a linear model, as a function of its logits.

    Attributes:
        name: As of `loss_constants`, which says what permutation SGD needs to know of it.
        residual: The loss's derivative by the logits.
        losses: Each example's loss, of tensors of logits, `(n,)` or `(n, k)`, and labels.
        width: As of `loss_constants`.
    """

    name: str
    residual: Losses
    losses: Callable[[Tensor, Tensor], Tensor]
    width: float = 0.1


class SparseLinearGradients(ExampleGradients):
    """A linear model on sparse inputs with a loss of its logits; one logit makes two classes.

    Args:
        x: CSR `(n, d)`, float32.
        y: Classes `(n,)`, integers from 0.
        loss: Of the logits.
        num_classes: At least 2, with params "kernel" and "bias"; None for two classes by one logit,
            with "weight" and "bias".

    Raises:
        ValueError: If labels, inputs and classes do not fit together.
    """

    biased: ClassVar[bool] = True
    """Whether there is a "bias" among the params."""

    def __init__(
        self,
        x: sparse.csr_matrix,
        y: np.ndarray,
        loss: LinearLoss,
        num_classes: int | None = None,
    ) -> None:
        if num_classes is not None and num_classes < 2:
            raise ValueError(f"num_classes {num_classes} must be at least 2")
        inputs, self._loss = canonical(x), loss
        self._x = with_ones(inputs) if self.biased else inputs
        self._labels = checked_labels(y, size_of(inputs)[0], num_classes or 2)
        self._name = "kernel" if num_classes else "weight"
        self._shape = (size_of(inputs)[1], num_classes or 1)

    @property
    def num_examples(self) -> int:
        """Examples in the set."""
        return len(self._labels)

    def float_error(self) -> float:
        """Return the float64 error of its sums; see `ExampleGradients`.

        A sum of n contributions rounds by at most n 2^-53 of what is summed, n bounds at most, and
        so does the one without the example. Logits, residuals and norms are taken row by row: what
        else is in the batch changes no bit of a contribution, and 2^-40 each is left for it.
        """
        number = self.num_examples
        return 2.0 * number**2 * 2.0**-53 + number * 2.0**-40

    def on_device(self, device: str) -> ModuleGradients:
        """Return the model on the same examples as a module on a device, in float32.

        Its sums have no stated error: they are rounded to no grid.

        Raises:
            ValueError: If there is no such device here.
        """
        from fedpriv.models.images import LogitRegression, SoftmaxRegression
        from fedpriv.training.per_example.module import ModuleGradients

        inputs, classes = self._shape
        module = LogitRegression(inputs) if classes == 1 else SoftmaxRegression(inputs, classes)
        module.bias.requires_grad_(self.biased)  # zeros, which without one stay so
        rows: Any = _DenseRows(self._x, inputs)
        losses = self._loss.losses
        return ModuleGradients(
            module, lambda o, t: losses(o, t).mean(), rows, self._labels, device=device
        )

    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over examples, float32.

        Raises:
            ValueError: If there are no examples.
        """
        chosen = nonempty(positions(index, self.num_examples))
        total = np.zeros((size_of(self._x)[1], self._shape[1]))
        for start in range(0, len(chosen), CHUNK):
            part = chosen[start : start + CHUNK]
            total += self._x[part].T @ (self._residuals(params, part) / len(chosen))
        return tree.to_dense(self._layout(params).tensors(total.astype(np.float32)))

    def permutation_sgd(self, passes: Passes, *, regulariser: float) -> PermutationSgd:
        """Return permutation SGD on all examples, of inputs within the unit ball.

        Raises:
            ValueError: If the loss has no constants.
        """
        (number, width), loss = size_of(self._x), self._loss
        constants = loss_constants(
            loss.name, regulariser=regulariser, width=loss.width, num_classes=self._shape[1]
        )
        rows = self._x.toarray() if self._x.nnz > _DENSE * number * width else self._x
        return PermutationSgd(
            rows=shortened(rows, constants.inputs),
            y=self._labels,
            name=self._name,
            residual=loss.residual,
            constants=constants,
            passes=passes,
        )

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], index: np.ndarray
    ) -> np.ndarray:
        """Return losses, float64 (examples, sizes); see `fedpriv.training.dp_agd.ExampleLosses`."""
        chosen = positions(index, self.num_examples)
        here, change = (self._logits(own, chosen) for own in (params, direction))
        return losses_on_line(here, change, sizes, self._labels[chosen], self._losses)

    def _losses(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        from torch import from_numpy

        given = logits if self._name == "kernel" else logits[:, 0]
        return self._loss.losses(from_numpy(given), from_numpy(labels)).numpy()

    def _logits(self, params: Params, chosen: np.ndarray) -> np.ndarray:
        params = {"bias": np.zeros(self._shape[1], np.float32), **params}
        weights = weights_of(params, self._name, self._shape)
        return self._x[chosen] @ weights[: size_of(self._x)[1]]

    def _residuals(self, params: Params, chosen: np.ndarray) -> np.ndarray:
        return self._loss.residual(self._logits(params, chosen), self._labels[chosen])

    def stacks(self, params: Params, index: Examples, key: Key | None = None) -> Iterator[Stack]:
        """Yield the updates of examples or groups; see `ExampleGradients`."""
        chosen, starts = joined(index, self.num_examples)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite contributes zero
            residuals = self._residuals(params, chosen)
        return outer_stacks(self._x[chosen], residuals, starts, self._layout(params))

    def _layout(self, params: Params) -> Layout:
        shape, num_classes = params[self._name].shape, self._shape[1]
        return Layout(name=self._name, shape=shape, num_classes=num_classes, bias=self.biased)


@dataclass(frozen=True, slots=True)
class _DenseRows:
    """The first columns of rows of a sparse matrix, which are made dense when they are read."""

    x: sparse.csr_matrix
    num_columns: int

    def __len__(self) -> int:
        return size_of(self.x)[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        return self.x[chosen][:, : self.num_columns].toarray().astype(np.float32)


class LogisticGradients(SparseLinearGradients):
    """Binary logistic regression on sparse inputs and labels 0 and 1."""

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray) -> None:
        super().__init__(x, y, LinearLoss("logistic", logistic_residual, logistic_losses))


class HingeGradients(SparseLinearGradients):
    """A linear support vector machine on sparse inputs, with the hinge's subgradient."""

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray) -> None:
        super().__init__(x, y, LinearLoss("hinge", hinge_residual, hinge_losses))


class HuberGradients(SparseLinearGradients):
    """A linear support vector machine whose hinge is quadratic within `width` of its corner.

    So the loss is 1/(2 width)-smooth; the width is above 0.
    """

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, width: float = 0.1) -> None:
        width = positive_float("width", width)
        losses = partial(huber_losses, width=width)
        super().__init__(x, y, LinearLoss("huber-svm", huber_residual(width), losses, width))


class OneVsAllGradients(SparseLinearGradients):
    """k logistic regressions on the same sparse inputs, each of one class against the others.

    They are one model: a gradient is bounded, and a result perturbed, over all classes together.
    """

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, num_classes: int) -> None:
        loss = LinearLoss("one-vs-all", one_vs_all_residual, one_vs_all_losses)
        super().__init__(x, y, loss, num_classes)


class SoftmaxGradients(SparseLinearGradients):
    """Multinomial logistic regression on sparse inputs."""

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, num_classes: int) -> None:
        loss = LinearLoss("softmax", softmax_residual, cross_entropies)
        super().__init__(x, y, loss, num_classes)


class UnbiasedSoftmaxGradients(SoftmaxGradients):
    """Multinomial logistic regression without a bias, whose params are the kernel alone."""

    biased = False
