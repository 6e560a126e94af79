"""How long an update may be before it is rounded to a grid: what rounding may add is left out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.mechanisms import AdaptiveClip, Clip, Rounded, Unbounded
from fedpriv.mechanisms.bounds import bounded_factors
from tests.harness.refusals import refuses

CLIP = Clip(l2_clip_norm=3.0)
GRID = Rounded(bound=CLIP)


def bounded_norm(bound, norm, longest):
    """Return the norm with which an update leaves, before it is rounded."""
    return norm * float(bounded_factors(bound, np.array([norm]), longest)[0])


@pytest.mark.parametrize("number", [1, 10_000, 10**9, 10**13, 2**46])
def test_each_coordinate_is_rounded_by_half_a_step(number):
    """C (1 - √d 2^-25 - 2^-40 - d 2^-53), or what the inner bound allows where that is less."""
    longest = GRID.longest(number)
    share = 1 - 2.0**-40 - number * 2.0**-53 - math.sqrt(number) * 2.0**-25
    assert longest == pytest.approx(3.0 * share, rel=1e-15)
    found = bounded_norm(GRID, 1e9, longest)
    assert found == pytest.approx(3.0 * min(share, 1 - 2.0**-22), rel=1e-15)
    assert bounded_norm(GRID, 0.25, longest) == 0.25
    # Rounded outwards everywhere, it is still within the bound.
    assert found + math.sqrt(number) * 3.0 * 2.0**-25 <= 3.0


def test_where_rounding_alone_would_fill_half_the_bound_it_is_refused():
    most = 250977005360993
    assert 1.49 < GRID.longest(most - 10**5) < 1.51
    with refuses(ValueError, most + 10**5):
        GRID.longest(most + 10**5)


def test_what_no_grid_can_be_made_of_is_refused():
    for odd in (Unbounded(), GRID):
        with refuses(ValueError, repr(odd)):
            Rounded(bound=odd)


def test_a_grid_keeps_what_else_a_bound_says():
    adaptive = AdaptiveClip(l2_clip_norm=0.5, least=0.1, most=2.0)
    rounded, norms = Rounded(bound=adaptive), np.array([0.0, 0.3, 7.0])
    assert (rounded.start, rounded.l2_bound) == (0.5, 1.0)
    np.testing.assert_array_equal(rounded.factors(norms, 0.5), adaptive.factors(norms, 0.5))
    for name, rows in adaptive.besides(norms, 0.5).items():
        np.testing.assert_array_equal(rounded.besides(norms, 0.5)[name], rows)
    mean = {
        "w": np.ones(2),
        **{name: rows[0] for name, rows in adaptive.besides(norms, 0.5).items()},
    }
    found, expected = rounded.released(dict(mean), 0.5), adaptive.released(dict(mean), 0.5)
    assert found[1] == expected[1] and np.array_equal(found[0]["w"], expected[0]["w"])
