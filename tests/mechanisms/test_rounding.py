"""How long an update may be before it is rounded to a grid: what rounding may add is left out."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from fedpriv.mechanisms import Clip, Preconditioned, Rounded, Unbounded
from fedpriv.mechanisms.bounds import Mixture, RoundedSum
from tests.harness.refusals import refuses

CLIP = Clip(l2_clip_norm=3.0)
MIXED = Preconditioned(
    multiplier={},
    bound=CLIP,
    mixture=Mixture(own=0.5, offset={"w": np.zeros(2, np.float32)}),
)


@pytest.mark.parametrize("number", [1, 10_000, 10**9, 10**13, 2**46])
def test_each_coordinate_is_rounded_by_half_a_step(number):
    """C (1 - √d 2^-25 - 2^-40 - d 2^-53), or what the inner bound allows where that is less."""
    found = Rounded(bound=CLIP).bounded_norm(1e9, number)
    share = 1 - 2.0**-40 - number * 2.0**-53 - math.sqrt(number) * 2.0**-25
    assert found == pytest.approx(3.0 * min(share, 1 - 2.0**-22), rel=1e-15)
    assert Rounded(bound=CLIP).bounded_norm(0.25, number) == 0.25
    # Rounded outwards everywhere, it is still within the bound.
    assert found + math.sqrt(number) * 3.0 * 2.0**-25 <= 3.0


@pytest.mark.parametrize("number", [1, 10_000, 10**9, 10**12])
def test_a_sum_that_is_rounded_once_moves_by_a_step_a_coordinate(number):
    """C (1 - √d 2^-24 - 2^-40 - e - d 2^-53), and of a mixture with its own e and d 2^-39."""
    plain = RoundedSum(bound=CLIP, float_error=0.125, mixed_error=0.25)
    mixed = RoundedSum(bound=MIXED, float_error=0.125, mixed_error=0.25)
    rounding = 2.0**-40 + math.sqrt(number) * 2.0**-24
    assert (plain.error, mixed.error) == (0.125, 0.25)
    for bound, error, each in ((plain, 0.125, 2.0**-53), (mixed, 0.25, 2.0**-39)):
        share = 1 - rounding - error - number * each
        if share < 0.5:
            continue
        assert bound.bounded_norm(1e9, number) == pytest.approx(3.0 * share, rel=1e-15)
        assert bound.inside.bounded_norm(1e9, number) == bound.bounded_norm(1e9, number)
        assert bound.bounded_norm(0.25, number) == 0.25
        assert bound.sum_limit(7) == 21.0


def test_where_rounding_alone_would_fill_half_the_bound_it_is_refused():
    for bound, most in (
        (Rounded(bound=CLIP), 250977005360993),
        (RoundedSum(bound=CLIP, float_error=0.0), 68252030098988),
    ):
        assert 1.49 < bound.bounded_norm(1e9, most - 10**5) < 1.51
        with refuses(ValueError, most + 10**5):
            bound.bounded_norm(1e9, most + 10**5)
    for error in (0.5, math.nan):
        with refuses(ValueError, error):
            RoundedSum(bound=CLIP, float_error=error).bounded_norm(1e9, 1)


def test_what_no_grid_can_be_made_of_is_refused():
    for odd in (Unbounded(), Rounded(bound=CLIP)):
        for make in (Rounded, partial(RoundedSum, float_error=0.0)):
            with refuses(ValueError, repr(odd)):
                make(bound=odd)
    with refuses(ValueError, "mixed_error"):
        RoundedSum(bound=MIXED, float_error=0.0)


def test_contributions_to_a_rounded_sum_are_shortened_and_not_rounded():
    update = {"w": np.array([3e5, 4e5], np.float32)}
    bound = RoundedSum(bound=CLIP, float_error=0.125)
    found = bound.apply(update)["w"]
    np.testing.assert_allclose(found, np.array([0.6, 0.8]) * bound.bounded_norm(5e5, 2), rtol=1e-6)
    short = {"w": np.array([0.1, 0.2], np.float32)}
    np.testing.assert_array_equal(bound.apply(short)["w"], short["w"])
