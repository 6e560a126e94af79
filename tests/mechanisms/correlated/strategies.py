"""The strategies that laws are stated over, and their matrices, written out in full."""

from __future__ import annotations

import itertools

import numpy as np

from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.optimise import (
    optimised_bands,
    optimised_buffers,
    square_root_bands,
)
from fedpriv.mechanisms.correlated.toeplitz import Banded, Buffered, on_scale
from fedpriv.mechanisms.privatizer import Participation

ROWS = 22
LIMIT = Participation(most=4, min_separation=6, num_rows=ROWS)
STRATEGIES = {
    "one band": square_root_bands(1, ROWS),
    "square-root bands": square_root_bands(6, ROWS),
    "optimised bands": optimised_bands(6, LIMIT),
    "all bands": square_root_bands(ROWS, ROWS),
    "bands of both signs": Banded(coefficients=(1.0, -0.5, 0.25), num_rows=ROWS),
    "no buffer": Buffered(outputs=(), decays=(), num_rows=ROWS),
    "buffers": optimised_buffers(2, LIMIT),
    "slow buffer": Buffered(
        outputs=(on_scale(np.array(0.01)).item(), 0.375),
        decays=(1.0 - 2.0**-12, 0.75),
        num_rows=ROWS,
    ),
    "tree": BinaryTree(num_rows=ROWS),
    "vanilla tree": BinaryTree(num_rows=ROWS, estimate="vanilla"),
    "trees": BinaryTree(num_rows=ROWS, restart=6),
    "vanilla trees": BinaryTree(num_rows=ROWS, restart=6, estimate="vanilla"),
    "completed trees": BinaryTree(num_rows=ROWS, restart=6, completion=True),
    "completed vanilla trees": BinaryTree(
        num_rows=ROWS, restart=7, completion=True, estimate="vanilla"
    ),
    "completed trees of a power of two": BinaryTree(num_rows=ROWS, restart=8, completion=True),
}
TOEPLITZ = [name for name, one in STRATEGIES.items() if not isinstance(one, BinaryTree)]
TREES = [name for name, one in STRATEGIES.items() if isinstance(one, BinaryTree)]


def column(strategy) -> np.ndarray:
    """Return the first column of C of a Toeplitz strategy, from its attributes alone."""
    if isinstance(strategy, Buffered):
        pairs = list(zip(strategy.outputs, strategy.decays, strict=True))
        rest = [sum(a * d ** (t - 1) for a, d in pairs) for t in range(1, ROWS)]
        return np.array([1.0, *rest])
    given = list(strategy.coefficients)
    return np.array(given + [0.0] * (ROWS - len(given)))


def matrix(strategy) -> np.ndarray:
    """Return C of a Toeplitz strategy `(T, T)`, or the 0/1 matrix of a tree's nodes over rows."""
    if isinstance(strategy, BinaryTree):
        return nodes(strategy)
    first = column(strategy)
    return np.array([[first[i - j] if i >= j else 0.0 for j in range(ROWS)] for i in range(ROWS)])


def nodes(strategy: BinaryTree) -> np.ndarray:
    """Return which rows every answered node is the sum of, `(nodes, T)`."""
    found = []
    for tree in range(strategy.num_trees):
        start = tree * strategy.steps
        steps = min(strategy.steps, strategy.num_rows - start)
        completes = strategy.completion and tree < strategy.num_trees - 1
        length = 1
        while length <= steps or (completes and length < 2 * steps):
            for place in range(0, steps, length):
                if place + length <= steps or completes:
                    one = np.zeros(strategy.num_rows)
                    one[start + place : start + min(place + length, steps)] = 1.0
                    found.append(one)
            length *= 2
    return np.array(found)


def patterns(limit: Participation):
    """Yield every set of rows that a limit allows, rows from 0."""
    assert limit.num_rows is not None
    for size in range(1, limit.most + 1):
        for rows in itertools.combinations(range(limit.num_rows), size):
            if all(j - i >= limit.min_separation for i, j in itertools.pairwise(rows)):
                yield rows
