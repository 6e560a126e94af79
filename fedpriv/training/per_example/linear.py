"""Per-example gradients of linear models in closed form, one class a loss.

===========================  ==================================  ===============================
model                        params                              loss
===========================  ==================================  ===============================
`LogisticGradients`          weight `(d,)`, bias `(1,)`          log-loss of one logit
`LogisticGradients`          kernel `(d, k)`, bias `(k,)`        log-losses of k logits
`HingeGradients`             weight `(d,)`, bias `(1,)`          hinge of one logit (a linear SVM)
`HuberGradients`             weight `(d,)`, bias `(1,)`          the hinge, with its corner rounded
`SoftmaxGradients`           kernel `(d, k)`, bias `(k,)`        cross-entropy of k logits
`LinearRegressionGradients`  weight `(d,)`                       half the squared error
===========================  ==================================  ===============================

Inputs are sparse, and so is an example's gradient; logits, residuals and gradients are float64. On
another device (`on_device`) the module of the same model is trained.

>>> import numpy as np
>>> toy = LinearRegressionGradients(np.array([[3.0, 4.0]], np.float32), np.array([-1.0]))
>>> toy.gradient({"weight": np.zeros(2, np.float32)}, np.array([0]))["weight"].tolist()
[3.0, 4.0]
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from scipy import sparse
from scipy.special import expit
from scipy.special import softmax as probabilities_of

from fedpriv.ranges import positive_float
from fedpriv.rng import Key
from fedpriv.sums import Block
from fedpriv.training.bounded_sum import RowStack, Stack
from fedpriv.training.evaluate import Metrics, Total
from fedpriv.training.per_example.example_sum import ExampleGradients, Examples
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


def softmax_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of classes from 0; infinite logits have none."""
    peak = logits.max(axis=1, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        total = np.exp(logits - peak[:, np.newaxis]).sum(axis=1)
        return np.log(total) + (peak - logits[np.arange(len(labels)), labels])


# Examples whose logits are held at a time where all may be asked for.
CHUNK = 1 << 12
# Numbers of examples' updates that are held at a time, made dense, and the fewest examples.
_NUMBERS, _FEWEST = 1 << 22, 16
# Above this share of entries that are not zero, products of dense rows are quicker.
_DENSE = 0.3


def canonical(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return inputs as float64 rows, sorted and merged if they were not; `x` stays as it is.

    Raises:
        ValueError: If `x` is not CSR or its indices lie outside it.
    """
    if getattr(x, "format", None) != "csr":
        raise ValueError(f"inputs are {type(x).__name__}; give a scipy.sparse CSR matrix")
    x.check_format(full_check=True)
    found = sparse.csr_matrix(x, dtype=np.float64, copy=x.dtype != np.float64)
    if not found.has_canonical_format:
        found = found.copy()
        found.sum_duplicates()
    return found


def _size_of(x: sparse.csr_matrix) -> tuple[int, int]:
    return cast(tuple[int, int], x.shape)


def _logits_of(params: Params, name: str, x: sparse.csr_matrix, num_logits: int) -> np.ndarray:
    """Return logits, float64 `(n, num_logits)`; without a "bias" among the params there is none.

    Raises:
        ValueError: If the params have other shapes.
    """
    shape = (_size_of(x)[1], num_logits)
    kernel, bias = params[name], params.get("bias", np.zeros(num_logits, np.float32))
    allowed = (shape, shape[:1]) if num_logits == 1 else (shape,)
    if kernel.shape not in allowed or bias.shape != shape[1:]:
        raise ValueError(
            f"{name} {kernel.shape} and bias {bias.shape} do not fit {shape[0]} inputs and "
            f"{num_logits} logits"
        )
    return x @ kernel.reshape(shape).astype(np.float64) + bias


def checked_labels(y: np.ndarray, num_examples: int, num_classes: int | None) -> np.ndarray:
    """Return classes as int64; without classes, numbers as float64.

    Raises:
        ValueError: If there is not one for each example, or one is outside the model.
    """
    labels, kinds = np.asarray(y), "iubf" if num_classes is None else "iub"
    if labels.shape != (num_examples,) or labels.dtype.kind not in kinds:
        what = "number" if num_classes is None else "integer"
        raise ValueError(
            f"labels {labels.dtype}{labels.shape} must be one {what} for each of {num_examples}"
        )
    if num_classes is None:
        return labels.astype(np.float64)
    labels = labels.astype(np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels {labels.min()}..{labels.max()} leave 0..{num_classes - 1}")
    return labels


def _nonempty(chosen: np.ndarray) -> np.ndarray:
    if not len(chosen):
        raise ValueError("a mean over no examples was asked for; give at least one")
    return chosen


def _joined(index: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Return positions, group after group, where each group starts, and the end, int64.

    Raises:
        ValueError: If a group is empty: it has no mean.
    """
    if isinstance(index, np.ndarray):
        return index.astype(np.int64), np.arange(len(index) + 1)
    sizes = [len(group) for group in index]
    if 0 in sizes:
        raise ValueError(f"group {sizes.index(0)} is empty and has no mean; leave it out")
    return np.concatenate([*index, np.zeros(0, np.int64)]), np.cumsum([0, *sizes])


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
    number = len(_nonempty(y))
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
    labels = checked_labels(y, _size_of(rows)[0], max(num_logits, 2))
    for start in range(0, len(labels), CHUNK):
        part = slice(start, start + CHUNK)
        logits = _logits_of(params, name, rows[part], num_logits)
        if num_logits == 1:
            logits = np.hstack([np.zeros_like(logits), logits])
        yield logits, labels[part]


class SparseLinearGradients(ExampleGradients):
    """A linear model on sparse inputs with a loss of its logits; one logit makes two classes.

    Guarantees:
        * An example's update is a function of the params and of itself: what else is in the batch
          changes no bit of it.

    Args:
        x: CSR `(n, d)`, float32.
        y: Classes `(n,)`, integers from 0; numbers where the loss is of those.
        num_classes: At least 2, with params "kernel" and "bias"; None for one logit, with "weight"
            and "bias".

    Raises:
        ValueError: If labels, inputs and classes do not fit together.
    """

    exact: ClassVar[bool] = True

    loss: str
    """Its name, as of `loss_constants`, which says what permutation SGD needs to know of it."""

    width: float = 0.1
    """As of `loss_constants`."""

    biased: ClassVar[bool] = True
    """Whether there is a "bias" among the params."""

    of_classes: ClassVar[bool] = True
    """Whether labels are classes, and not any numbers."""

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, num_classes: int | None = None) -> None:
        if num_classes is not None and num_classes < 2:
            raise ValueError(f"num_classes {num_classes} must be at least 2")
        self._x = canonical(x)
        number, inputs = _size_of(self._x)
        self._labels = checked_labels(y, number, (num_classes or 2) if self.of_classes else None)
        self._name = "kernel" if num_classes else "weight"
        self._shape = (inputs, num_classes or 1)

    @abstractmethod
    def residual(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the losses' derivatives by logits `(n, k)`, float64 of that shape."""

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return each example's loss, of tensors of logits `(n, k)` and labels `(n,)`."""

    @property
    def num_examples(self) -> int:
        """Examples in the set."""
        return len(self._labels)

    def on_device(self, device: str) -> ModuleGradients:
        """Return the model on the same examples as a module on a device, in float32.

        Its sums are on no grid.

        Raises:
            ValueError: If there is no such device here.
        """
        from fedpriv.models.images import LogitRegression, SoftmaxRegression
        from fedpriv.training.per_example.module import ModuleGradients

        inputs, classes = self._shape
        module = LogitRegression(inputs) if classes == 1 else SoftmaxRegression(inputs, classes)
        module.bias.requires_grad_(self.biased)  # zeros, which without one stay so
        rows: Any = _DenseRows(self._x)

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            return self.losses(outputs.reshape(len(labels), classes), labels).mean()

        return ModuleGradients(module, loss, rows, self._labels, device=device)

    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over examples, float32.

        Raises:
            ValueError: If there are no examples.
        """
        kernel, bias = np.zeros(self._shape), np.zeros(self._shape[1])
        for start in range(0, len(_nonempty(index)), CHUNK):
            part = index[start : start + CHUNK]
            residuals = self._residuals(params, part) / len(index)
            kernel += self._x[part].T @ residuals
            bias += residuals.sum(axis=0)
        found = {self._name: kernel.reshape(params[self._name].shape), "bias": bias}
        return {name: found[name].astype(np.float32) for name in params}

    def permutation_sgd(self, passes: Passes, *, regulariser: float) -> PermutationSgd:
        """Return permutation SGD on all examples, of inputs within the unit ball.

        Raises:
            ValueError: If the loss has no constants.
        """
        constants = loss_constants(
            self.loss, regulariser=regulariser, width=self.width, num_classes=self._shape[1]
        )
        rows: Any = sparse.hstack([self._x, np.ones((self.num_examples, 1))], "csr")
        if rows.nnz > _DENSE * math.prod(rows.shape):
            rows = rows.toarray()
        return PermutationSgd(
            rows=shortened(rows, constants.inputs),
            y=self._labels,
            name=self._name,
            residual=self.residual,
            constants=constants,
            passes=passes,
        )

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], index: np.ndarray
    ) -> np.ndarray:
        """Return losses, float64 (examples, sizes); see `fedpriv.training.dp_agd.ExampleLosses`."""
        from torch import from_numpy

        def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
            return self.losses(from_numpy(logits), from_numpy(labels)).numpy()

        here, change = (self._logits(own, index) for own in (params, direction))
        return losses_on_line(here, change, sizes, self._labels[index], losses)

    def _logits(self, params: Params, chosen: np.ndarray) -> np.ndarray:
        return _logits_of(params, self._name, self._x[chosen], self._shape[1])

    def _residuals(self, params: Params, chosen: np.ndarray) -> np.ndarray:
        return self.residual(self._logits(params, chosen), self._labels[chosen])

    def stacks(self, params: Params, index: Examples, key: Key | None = None) -> Iterator[Stack]:
        """Yield the updates of examples or groups; see `ExampleGradients`."""
        chosen, starts = _joined(index)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite contributes zero
            updates = -self._residuals(params, chosen)
        step = max(_FEWEST, _NUMBERS // math.prod(self._shape))
        for first in range(0, len(starts) - 1, step):
            edges = starts[first : first + step + 1]
            part = slice(edges[0], edges[-1])
            inner, rows = _means(self._x[chosen[part]], updates[part], edges - edges[0])
            values = rows.values.reshape(-1, *params[self._name].shape[1:])
            found: dict[str, np.ndarray | Block] = {self._name: rows._replace(values=values)}
            yield RowStack({**found, "bias": inner} if self.biased else found)


def _means(
    x: sparse.csr_matrix, updates: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, Block]:
    """Return means over groups, of minus the residuals and of their outer products with inputs.

    Args:
        x: Of the examples, group after group.
        updates: Minus the residuals, float64 `(examples, k)`.
        starts: int64 `(groups + 1,)`, where each group starts.
    """
    sizes = np.diff(starts)
    rows: Any = x
    with np.errstate(over="ignore", invalid="ignore"):
        values = x.data[:, np.newaxis] * np.repeat(updates, np.diff(x.indptr), axis=0)
        if len(updates) > len(sizes):
            each = (values[:, np.newaxis], x.indices, x.indptr)
            shape = (len(updates), _size_of(x)[1] * updates.shape[1])
            shares = np.repeat(1.0 / sizes, sizes)[:, np.newaxis, np.newaxis]
            mean: Any = sparse.bsr_matrix(
                (shares, np.arange(len(updates)), starts), (len(sizes), shape[0])
            )
            rows, updates = mean @ sparse.bsr_matrix(each, shape), mean @ updates
            values = rows.data[:, 0]
    return updates, Block(rows.indices.astype(np.int64), rows.indptr.astype(np.int64), values)


@dataclass(frozen=True, slots=True)
class _DenseRows:
    """Rows of a sparse matrix, which are made dense when they are read."""

    x: sparse.csr_matrix

    def __len__(self) -> int:
        return _size_of(self.x)[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        return self.x[chosen].toarray().astype(np.float32)


class MarginGradients(SparseLinearGradients):
    """A loss of the margins yz of an example's logits z, added up over these.

    y is 1 for the own class and -1 for the others; of one logit it is 1 for class 1.
    """

    @abstractmethod
    def slopes(self, margins: np.ndarray) -> np.ndarray:
        """Return the loss's derivatives by margins, float64."""

    @abstractmethod
    def losses_of(self, margins: Tensor) -> Tensor:
        """Return the losses of a tensor of margins."""

    def residual(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the losses' derivatives by logits; see `SparseLinearGradients`."""
        signs = _signs(labels, np.arange(logits.shape[1]))
        return signs * self.slopes(signs * logits)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return each example's loss; see `SparseLinearGradients`."""
        import torch

        classes = torch.arange(logits.shape[1], device=labels.device)
        return self.losses_of(_signs(labels, classes) * logits).sum(dim=1)


def _signs(labels: Any, classes: Any) -> Any:
    return 2.0 * (labels[:, None] == (classes if len(classes) > 1 else 1)) - 1.0


class LogisticGradients(MarginGradients):
    """Binary logistic regression on sparse inputs and labels 0 and 1.

    With `num_classes` it is k of them on the same inputs, each of one class against the others.
    They are one model: a gradient is bounded, and a result perturbed, over all classes together.
    """

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, num_classes: int | None = None) -> None:
        super().__init__(x, y, num_classes)
        self.loss = "logistic" if num_classes is None else "one-vs-all"

    def slopes(self, margins: np.ndarray) -> np.ndarray:
        """Return minus the probabilities of the other sign."""
        return -expit(-margins)  # without the cancellation of expit(m) - 1

    def losses_of(self, margins: Tensor) -> Tensor:
        """Return log(1 + e^-m)."""
        from torch.nn.functional import logsigmoid

        return -logsigmoid(margins)


class HingeGradients(MarginGradients):
    """A linear support vector machine on sparse inputs, with the hinge's subgradient."""

    loss = "hinge"

    def slopes(self, margins: np.ndarray) -> np.ndarray:
        """Return -1 below the corner and 0 from there on; NaN of what is not finite."""
        return np.where(np.isfinite(margins), np.where(margins < 1.0, -1.0, 0.0), np.nan)

    def losses_of(self, margins: Tensor) -> Tensor:
        """Return max(0, 1 - m)."""
        return (1.0 - margins).clamp(min=0.0)


class HuberGradients(MarginGradients):
    """A linear support vector machine whose hinge is quadratic within `width` of its corner.

    So the loss is 1/(2 width)-smooth; the width is above 0.

    Reference: Chapelle (2007), Section 2.1; Chaudhuri et al. (2011), Corollary 13.
    """

    loss = "huber-svm"

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, width: float = 0.1) -> None:
        super().__init__(x, y)
        self.width = positive_float("width", width)

    def slopes(self, margins: np.ndarray) -> np.ndarray:
        """Return the slopes, which rise from -1 to 0 around the corner."""
        return -np.clip((1.0 + self.width - margins) / (2.0 * self.width), 0.0, 1.0)

    def losses_of(self, margins: Tensor) -> Tensor:
        """Return the Huber approximation of the hinge."""
        near = (1.0 + self.width - margins).clamp(min=0.0)
        quadratic = near.clamp(max=2.0 * self.width) ** 2 / (4.0 * self.width)
        return quadratic + (near - 2.0 * self.width).clamp(min=0.0)


class SoftmaxGradients(SparseLinearGradients):
    """Multinomial logistic regression on sparse inputs."""

    loss = "softmax"

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, num_classes: int) -> None:
        super().__init__(x, y, num_classes)

    def residual(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return probabilities, less 1 for the own class; see `SparseLinearGradients`."""
        with np.errstate(invalid="ignore"):  # infinite logits: NaN, and so a zero contribution
            shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
            shares /= shares.sum(axis=1, keepdims=True)
            examples = np.arange(len(labels))
            shares[examples, labels] = 0.0
            shares[examples, labels] = -shares.sum(axis=1)  # without the cancellation of p - 1
        return shares

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return cross-entropies; see `SparseLinearGradients`."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, labels, reduction="none")


class UnbiasedSoftmaxGradients(SoftmaxGradients):
    """Multinomial logistic regression without a bias, whose params are the kernel alone."""

    biased = False


class LinearRegressionGradients(SparseLinearGradients):
    """Least squares without a bias, loss ½ (x·w - y)².

    Args:
        x: float32 `(n, d)`, dense or CSR.
        y: Targets `(n,)`.
    """

    loss, biased, of_classes = "squared_error", False, False

    def __init__(self, x: np.ndarray | sparse.csr_matrix, y: np.ndarray) -> None:
        super().__init__(sparse.csr_matrix(x), y)

    def residual(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the errors; see `SparseLinearGradients`."""
        return logits - labels[:, np.newaxis]

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return half the squared errors; see `SparseLinearGradients`."""
        return (logits[:, 0] - labels).square() / 2.0
