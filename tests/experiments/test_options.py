"""One option's value: what is taken, and as what."""

from fedpriv.experiments.options import coerce
from tests.harness.refusals import refuses


def test_whole_numbers_are_not_rounded_to_floats():
    assert coerce("seed", 2**60 + 1, int) == 2**60 + 1
    assert type(coerce("rounds", 20.0, int)) is int


def test_a_number_that_no_float_holds_is_refused_like_an_infinite_one():
    with refuses(ValueError, "num-rounds"):
        coerce("num_rounds", 10**400, int)
