"""Bounds with a mistake: none lets a user move the sum by more than it states."""

from dataclasses import dataclass

import numpy as np
import pytest

from fedpriv.mechanisms import Clip, Rounded
from fedpriv.sums import RunningSum
from fedpriv.training.algorithm import NO_CONTEXT
from fedpriv.training.bounded_sum import RowStack, sum_bounded, template_with
from tests.laws.bounds.bounded import every_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLongest(Clip):
    """Looks at all users who are asked about at once."""

    def factors(self, norms, clip_norm=None):
        return np.full(len(norms), self.l2_clip_norm / norms.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace(Clip):
    """Changes the norms that it is given, and is ten times too long."""

    def factors(self, norms, clip_norm=None):
        norms /= 10.0
        return self.l2_clip_norm / norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Long(Clip):
    """Makes contributions twice as long as it states."""

    def factors(self, norms, clip_norm=None):
        return 2.0 * Clip.factors(self, norms)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithCounts(Clip):
    """Has users add more besides than it states."""

    def besides(self, norms, clip_norm=None):
        return {"count": np.full((len(norms), 1), 50.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Raises(Clip):
    """Raises for one user's norm."""

    def factors(self, norms, clip_norm=None):
        if (norms > 40.0).any():
            raise ValueError(f"private norm {norms}")
        return Clip.factors(self, norms)


def moved_by_one(bound):
    """By how much a user of norm 50 moves the sum of others, and how many fail."""
    like, others = {"w": np.zeros(4, np.float32)}, [[0.5, 0.0, 0.0, 0.0]] * 10

    def total(rows):
        template = template_with(like, bound, None)
        stacks = [[RowStack({"w": np.array(rows, np.float32)})]]
        running = RunningSum(template, bound.granularity)
        found = sum_bounded(running, stacks, bound, template, NO_CONTEXT)
        return np.concatenate([array.ravel() for array in found.real().values()]), found.num_failed

    (few, failed), (more, failed_more) = total(others), total([*others, [0.0, 50.0, 0.0, 0.0]])
    return np.linalg.norm(more - few), failed, failed_more


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize(
    ("kind", "failed"),
    [(Clip, (0, 0)), (ByLongest, (0, 0)), (InPlace, (10, 11)), (WithCounts, (10, 11)),
     (Raises, (0, 1)), (Long, (0, 1))],
)  # fmt: skip
def test_a_bound_with_a_mistake_lets_no_user_move_the_sum_by_more(kind, failed, grid):
    """`Long` doubles the others' 0.5, and what would be 2 long is refused."""
    bound = kind(l2_clip_norm=1.0)
    moved, *found = moved_by_one(Rounded(bound=bound) if grid else bound)
    assert moved <= 1.0 and found == list(failed)


@every_bound
def test_every_bound_of_several_users_is_that_of_each(make):
    norms = np.array([0.0, 1e-300, 0.3, 1.0, 7.0, 1e30])
    bound = make(1.0)
    assert bound.elementwise

    def asked(norms):
        return {"": bound.factors(norms, bound.start), **bound.besides(norms, bound.start)}

    whole = asked(norms)
    for place in range(len(norms)):
        for name, rows in asked(norms[[place]]).items():
            np.testing.assert_array_equal(whole[name][[place]], rows)
