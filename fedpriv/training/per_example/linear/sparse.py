"""Linear models on sparse inputs: no example's gradient is ever made dense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import numpy as np
from scipy import sparse

from fedpriv.mechanisms.bounds import Bound
from fedpriv.ranges import positive_float
from fedpriv.rng import Key
from fedpriv.training.line_search.linear import (
    Losses,
    hinge_losses,
    hinge_residual,
    huber_losses,
    huber_residual,
    logistic_losses,
    logistic_residual,
    losses_on_line,
    one_vs_all_losses,
    one_vs_all_residual,
    softmax_losses,
    softmax_residual,
)
from fedpriv.training.per_example.linear.checks import (
    CHUNK,
    checked_labels,
    kernel_and_bias,
    nonempty,
)
from fedpriv.training.per_example.linear.summed import RowSums
from fedpriv.training.per_example.sparse_sums import (
    LinearMap,
    SparseRows,
    bounded_outer_sum,
    positions,
)
from fedpriv.training.permutation.constants import (
    Constants,
    huber_svm,
    logistic,
    one_vs_all,
    softmax,
)
from fedpriv.training.permutation.sgd import Passes, PermutationSgd
from fedpriv.tree import Params

# Above this share of entries that are not zero, products of dense rows are quicker.
_DENSE = 0.3


def _not_smooth(**_: float) -> NoReturn:
    raise ValueError(
        "the hinge is not smooth, so that two runs of SGD need not stay close; use HuberGradients"
    )


class _SparseLinear(RowSums):
    """What the two models on sparse inputs share: everything but the residual."""

    def __init__(
        self,
        x: sparse.csr_matrix,
        y: np.ndarray,
        *,
        name: str,
        num_classes: int,
        residual: Losses,
        losses: Losses,
        constants: Callable[..., Constants],
    ) -> None:
        self._rows = SparseRows.of(x)
        self._labels = checked_labels(y, self._rows.num_examples, max(num_classes, 2))
        self._name = name
        self._shape = (self._rows.num_inputs, num_classes)
        self._residual, self._losses, self._constants = residual, losses, constants

    @property
    def num_examples(self) -> int:
        """Examples in the set."""
        return self._rows.num_examples

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

        chosen = nonempty(positions(index, self.num_examples))
        kernel, bias = kernel_and_bias(params, self._name, self._shape)
        total, bias_total = np.zeros(self._shape), np.zeros(self._shape[1])
        none = np.zeros((0, 0), np.float32)
        for start in range(0, len(chosen), CHUNK):
            part = chosen[start : start + CHUNK]
            residuals = self._residuals(part, kernel, bias) / len(chosen)
            add_outer(*self._rows.arrays, part, residuals, none, total)
            bias_total += residuals.sum(axis=0)
        return self._named(params, total.astype(np.float32), bias_total.astype(np.float32))

    def permutation_sgd(self, passes: Passes, *, regulariser: float) -> PermutationSgd:
        """Return permutation SGD on all examples, of inputs within the unit ball."""
        indptr, indices, values = self._rows.arrays
        x = sparse.csr_matrix((values, indices, indptr), shape=(self.num_examples, self._shape[0]))
        dense = x.nnz > _DENSE * self.num_examples * self._shape[0]
        return PermutationSgd(
            x=x.toarray() if dense else x,
            y=self._labels,
            name=self._name,
            residual=self._residual,
            constants=self._constants(regulariser=regulariser),
            passes=passes,
        )

    def losses_along(
        self, params: Params, direction: Params, sizes: Sequence[float], index: np.ndarray
    ) -> np.ndarray:
        """Return losses, float64 (examples, sizes); see `line_search.of_examples`."""
        chosen = positions(index, self.num_examples)
        here, change = (
            self._rows.logits(chosen, *kernel_and_bias(own, self._name, self._shape))
            for own in (params, direction)
        )
        return losses_on_line(here, change, sizes, self._labels[chosen], self._losses)

    def _residuals(self, chosen: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return self._residual(self._rows.logits(chosen, kernel, bias), self._labels[chosen])

    def _sum(
        self, params: Params, chosen: np.ndarray, starts: np.ndarray | None, bound: Bound
    ) -> Params:
        kernel, bias = kernel_and_bias(params, self._name, self._shape)
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
        super().__init__(
            x,
            y,
            name="weight",
            num_classes=1,
            residual=logistic_residual,
            losses=logistic_losses,
            constants=logistic,
        )


class HingeGradients(_SparseLinear):
    """A linear support vector machine on sparse inputs, with the hinge's subgradient.

    Arguments and errors are those of `LogisticGradients`.
    """

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray) -> None:
        super().__init__(
            x,
            y,
            name="weight",
            num_classes=1,
            residual=hinge_residual,
            losses=hinge_losses,
            constants=_not_smooth,
        )


class HuberGradients(_SparseLinear):
    """A linear support vector machine whose hinge is smooth: quadratic around its corner.

    Args:
        x: As of `LogisticGradients`.
        y: Likewise.
        width: h, half the quadratic part's width; the loss is 1/(2h)-smooth.

    Raises:
        ValueError: If labels and inputs do not fit together, or the width is not positive.
    """

    def __init__(self, x: sparse.csr_matrix, y: np.ndarray, width: float = 0.1) -> None:
        width = positive_float("width", width)
        super().__init__(
            x,
            y,
            name="weight",
            num_classes=1,
            residual=huber_residual(width),
            losses=huber_losses(width),
            constants=partial(huber_svm, width=width),
        )


class OneVsAllGradients(_SparseLinear):
    """k logistic regressions on the same sparse inputs, each of one class against the others.

    They are one model: a gradient is bounded, and a result perturbed, over all classes together.

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
        super().__init__(
            x,
            y,
            name="kernel",
            num_classes=num_classes,
            residual=one_vs_all_residual,
            losses=one_vs_all_losses,
            constants=partial(one_vs_all, num_classes),
        )


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
        super().__init__(
            x,
            y,
            name="kernel",
            num_classes=num_classes,
            residual=softmax_residual,
            losses=softmax_losses,
            constants=softmax,
        )
