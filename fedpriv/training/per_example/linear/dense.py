"""Least squares on dense inputs."""

from __future__ import annotations

import numpy as np

from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.training.per_example.linear.checks import nonempty
from fedpriv.training.per_example.linear.summed import RowSums
from fedpriv.training.per_example.sparse_sums import factors_of, positions
from fedpriv.tree import Params


class LinearRegressionGradients(RowSums):
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
