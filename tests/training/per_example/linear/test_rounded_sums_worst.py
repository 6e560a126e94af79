"""Sums of single examples that are rounded once, where float64 is at its worst."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from fedpriv.mechanisms import Clip, Normalise, Rounded
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.per_example.example_sum import CentralSum, room_of_sum
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import contributed
from tests.training.per_example.linear.case import at_zero


def logistic(x):
    """Return a model on examples of class 1 and its params: all zero, so each residual is -½."""
    return at_zero("logistic", x, np.ones(len(x), np.int64))


def mixed(offset):
    mixture = Mixture(own=1.0, offset={"weight": offset, "bias": np.zeros(1, np.float32)})
    return Context(mixture=mixture)


def test_parts_of_a_mixture_that_nearly_cancel_move_the_sum_by_no_more():
    """Own parts of 66 bounds each, summed to either side of 2^21, where the last bits differ.

    With the one example the others' small parts are all rounded down, and without it up.
    """
    number, offset = 100_000, 1e4
    part = (offset - 150.0) / math.hypot(150.0, 0.5)
    first = int(2**21 / part) + 1
    assert (first - 1) * part < 2**21 < first * part
    x = np.full((number, 1), 0.8 * 2.0 ** (21 - 52) * offset, np.float32)
    x[:first] = 2 * (offset - 150.0)
    data, params = logistic(x)
    bound, context = Rounded(bound=Clip(l2_clip_norm=1.0)), mixed(np.array([-offset], np.float32))
    work = CentralSum(gradients=data, num_examples=number)
    everybody = range(number)
    found = [
        contributed(work, params, ids=ids, bound=bound, context=context).total
        for ids in (everybody, everybody[1:])
    ]
    moved = [int(found[0][name][0]) - int(found[1][name][0]) for name in params]
    assert 0.999 * 2**48 < sum(x**2 for x in moved) <= 2**48


def test_a_residual_whose_square_vanishes_moves_the_sum_by_no_more():
    """Of 1e-162, on an input of 1e30: squared before they are multiplied they are short."""
    x = sparse.csr_matrix(np.array([[1e30, 0.0], [1.0, 1.0]], np.float32))
    work = CentralSum(gradients=LogisticGradients(x, np.array([0, 1])), num_examples=2)
    bound = Rounded(bound=Normalise(l2_clip_norm=1.0))
    for bias in np.linspace(-373.0, -371.0, 41, dtype=np.float32):
        params = {"weight": np.zeros(2, np.float32), "bias": np.array([bias])}
        sums = [contributed(work, params, ids=ids, bound=bound).total for ids in ((0, 1), (1,))]
        moved = [int(x) for name in params for x in sums[0][name] - sums[1][name]]
        assert 0.999 * 2**48 < sum(x**2 for x in moved) <= 2**48


@pytest.mark.parametrize("value", [0.1, 0.7])
@pytest.mark.parametrize("times", [None, -1.02, -1.011, -0.999])
def test_a_norm_that_float64_got_too_small_is_made_up_for(value, times):
    """A million like coordinates: the float sum of their squares errs to one side all along."""
    width = 1 << 20
    x = np.full((1, width), value, np.float32)
    data, params = logistic(x)
    inner, context = Clip(l2_clip_norm=1e-3), NO_CONTEXT
    if times is not None:  # an offset against the example's own part
        shift = np.full(width, times * value / 2, np.float32)
        context = mixed(shift)
    longest = room_of_sum(Rounded(bound=inner), data, width + 1)
    total = data.bounded_sum(params, np.array([0]), inner, context=context, longest=longest)
    assert np.unique(total["weight"]).size == 1
    squared = width * Fraction(float(total["weight"][0])) ** 2
    squared += Fraction(float(total["bias"][0])) ** 2
    rounding = Fraction(math.sqrt(width + 1)) / 2**24  # of the sum, √d granularities
    allowed = 1 - rounding - Fraction(data.float_error())
    assert squared <= (Fraction(1e-3) * allowed) ** 2


def test_a_bound_without_room_is_refused_and_not_a_failure_of_everybody(monkeypatch):
    """Refused for each example it was a zero of each, alone: a model of noise, and no word."""
    data, params = logistic(np.ones((3, 1), np.float32))
    bound = Rounded(bound=Clip(l2_clip_norm=1.0))
    monkeypatch.setattr(type(data), "float_error", lambda self: 0.6)
    work = CentralSum(gradients=data, num_examples=3)
    with refuses(ValueError, 0.6):
        contributed(work, params, ids=[0], bound=bound)
