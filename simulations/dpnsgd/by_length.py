"""Examples of like length together, so that little padding goes through a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedpriv.mechanisms.bounds import Bound
from fedpriv.rng import Key
from fedpriv.training.per_example.example_sum import ExampleGradients
from fedpriv.tree import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLength:
    """Gradients of padded rows, each row cut to the narrowest width that holds all of it.

    Which width a row is cut to depends on that row alone, so an example's update (and what dropout
    draws for it) still depends on itself and its key only.

    Attributes:
        parts: By width, the model on all rows cut to it.
        place: Which part each row belongs to, int64 `(n,)`.
        after: Called after each bounded sum, to show progress.
    """

    parts: tuple[ExampleGradients, ...] = field(repr=False)
    place: np.ndarray = field(repr=False)
    after: Callable[[], None] = field(default=lambda: None, repr=False)

    def bounded_sum(
        self, params: Params, index: np.ndarray, bound: Bound, key: Key | None = None
    ) -> Params:
        """Return the sum of all parts' bounded sums, see `ExampleGradients`."""
        total: dict[str, np.ndarray] = {}
        for part, mine in self._split(index):
            for name, array in part.bounded_sum(params, mine, bound, key).items():
                total[name] = total[name] + array if name in total else array
        self.after()
        return total or dict(self.parts[0].bounded_sum(params, index, bound, key))

    def grouped_sum(
        self, params: Params, groups: Sequence[np.ndarray], bound: Bound, key: Key | None = None
    ) -> Params:
        """Return the grouped sum over rows of full width, see `ExampleGradients`."""
        return self.parts[-1].grouped_sum(params, groups, bound, key)

    def gradient(self, params: Params, index: np.ndarray, key: Key | None = None) -> Params:
        """Return the mean gradient over rows of full width, see `ExampleGradients`."""
        return self.parts[-1].gradient(params, index, key)

    def _split(self, index: np.ndarray) -> list[tuple[ExampleGradients, np.ndarray]]:
        places = self.place[index]
        split = [(part, index[places == number]) for number, part in enumerate(self.parts)]
        return [(part, mine) for part, mine in split if len(mine)]


def by_length(
    make: Callable[[np.ndarray], ExampleGradients],
    rows: np.ndarray,
    padding: int,
    widths: Sequence[int] = (16, 32),
) -> ByLength:
    """Return gradients of padded rows.

    Args:
        make: From rows `(n, width)` to the model on them; called for each width.
        rows: Token ids `(n, length)`, padded at the end.
        padding: The id that pads.
        widths: To cut to; those below `length` are used, and `length` itself.
    """
    length = rows.shape[1]
    edges = [*sorted(width for width in widths if width < length), length]
    filled = np.where(rows != padding, np.arange(1, length + 1), 0).max(axis=1)
    return ByLength(
        parts=tuple(make(rows[:, :width]) for width in edges),
        place=np.searchsorted(edges, filled),
    )
