"""Sizes of what is drawn: given ones are held to, and one is refused that there cannot be."""

import pytest

from fedpriv.experiments.sampling import (
    CyclicSampling,
    FixedSampling,
    PoissonSampling,
    SeparatedSampling,
)
from tests.harness.refusals import refuses

WAYS = [
    PoissonSampling(),
    FixedSampling(),
    SeparatedSampling(min_separation=2),
    CyclicSampling(),
    CyclicSampling(min_separation=4),
]


@pytest.mark.parametrize("sampling", WAYS, ids=str)
def test_more_than_there_are_is_refused(sampling):
    with refuses(ValueError, "101"):
        sampling.sampler(100, 101.0, 8)


@pytest.mark.parametrize(("size", "groups"), [(None, 20), (25.0, 4), (30.0, 3), (100.0, 1)])
def test_groups_that_take_turns_have_at_least_the_size_given(size, groups):
    assert CyclicSampling().sampler(100, size, 8).groups == groups
