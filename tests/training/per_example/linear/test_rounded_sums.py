"""Exact sums of single examples of linear models: what one of them moves, in whole numbers."""

import math

import numpy as np
import pytest
from scipy import sparse

from fedpriv.mechanisms import Clip, Normalise, Rounded
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.per_example.example_sum import CentralSum
from fedpriv.training.per_example.linear import LogisticGradients
from tests.harness.toys_of_training import contributed
from tests.training.per_example.linear.case import Case, at_zero, every_kind

NUM = 60
KINDS = ("logistic", "softmax")
LIMIT = 2**48


def asked_of(case):
    """Bounds, and what a round says of each."""
    multiplier = {
        name: np.linspace(0.1, 9.0, shape[0], dtype="f4").reshape(-1, *(1,) * (len(shape) - 1))
        for name, shape in case.shapes.items()
    }
    offset = {n: np.full(s, 0.1, np.float32) for n, s in case.shapes.items()}
    return {
        "clip": (Clip(l2_clip_norm=0.3), NO_CONTEXT),
        "normalise": (Normalise(l2_clip_norm=0.3), NO_CONTEXT),
        "preconditioned": (Clip(l2_clip_norm=0.7), Context(multiplier=multiplier)),
        "mixed": (
            Normalise(l2_clip_norm=2.0),
            Context(multiplier=multiplier, mixture=Mixture(own=0.4, offset=offset)),
        ),
    }


BOUNDS = ("clip", "normalise", "preconditioned", "mixed")


def whole_sum(gradients, params, bound, index, context=NO_CONTEXT):
    work = CentralSum(gradients=gradients, num_examples=gradients.num_examples)
    done = contributed(work, params, ids=index, bound=Rounded(bound=bound), context=context)
    assert (done.granularity, done.l2_bound) == (bound.l2_bound * 2.0**-24, bound.l2_bound)
    return np.concatenate([tensor.reshape(-1) for tensor in done.total.values()]).astype(np.int64)


def squared(difference):
    return sum(int(x) ** 2 for x in difference)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_adds_its_own_whole_numbers_in_any_batch(kind, name):
    """Every example of the set, joining batches of many sizes; compared without tolerance."""
    case = Case(kind, num=NUM)
    bound, context = asked_of(case)[name]
    rng, longest = np.random.default_rng(0), 0
    for joining in range(NUM):
        others = np.setdiff1d(rng.choice(NUM, rng.integers(0, NUM), replace=False), [joining])
        batch = rng.permutation(np.append(others, joining))
        whole, rest, alone = (
            whole_sum(case.made, case.params, bound, index, context)
            for index in (batch, others, [joining])
        )
        np.testing.assert_array_equal(whole - rest, alone)
        assert squared(alone) <= LIMIT
        longest = max(longest, squared(alone))
    if name != "clip":
        assert longest > 0.999 * LIMIT  # the bound is reached, so the test can fail


@every_kind
def test_what_else_is_in_a_batch_changes_no_bit_of_a_residual(kind):
    case = Case(kind, num=NUM)
    alone = {i: case.made._residuals(case.params, np.array([i])).tobytes() for i in range(NUM)}
    rng = np.random.default_rng(1)
    for size in [*range(1, 34), NUM]:
        chosen = rng.permutation(NUM)[:size]
        together = case.made._residuals(case.params, chosen)
        assert [row.tobytes() for row in together] == [alone[i] for i in chosen.tolist()]


def test_parts_of_a_mixture_that_nearly_cancel_move_the_sum_by_no_more():
    """Own parts of 66 bounds each, summed as floats to either side of 2^21."""
    number, offset = 100_000, 1e4
    part = (offset - 150.0) / math.hypot(150.0, 0.5)
    x = np.full((number, 1), 0.8 * 2.0 ** (21 - 52) * offset, np.float32)
    x[: int(2**21 / part) + 1] = 2 * (offset - 150.0)
    data, params = at_zero("logistic", x, np.ones(number, np.int64))
    mixture = Mixture(
        own=1.0, offset={"weight": np.array([-offset], "f4"), "bias": np.zeros(1, "f4")}
    )
    bound, everybody = Clip(l2_clip_norm=1.0), range(number)
    whole, rest = (
        whole_sum(data, params, bound, ids, Context(mixture=mixture))
        for ids in (everybody, everybody[1:])
    )
    assert 0.999 * LIMIT < squared(whole - rest) <= LIMIT


def test_a_residual_whose_square_vanishes_moves_the_sum_by_no_more():
    """Of 1e-162, on an input of 1e30: squared before they are multiplied they are short."""
    x = sparse.csr_matrix(np.array([[1e30, 0.0], [1.0, 1.0]], np.float32))
    data, bound = LogisticGradients(x, np.array([0, 1])), Normalise(l2_clip_norm=1.0)
    for bias in np.linspace(-373.0, -371.0, 41, dtype=np.float32):
        params = {"weight": np.zeros(2, np.float32), "bias": np.array([bias])}
        whole, rest = (whole_sum(data, params, bound, ids) for ids in ((0, 1), (1,)))
        assert 0.999 * LIMIT < squared(whole - rest) <= LIMIT


@pytest.mark.parametrize("value", [0.1, 0.7])
def test_a_norm_that_float64_got_too_small_is_made_up_for(value):
    """A million like coordinates: the float sum of their squares errs to one side all along."""
    width = 1 << 20
    data, params = at_zero("logistic", np.full((1, width), value, "f4"), np.ones(1, np.int64))
    assert squared(whole_sum(data, params, Clip(l2_clip_norm=1e-3), [0])) <= LIMIT
