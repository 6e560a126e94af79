"""The strategies that laws are stated over, and their matrices, of the oracle."""

from __future__ import annotations

import numpy as np

from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.correlated.optimise import (
    optimised_bands,
    optimised_buffers,
    square_root_bands,
)
from fedpriv.mechanisms.correlated.toeplitz import Banded, Buffered, on_scale
from fedpriv.mechanisms.privatizer import Participation
from tests.oracles import recycling

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
TREES = [name for name, one in STRATEGIES.items() if isinstance(one, BinaryTree)]


def matrix(strategy):
    """Return C of a Toeplitz strategy `(T, T)`, or the 0/1 matrix of a tree's nodes over rows."""
    if isinstance(strategy, BinaryTree):
        return recycling.tree_matrix(strategy.num_rows, strategy.restart, strategy.completion)
    if isinstance(strategy, Buffered):
        return recycling.blt_matrix(ROWS, strategy.outputs, strategy.decays)
    return recycling.banded_matrix(ROWS, strategy.coefficients)


def worst(strategy, limit: Participation):
    """Return the largest ‖C u‖ over patterns, every contribution the same unit vector."""
    return recycling.sensitivity(matrix(strategy), limit.min_separation, limit.most)
