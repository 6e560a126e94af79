"""Running moments of gradients: RMSProp's, and decays that are refused."""

import math

import numpy as np
import pytest

from fedpriv.mechanisms.preconditioners import (
    adam,
    moving_average,
    moving_square,
    rmsprop,
)
from tests.mechanisms.preconditioners.rounds_begun import PUBLIC, close


class TestMoments:
    """algorithms.md 1.9."""

    def test_rmsprop(self):
        rule, v = rmsprop(0.9), np.zeros(2, np.float32)
        inside = rmsprop(0.9, regulariser=1e-6, inside=True)
        expected = (
            ([0.1, 0.001], [0.316229, 0.031639], [0.317228, 0.032623]),
            ([0.49, 0.0009], [0.700001, 0.030017], [0.701, 0.031]),
            ([0.441, 0.00481], [0.664079, 0.069361], [0.665078, 0.070354]),
        )
        for gradient, (second, root_inside, root_outside) in zip(PUBLIC, expected, strict=True):
            v = rule.second(v, gradient)
            assert v.dtype == np.float32
            close(v, second)
            close(inside.denominator(v), root_inside, 2e-5)
            close(rule.denominator(v), root_outside, 2e-5)

    @pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, math.nan])
    def test_a_decay_outside_is_refused(self, decay):
        for make in (moving_average, moving_square, rmsprop, adam):
            with pytest.raises(ValueError, match="decay"):
                make(decay)
