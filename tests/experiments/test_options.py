"""One option's value: what is taken, and as what."""

import pytest

from fedpriv.experiments.options import coerce


def test_whole_numbers_are_not_rounded_to_floats():
    assert coerce("seed", 2**60 + 1, int) == 2**60 + 1
    assert type(coerce("rounds", 20.0, int)) is int


def test_a_number_that_no_float_holds_is_refused_like_an_infinite_one():
    with pytest.raises(ValueError, match=r"^num-rounds 10+ is not a finite number; give one$"):
        coerce("num_rounds", 10**400, int)
