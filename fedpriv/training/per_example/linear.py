"""Linear models seen one example at a time, in closed form: `ExampleGradients` of three of them.

===========================  ==================================  ===============================
model                        params                              loss
===========================  ==================================  ===============================
`LogisticGradients`          weight `(d,)`, bias `(1,)`          log-loss of one logit
`SoftmaxGradients`           kernel `(d, k)`, bias `(k,)`        cross-entropy of k logits
`LinearRegressionGradients`  weight `(d,)`                       half the squared error
===========================  ==================================  ===============================

The first two take sparse inputs and never make an example's gradient dense; logits, residuals,
norms and sums are float64.

>>> from fedpriv.mechanisms import Clip
>>> toy = LinearRegressionGradients(np.array([[3.0, 4.0]], np.float32), np.array([-1.0]))
>>> total = toy.bounded_sum(
...     {"weight": np.zeros(2, np.float32)}, np.array([0]), Clip(l2_clip_norm=1.0)
... )
>>> [round(float(value), 5) for value in total["weight"]]
[-0.6, -0.8]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import sparse
from scipy.special import expit, log_expit

from fedpriv.mechanisms.bound import Bound
from fedpriv.rng import Key
from fedpriv.training.evaluate import Metrics, Total
from fedpriv.training.per_example.sparse_sums import (
    LinearMap,
    SparseRows,
    bounded_outer_sum,
    factors_of,
    joined,
    positions,
)
from fedpriv.tree import Params

# Examples whose logits are held at a time where all may be asked for.
_CHUNK = 1 << 12


class _SparseLinear:
    """What the two models on sparse inputs share: everything but the residual."""

    def __init__(
        self,
        x: sparse.csr_matrix,
        y: np.ndarray,
        *,
        name: str,
        num_classes: int,
        residual: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        self._rows = SparseRows.of(x)
        self._labels = _labels(y, self._rows.num_examples, max(num_classes, 2))
        self._name = name
        self._shape = (self._rows.num_inputs, num_classes)
        self._residual = residual

    @property
    def num_examples(self) -> int:
        """Examples in the set."""
        return self._rows.num_examples

    def bounded_sum(
        self, params: Params, index: np.ndarray, bound: Bound, key: Key | None = None
    ) -> Params:
        """Return Σ bound(-∇f_i) over examples, float64; see `ExampleGradients`."""
        return self._sum(params, positions(index, self.num_examples), None, bound)

    def grouped_sum(
        self,
        params: Params,
        groups: Sequence[np.ndarray],
        bound: Bound,
        key: Key | None = None,
    ) -> Params:
        """Return Σ bound(mean of -∇f_i over the group), float64; see `ExampleGradients`.

        Raises:
            ValueError: If a group is empty.
        """
        return self._sum(params, *joined(groups, self.num_examples), bound)

    def float_error(self, *, mixed: bool = False) -> float:
        """Return the float64 error of its sums; see `SumsApart`.

        A sum of n contributions rounds by at most n 2^-53 of what is summed, n bounds at most, and
        so does the one without the example. Logits, residuals and norms are taken row by row: what
        else is in the batch changes no bit of a contribution, and 2^-40 each is left for it.

        Of a mixture the examples' own parts are summed first, and the offset is added once. Where
        the two cancel to a hundredth of the offset (below that they are added before) the own part
        is as long as 101 bounds, and so much larger is what its sums round by.
        """
        number = self.num_examples
        longest = 128.0 if mixed else 1.0
        return 2.0 * longest * number**2 * 2.0**-53 + number * 2.0**-40

    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over examples, float32.

        Raises:
            ValueError: If there are no examples.
        """
        from fedpriv.kernels.sparse_rows import add_outer

        chosen = _some(positions(index, self.num_examples))
        kernel, bias = _linear(params, self._name, self._shape)
        total, bias_total = np.zeros(self._shape), np.zeros(self._shape[1])
        none = np.zeros((0, 0), np.float32)
        for start in range(0, len(chosen), _CHUNK):
            part = chosen[start : start + _CHUNK]
            residuals = self._residuals(part, kernel, bias) / len(chosen)
            add_outer(*self._rows.arrays, part, residuals, none, total)
            bias_total += residuals.sum(axis=0)
        return self._named(params, total.astype(np.float32), bias_total.astype(np.float32))

    def _residuals(self, chosen: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return self._residual(self._rows.logits(chosen, kernel, bias), self._labels[chosen])

    def _sum(
        self, params: Params, chosen: np.ndarray, starts: np.ndarray | None, bound: Bound
    ) -> Params:
        kernel, bias = _linear(params, self._name, self._shape)
        residuals = self._residuals(chosen, kernel, bias)
        public = LinearMap.of(bound, self._name, self._shape)
        total, bias_total = bounded_outer_sum(self._rows, chosen, starts, residuals, public, bound)
        return self._named(params, total, bias_total)

    def _named(self, params: Params, matrix: np.ndarray, bias: np.ndarray) -> Params:
        return {self._name: matrix.reshape(params[self._name].shape), "bias": bias}


class LogisticGradients(_SparseLinear):
    """Binary logistic regression on sparse inputs.

    Args:
        x: CSR `(n, d)`, float32.
        y: Integers 0 and 1 `(n,)`.

    Raises:
        ValueError: If labels and inputs do not fit together.
    """

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray) -> None:
        super().__init__(x, y, name="weight", num_classes=1, residual=_logistic_residual)


