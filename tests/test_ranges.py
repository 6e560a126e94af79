"""What a number may be: of a type, finite, in its range; said in one place for everybody."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from fedpriv.ranges import Range, finite_float, positive_float, positive_int, probability
from tests.harness.refusals import refuses


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), Fraction(2)])
def test_any_real_number_comes_out_as_a_builtin_float(value):
    for made in (finite_float("x", value), positive_float("x", value)):
        assert type(made) is float and made == 2.0


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_any_whole_number_comes_out_as_a_builtin_int(value):
    made = positive_int("x", value)
    assert type(made) is int and made == 2


@pytest.mark.parametrize("value", [True, np.True_, "2", None, 1j, Decimal(2), [2.0], np.ones(1)])
def test_what_is_no_number_is_refused_by_name(value):
    for make in (finite_float, positive_float, positive_int, probability):
        with refuses(ValueError, repr(value)):
            make("x", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, np.float32("nan")])
def test_what_is_not_finite_is_refused(value):
    for make in (finite_float, positive_float, probability):
        with pytest.raises(ValueError):
            make("x", value)


@pytest.mark.parametrize("value", [2**53 + 1, 10**400, 10**5000], ids=lambda v: v.bit_length())
def test_a_whole_number_that_no_float_holds_is_refused(value):
    with refuses(ValueError, "2^53"):
        positive_int("x", value)
    assert positive_int("x", 2**53) == 2**53


@pytest.mark.parametrize("value", [2.0, np.float64(2), 2.5])
def test_a_float_is_no_whole_number(value):
    with refuses(ValueError, 20):
        positive_int("x", value)


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        (Range.ABOVE_ZERO, [5e-324, 1e300], [0.0, -0.0, -1.0]),
        (Range.AT_LEAST_ZERO, [0.0, 1e300], [-5e-324]),
        (Range.AT_LEAST_ONE, [1.0, 1e300], [0.0, math.nextafter(1.0, 0.0)]),
        (Range.FRACTION, [0.0, math.nextafter(1.0, 0.0)], [-5e-324, 1.0]),
        (Range.SHARE, [0.0, 1.0], [-5e-324, math.nextafter(1.0, 2.0)]),
        (Range.BETWEEN, [5e-324, math.nextafter(1.0, 0.0)], [0.0, 1.0]),
    ],
)
def test_the_edges_of_each_range(allowed, inside, outside):
    for value in inside:
        assert finite_float("x", value, allowed) == value
    for value in outside:
        with refuses(ValueError, value, allowed.value):
            finite_float("x", value, allowed)
    assert not allowed.holds(math.nan)
    with refuses(ValueError, allowed.value):
        finite_float("x", math.nan, allowed)


def test_every_range_is_tried_above():
    assert len(Range) == 6


def test_the_short_names_are_their_ranges():
    for make, value in ((positive_float, 0.0), (positive_int, 0), (probability, 0.0)):
        with refuses(ValueError, 0):
            make("x", value)
    with refuses(ValueError, 1.0, 1):
        probability("x", 1)
