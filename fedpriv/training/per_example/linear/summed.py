"""Sums over batches and over groups, of gradients that know how to sum rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.training.per_example.sparse_sums import joined, positions
from fedpriv.tree import Params


class RowSums(ABC):
    """The two sums of `ExampleGradients`, from one method that sums rows or means of rows."""

    @property
    @abstractmethod
    def num_examples(self) -> int:
        """Examples in the set."""

    @abstractmethod
    def _sum(
        self, params: Params, chosen: np.ndarray, starts: np.ndarray | None, bound: Bound
    ) -> Params:
        """Return the sum over rows, or over means of groups of them that start where it says."""

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