class SoftmaxGradients(_SparseLinear):
    """Multinomial logistic regression on sparse inputs.

    Args:
        x: CSR `(n, d)`, float32.
        y: Classes `(n,)`, integers from 0.
        num_classes: k.

    Raises:
        ValueError: If labels, inputs and classes do not fit together.
    """

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, num_classes: int) -> None:
        if num_classes < 2:
            raise ValueError(f"num_classes {num_classes} must be at least 2")
        super().__init__(x, y, name="kernel", num_classes=num_classes, residual=_softmax_residual)


class LinearRegressionGradients:
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

    def bounded_sum(
        self, params: Params, index: np.ndarray, bound: Bound, key: Key | None = None
    ) -> Params:
        """Return Σ bound(-∇f_i) over examples, float64; see `ExampleGradients`."""
        return self._sum(params, positions(index, self.num_examples), None, bound)

    def grouped_sum(
        self,
        params: Params,
        groups: Sequence[np.ndarray],
        bound: Bound,
        key: Key | None = None,
    ) -> Params:
        """Return Σ bound(mean of -∇f_i over the group), float64; see `ExampleGradients`.

        Raises:
            ValueError: If a group is empty.
        """
        return self._sum(params, *joined(groups, self.num_examples), bound)

    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over examples, float32.

        Raises:
            ValueError: If there are no examples.
        """
        chosen = _some(positions(index, self.num_examples))
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
        return inputs, inputs @ weight.astype(np.float64) - self._y[chosen]

    def _sum(
        self, params: Params, chosen: np.ndarray, starts: np.ndarray | None, bound: Bound
    ) -> Params:
        if not len(chosen):
            return {"weight": np.zeros(self._x.shape[1])}
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite contributes zero
            inputs, residuals = self._residuals(params, chosen)
            updates = inputs * -residuals[:, np.newaxis]
            if starts is not None:
                updates = np.add.reduceat(updates, starts[:-1], axis=0)
                updates /= np.diff(starts)[:, np.newaxis]
            if bound.mixture is not None:
                updates = np.float32(bound.mixture.own) * updates + bound.mixture.offset["weight"]
            if "weight" in bound.multiplier:
                updates = updates * bound.multiplier["weight"]
            norms = np.sqrt(np.einsum("gd,gd->g", updates, updates))
            factors = factors_of(bound, norms, updates.shape[1])
        kept = factors != 0.0
        return {"weight": factors[kept] @ updates[kept]}


def linear_metrics(params: Params, x: sparse.csr_matrix | SparseRows, y: np.ndarray) -> Metrics:
    """Return "accuracy" and "loss", in nats and float64, of a model on sparse inputs.

    Args:
        params: Of `LogisticGradients` (by its "weight") or `SoftmaxGradients` (by its "kernel").
        x: CSR `(n, d)`; or its `SparseRows`, made once where it is measured often.
        y: Classes `(n,)`. Ties go to the lowest class.

    Raises:
        ValueError: If there are no examples, or shapes or labels do not fit.
    """
    rows = x if isinstance(x, SparseRows) else SparseRows.of(x)
    binary = "weight" in params
    num_classes = 1 if binary else params["kernel"].shape[1]
    shape = (rows.num_inputs, num_classes)
    kernel, bias = _linear(params, "weight" if binary else "kernel", shape)
    labels = _labels(y, rows.num_examples, max(num_classes, 2))
    everything = _some(np.arange(rows.num_examples))
    right, loss = 0, 0.0
    for start in range(0, len(everything), _CHUNK):
        part = everything[start : start + _CHUNK]
        logits, truth = rows.logits(part, kernel, bias), labels[part]
        if binary:
            logit = logits[:, 0]
            right += int(np.count_nonzero((logit > 0) == (truth == 1)))
            loss -= float(log_expit(np.where(truth == 1, logit, -logit)).sum())
        else:
            right += int(np.count_nonzero(logits.argmax(axis=1) == truth))
            peak = logits.max(axis=1)
            with np.errstate(invalid="ignore"):  # diverged params have a loss that is NaN
                total = np.exp(logits - peak[:, np.newaxis]).sum(axis=1)
                loss += float((np.log(total) + peak - logits[np.arange(len(part)), truth]).sum())
    number = len(everything)
    totals = {"accuracy": Total(sum=right, count=number), "loss": Total(sum=loss, count=number)}
    return Metrics(totals=totals, num_examples=number)


def _logistic_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    sign = (1.0 - 2.0 * labels)[:, np.newaxis]
    return sign * expit(sign * logits)  # without the cancellation of expit(logit) - 1


def _softmax_residual(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # infinite logits: NaN, and so a zero contribution
        shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        shares /= shares.sum(axis=1, keepdims=True)
        examples = np.arange(len(labels))
        shares[examples, labels] = 0.0
        shares[examples, labels] = -shares.sum(axis=1)  # without the cancellation of p - 1
    return shares


def _linear(params: Params, name: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return kernel and bias as float32 matrix and row; refuse what compiled loops cannot take."""
    kernel, bias = params[name], params["bias"]
    allowed = (shape, shape[:1]) if shape[1] == 1 else (shape,)
    if kernel.shape not in allowed or bias.shape != shape[1:]:
        raise ValueError(
            f"{name} {kernel.shape} and bias {bias.shape} do not fit {shape[0]} inputs and "
            f"{shape[1]} logits"
        )
    return (
        np.ascontiguousarray(kernel, np.float32).reshape(shape),
        np.ascontiguousarray(bias, np.float32),
    )


def _labels(y: np.ndarray, num_examples: int, num_classes: int) -> np.ndarray:
    labels = np.asarray(y)
    if labels.shape != (num_examples,) or labels.dtype.kind not in "iub":
        raise ValueError(
            f"labels {labels.dtype}{labels.shape} must be one integer for each of {num_examples}"
        )
    labels = labels.astype(np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels {labels.min()}..{labels.max()} leave 0..{num_classes - 1}")
    return labels


def _some(chosen: np.ndarray) -> np.ndarray:
    if not len(chosen):
        raise ValueError("a mean over no examples was asked for; give at least one")
    return chosen
