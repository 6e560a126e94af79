"""Binary-tree strategy: noise on every node; prefix sums from the fewest nodes, or all that help.

The mechanism answers the sum of every complete node of a binary tree over rows, each with noise of
its own; row t gets the difference of two prefixes' noise. The efficient form weighs a node against
its children by inverse variance (Honaker 2015, the estimate from below): at height h that leaves
1 / (2 - 2^-h) of a node's variance.

Nodes are sums of rows with whole weights, on the grid itself, and an estimate is made of answered
nodes alone, rounded where they are whole: rows need no finer numbers, and have no slack.

A tree may be restarted every so many rows (`restart`), after which a user's rows of earlier trees
no longer add up with later ones. Completion then goes on as if the tree had been filled with rows
of nothing, so that what is left in the sum is one node's noise (Kairouz et al. 2021; Appendix D by
the published code).

References: Dwork, Naor, Pitassi and Rothblum (2010); Chan, Shi and Song (2011).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedpriv.mechanisms.correlated.noise import Fresh, Strategy, checked_rows
from fedpriv.mechanisms.privatizer import Participation
from fedpriv.parts import PositiveInt
from fedpriv.rng import Key

_ANY_KEY = Key.simulation(0)  # where no noise is drawn
_SCALE = 16  # weights are whole multiples of 2^-16: whole rows are made of the very same

Estimate = Literal["efficient", "vanilla"]
_Held = dict[int, np.ndarray]
"""Estimates of a prefix's nodes by their heights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryTree(Strategy):
    """Binary-tree aggregation over rounds, in one tree or restarted.

    Attributes:
        num_rows: T.
        restart: Rows of a tree; None for one tree of all.
        estimate: "efficient", or "vanilla", which leaves children alone.
        completion: Whether a tree that ends is completed; with `restart` only.

    Raises:
        ValueError: If a number is out of range, there are too many rows, or trees are completed
            that never end.
    """

    num_rows: int
    restart: PositiveInt | None = None
    estimate: Estimate = "efficient"
    completion: bool = False

    def check(self) -> None:
        """Refuse too many rows, and trees that are completed and never end."""
        checked_rows("tree", self.num_rows)
        if self.completion and (self.restart is None or self.restart >= self.num_rows):
            raise ValueError("completion is of a tree that ends; give restart below the rows")

    name = "tree"

    @property
    def steps(self) -> int:
        """Rows of the largest tree."""
        return min(self.restart or self.num_rows, self.num_rows)

    @property
    def num_trees(self) -> int:
        """Number of trees."""
        return -(-self.num_rows // self.steps)

    @property
    def description(self) -> str:
        """Description for plans and statements."""
        trees = "one binary tree" if self.num_trees == 1 else f"{self.num_trees:,} binary trees"
        completed = ", completed" if self.completion else ""
        return f"{trees} of {self.steps:,} rows, {self.estimate} estimates{completed}"

    def _height(self, tree: int) -> int:
        """Return the height of the highest node that a tree answers; leaves have 0."""
        steps = self._rows_of(tree)
        return (steps - 1 if self._completes(tree) else steps // 2).bit_length()

    def _completes(self, tree: int) -> bool:
        return self.completion and tree < self.num_trees - 1

    def sensitivity(self, participation: Participation) -> float:
        """Return an upper bound, reached in most small cases and at most 4.3 % too large in others.

        Against brute force over every pattern of one tree (T <= 20, b <= 6, at most 5 rows of a
        user) it is exact in 376 of 388 cases. The others have b = 3: of 13 rows and 4 of a user, it
        is 5 for √23.

        Nodes of one height and one tree are disjoint, and those that are answered cover n_h rows.
        Of a user's rows, at least b apart, at most ⌈n_h / b⌉ lie there, and at most m = ⌈2^h / b⌉
        below one node: k of them have a sum of squares of at most ⌊k/m⌋ m² + (k mod m)². How a
        user's rows are shared out among trees is tried in every way.
        """
        apart, count = participation.min_separation, participation.count
        found = np.zeros(count + 1)  # the worst with so many rows in the trees so far
        for tree in range(self.num_trees):
            steps = self._rows_of(tree)
            worst = found
            for here in range(1, min(count, -(-steps // apart)) + 1):
                added = np.full(count + 1, -np.inf)
                added[here:] = found[: count + 1 - here] + self._squared(tree, here, apart)
                worst = np.maximum(worst, added)
            found = worst
        return float(np.sqrt(found.max()))

    def _squared(self, tree: int, rows: int, apart: int) -> float:
        """Return a bound on the square of how far so many rows of a user move one tree's nodes."""
        steps, squared = self._rows_of(tree), 0
        for height in range(self._height(tree) + 1):
            length = 1 << height
            covered = steps if self._completes(tree) else steps // length * length
            below, most = min(rows, -(-covered // apart)), -(-length // apart)
            squared += below // most * most**2 + (below % most) ** 2
        return float(squared)

    def _rows_of(self, tree: int) -> int:
        return min(self.steps, self.num_rows - tree * self.steps)

    def one_row(self, participation: Participation) -> float | None:
        """Return the square root of a tree's depth, where a user has one row a tree."""
        if participation.count > 1 and participation.min_separation < self.steps:
            return None
        return float(np.sqrt(1 + max(self._height(tree) for tree in range(self.num_trees))))

    def _place(self, row: int) -> tuple[int, int, int]:
        """Return a row's tree, its number there from 1, and the height of what it completes."""
        tree, within = divmod(row - 1, self.steps)
        number = within + 1
        return tree, number, (number & -number).bit_length() - 1

    def _variances(self, top: int) -> list[float]:
        """Return the variance of an estimate at each height."""
        found = [1.0]
        for _ in range(top):
            found.append(_merged(2.0 * found[-1], self.estimate)[1])
        return found

    def _as_vectors(self, number: int) -> tuple[_Held, Fresh]:
        """Return the estimates after so many rows of a tree, and draws, as independent vectors.

        In the place of noise, so that the square of a row's length is the variance of its noise.
        """
        units, known = iter(np.eye(64)), self._variances(number.bit_length())
        held = {
            h: math.sqrt(known[h]) * next(units)
            for h in range(number.bit_length())
            if number >> h & 1
        }
        return held, lambda key: next(units).copy()

    def prefix_variance(self) -> np.ndarray:
        """Return the sum of the variances of a prefix's nodes, and of what earlier trees left."""
        held, fresh = self._as_vectors(self.steps)
        left = sum(held.values(), np.zeros(64))
        left = _plus(self._ended(held, _ANY_KEY, fresh), left)
        tree, within = np.divmod(np.arange(self.num_rows), self.steps)
        heights = np.arange(self.steps.bit_length())
        nodes = (within + 1)[:, np.newaxis] >> heights & 1
        return tree * (left @ left) + nodes @ self._variances(len(heights))[: len(heights)]

    def row_variance(self) -> np.ndarray:
        """Return the variance of each row's noise: of one row of each kind, made of vectors."""
        known, found = dict[tuple[int, bool], float](), np.empty(self.num_rows)
        for row in range(1, self.num_rows + 1):
            tree, number, height = self._place(row)
            ends = number == 1 and tree > 0  # the tree before
            if (height, ends) not in known:
                held, fresh = self._as_vectors(self.steps if ends else number - 1)
                made = self._next(held, row, _ANY_KEY, fresh)
                known[height, ends] = float(made @ made)
            found[row - 1] = known[height, ends]
        return found

    def rows(self, key: Key, fresh: Fresh, *, bits: int | None = None) -> Iterator[np.ndarray]:
        """Yield the noise of the prefix up to each row, less that of the prefix before."""
        held: _Held = {}
        for row in range(1, self.num_rows + 1):
            yield self._next(held, row, key, fresh)

    def _next(self, held: _Held, row: int, key: Key, fresh: Fresh) -> np.ndarray:
        """Return a row from the nodes of the prefix before it; put its own in their place."""
        tree, number, height = self._place(row)
        out = self._ended(held, key.fold(tree - 1), fresh) if number == 1 and tree else None
        nodes = key.fold(tree)
        estimate = fresh(nodes.fold(0).fold(number))
        known = self._variances(height)
        for h in range(1, height + 1):
            own, below = fresh(nodes.fold(h).fold(number >> h)), held.pop(h - 1)
            share = _merged(2.0 * known[h - 1], self.estimate)[0]
            out = _plus(out, -below)
            estimate = _merge(own, below + estimate, share)
        held[height] = estimate
        return _plus(out, estimate.copy())

    def _ended(self, held: _Held, key: Key, fresh: Fresh) -> np.ndarray | None:
        """Drop a tree's nodes; return what its completion adds to the sum, if it is completed."""
        ended = {h: held.pop(h) for h in range(self.steps.bit_length()) if self.steps >> h & 1}
        if not self.completion or len(ended) == 1:
            return None
        known = self._variances(self.steps.bit_length())
        out: np.ndarray | None = None
        below: np.ndarray | None = None
        variance = 0.0
        for h in range((self.steps - 1).bit_length()):
            if h in ended:
                out, below = _plus(out, -ended[h]), _plus(below, ended[h])
                variance += known[h]
            if below is not None:
                share, variance = _merged(variance, self.estimate)
                own = fresh(key.fold(h + 1).fold((self.steps + (2 << h) - 1) >> (h + 1)))
                below = _merge(own, below, share)
        assert below is not None
        return _plus(out, below)


def _merged(children: float, estimate: Estimate) -> tuple[float, float]:
    """Return the weight of a node against its children, and the variance of the two together."""
    if estimate == "vanilla":
        return 1.0, 1.0
    share = round(children / (1.0 + children) * 2**_SCALE) / 2**_SCALE
    return share, share**2 + (1.0 - share) ** 2 * children


def _merge(own: np.ndarray, children: np.ndarray, share: float) -> np.ndarray:
    """Return the weighted mean of a node and its children, in the node's own memory."""
    if share == 1.0:
        return own
    if own.dtype == np.int64:
        from fedpriv.kernels.streams import merge_whole

        flat = np.ascontiguousarray(children).reshape(-1)
        merge_whole(own.reshape(-1), flat, int(share * 2**_SCALE), _SCALE)
        return own
    own *= np.float32(share)
    own += np.float32(1.0 - share) * children
    return own


def _plus(total: np.ndarray | None, array: np.ndarray) -> np.ndarray:
    return array if total is None else total + array
