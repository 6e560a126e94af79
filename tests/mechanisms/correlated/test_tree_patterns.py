"""Sensitivity of small binary trees, against every pattern of a user's rows."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from fedpriv.mechanisms.correlated.binary_tree import BinaryTree
from fedpriv.mechanisms.privatizer import Participation


def nodes(rows):
    """Complete nodes of one tree, as ranges of rows."""
    heights = range(rows.bit_length())
    return [
        range(first, first + 2**h) for h in heights for first in range(0, rows - 2**h + 1, 2**h)
    ]


def worst(rows, most, apart):
    """The furthest that unit contributions in the same direction move the nodes' sums."""
    return max(
        sum(sum(row in node for row in own) ** 2 for node in nodes(rows))
        for count in range(1, most + 1)
        for own in combinations(range(rows), count)
        if all(b - a >= apart for a, b in pairwise(own))
    )


@pytest.mark.parametrize("rows", range(1, 12))
def test_it_is_never_below_the_worst_pattern_and_seldom_above(rows):
    reached = 0
    limits = [(most, apart) for most in (1, 2, 3) for apart in (1, 2, 3, 4)]
    for most, apart in limits:
        said = BinaryTree(num_rows=rows).sensitivity(Participation(most=most, min_separation=apart))
        found = np.sqrt(worst(rows, most, apart))
        assert said >= found - 1e-9, (most, apart)
        reached += said <= found + 1e-9
    assert reached >= 0.7 * len(limits)


def test_a_part_of_one_row_is_priced_alone_only_where_a_tree_has_one_row_of_a_user():
    tree = BinaryTree(num_rows=12, restart=4)
    assert tree.one_row(Participation(most=3, min_separation=4, num_rows=12)) == np.sqrt(3)
    assert tree.one_row(Participation(most=3, min_separation=3, num_rows=12)) is None
