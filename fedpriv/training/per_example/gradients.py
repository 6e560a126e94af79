"""What the centralised trainer asks of a model: bounded sums over single examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.tree import Params


class ExampleGradients(Protocol):
    """A model on a training set, seen one example at a time.

    An example's update is minus its gradient, so that the server adds what it is given, as in a
    federated round with one local step of rate 1.
    """

    def bounded_sum(
        self, params: Params, index: np.ndarray, bound: Bound, key: Key | None = None
    ) -> Params:
        """Return Σ bound(-∇f_i(params)) over examples.

        Args:
            params: float32, not changed.
            index: int64 `(b,)`, distinct positions in the training set; may be empty.
            bound: Includes what comes before it: mixture and multiplier.
            key: For models that draw at random while they train; every example folds its own.

        Returns:
            float64 dense arrays. An example whose gradient is not finite contributes zero, alone.

        Guarantees:
            * Each example, added or removed, moves the sum by at most `bound.l2_bound` in l2, to
              the rounding of float32 sums (a part in 10^6). For a module of your own that holds
              as far as examples are kept apart: `fedpriv.training.per_example.backends` says what
              its trial finds, and what it cannot see.
        """
        ...

    def grouped_sum(
        self,
        params: Params,
        groups: Sequence[np.ndarray],
        bound: Bound,
        key: Key | None = None,
    ) -> Params:
        """Return Σ bound(mean of -∇f_i over the group) over groups: micro-batches.

        Each *group* moves the sum by at most `bound.l2_bound`, an example by twice that.
        """
        ...

    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over examples, float32: for public data, nothing bounded."""
        ...


@runtime_checkable
class SumsApart(Protocol):
    """Gradients that are taken apart and summed in float64, to a stated error.

    What makes a sum that can be rounded once, and hardened (`fedpriv.mechanisms.RoundedSum`).
    """

    def float_error(self, *, mixed: bool = False) -> float:
        """Return how far the sums with and without an example may differ beyond its own.

        In l2, over the bound of a contribution, whichever example and batch it is: the rounding of
        both sums, and whatever the others' computed contributions change with the batch.

        Args:
            mixed: Whether contributions are mixed with a public update (`Bound.mixture`).
        """
        ...
