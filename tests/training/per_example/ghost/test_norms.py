"""Gradients that are sums of parts which nearly cancel stay within the bound, and are right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.mechanisms import Clip, Normalise, Preconditioned
from fedpriv.mechanisms.bounds import Mixture
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.ghost_norms import Before, MadeRows, PartlyMade, Rows, SummedOuter
from fedpriv.training.per_example.module import ModuleGradients
from fedpriv.tree import l2_norm
from tests.harness.toys_of_training import cross_entropy

DIM = 48
#: What float32 may leave beyond the bound: a few roundings of a weight and a coordinate.
SLACK = 2e-6
BOUNDS = (
    Clip(l2_clip_norm=0.1),
    Normalise(l2_clip_norm=0.1, regulariser=0.0),
    Normalise(l2_clip_norm=0.1, regulariser=1e-3),
)


class OverTime(nn.Module):
    """One dense layer over a time axis, summed; or of examples without one."""

    def __init__(self, summed=True):
        super().__init__()
        self.dense, self.summed = nn.Linear(DIM, DIM, bias=False), summed

    def forward(self, x):
        return self.dense(x).sum(1) if self.summed else self.dense(x)


class Words(nn.Module):
    """An embedding whose places have fixed weights, which cancel for a word named thrice."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, DIM)
        self.places = nn.Parameter(torch.tensor([3.0, -1.0, -2.0, 1e-7]), requires_grad=False)

    def forward(self, x):
        return (self.table(x) * self.places[:, None]).sum(1)


def cancelling(large, small, seed=0, number=3):
    """Inputs `(number, 4, DIM)` whose first three steps add up to zero, the last being small."""
    rng = np.random.default_rng(seed)
    v = rng.integers(2**10, 2**12, (number, DIM)) * (large / 2**12)
    tail = rng.normal(size=(number, DIM)) * small
    return np.stack([3 * v, -v, -2 * v, tail], axis=1).astype(np.float32)


def gradients(module, x, backend=None):
    made = ModuleGradients(module, cross_entropy, x, np.zeros(len(x), int), backend=backend)
    zeros = {name: np.zeros_like(array) for name, array in module_params(module).items()}
    return made, zeros


def multiplied(bound):
    """With a preconditioner from 1 to 1,000."""
    powers = np.logspace(0, 3, DIM * DIM).reshape(DIM, DIM)
    return Preconditioned(multiplier={"dense.weight": powers.astype(np.float32)}, bound=bound)


SIZES = [(1.0, 1.0), (1e4, 1.0), (1e8, 1.0), (1e10, 1.0), (1.0, 1e-5), (1.0, 1e-9)]


@pytest.mark.slow
@pytest.mark.parametrize("over_time", [True, False], ids=["over time", "a micro-batch"])
@pytest.mark.parametrize("change", [lambda bound: bound, multiplied], ids=["plain", "multiplied"])
def test_what_nearly_cancels_stays_within_the_bound(change, over_time, subtests):
    for bound, (large, small) in itertools.product(BOUNDS, SIZES):
        with subtests.test(bound=bound, large=large, small=small):
            x = cancelling(large, small, number=1)
            made, params = gradients(OverTime(over_time), x if over_time else x[0])
            assert made.backend == "ghost"
            index = np.arange(1) if over_time else [np.arange(4)]
            assert l2_norm(made.bounded_sum(params, index, change(bound))) <= 0.1 * (1 + SLACK)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda b: f"{type(b).__name__} {b.l2_bound}")
def test_a_word_named_thrice_stays_within_the_bound(bound):
    made, params = gradients(Words(), np.array([[5, 5, 5, 6]]))
    assert l2_norm(made.bounded_sum(params, np.arange(1), bound)) <= 0.1 * (1 + SLACK)


@pytest.mark.parametrize(("large", "small"), [(1.0, 1.0), (1e4, 1.0), (1.0, 1e-3)])
def test_the_sum_is_that_of_the_gradients_themselves(large, small):
    """Some cancel, some do not; against one example at a time in float64."""
    x = np.concatenate([cancelling(large, small), cancelling(1.0, 1.0, seed=1)[:, ::-1] * 0.3])
    x[4:, 0] += np.float32(1.0)
    bound = multiplied(Clip(l2_clip_norm=0.1))
    made, params = gradients(OverTime(), x)
    exact = sum_of_float64(x, bound)
    found = made.bounded_sum(params, np.arange(len(x)), bound)["dense.weight"]
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-6 * np.abs(exact).max())


def sum_of_float64(x, bound):
    back = np.full(DIM, 1 / DIM)
    back[0] -= 1
    multiplier = bound.multiplier["dense.weight"].astype(np.float64)
    total = np.zeros((DIM, DIM))
    for example in x.astype(np.float64):
        update = -np.outer(back, example.sum(0)) * multiplier
        total += update * min(1.0, 0.1 / np.linalg.norm(update))
    return total


class TestRooms:
    def test_only_what_cancels_is_made(self):
        x = torch.from_numpy(np.concatenate([cancelling(1.0, 1e-6), cancelling(1.0, 1.0) + 5]))
        factor = SummedOuter(torch.ones(len(x), 4, 3), x)
        squares, summands = factor.measured(Before())
        assert isinstance(summands, PartlyMade) and summands.places.tolist() == [0, 1, 2]
        exact = 3 * x.double().sum(1).square().sum(1)
        torch.testing.assert_close(squares[3:], exact[3:])
        norms = summands.made.gradients.double().flatten(1).square().sum(1)
        torch.testing.assert_close(squares[:3], norms, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("steps", [1, 3, 40])
    @pytest.mark.parametrize("with_offset", [False, True])
    def test_squares_by_steps_by_pairs_and_by_making(self, steps, with_offset):
        """Against the gradients written out, in float64: few pairs, many, and none needed."""
        generator = torch.Generator().manual_seed(steps)
        left = torch.randn(4, steps, 7, generator=generator)
        right = torch.randn(4, steps, 9, generator=generator)
        left[1, steps // 2 :] = 0  # a group with fewer members
        whole = left.double().transpose(1, 2) @ right.double()
        offset = torch.randn(7, 9, generator=generator) if with_offset else None
        for multiplier in (None, torch.rand(7, 9, generator=generator) + 0.5):
            before = Before(own=0.7, offset=offset, multiplier=multiplier)
            expected = before.of(whole).flatten(1).square().sum(1)
            found = SummedOuter(left, right).squares(before)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)

    def test_what_is_not_finite_is_not_hidden(self):
        left = torch.ones(3, 2, 4)
        left[1, 0, 0], left[2, 1, 1] = torch.nan, torch.inf
        for multiplier in (None, torch.rand(4, 5) + 0.5):
            squares = SummedOuter(left, torch.ones(3, 2, 5)).squares(Before(multiplier=multiplier))
            assert torch.isfinite(squares).tolist() == [True, False, False]

    def test_rows_are_measured_as_they_are_summed(self):
        ids = torch.tensor([[5, 5, 5, 6], [1, 2, 3, 4]])
        values = torch.randn(2, 4, 8)
        values[0, 2] = -values[0, 0] - values[0, 1]
        squares, summands = Rows(ids, values, 10).measured(Before())
        assert isinstance(summands, MadeRows)
        for place in range(2):
            weights = torch.zeros(2, dtype=torch.float64)
            weights[place] = 1.0
            alone = summands.weighted_sum(weights).double().square().sum()
            torch.testing.assert_close(alone, squares[place], rtol=1e-6, atol=0)


@pytest.mark.parametrize("excess", [2e-7, 1e-6, 1e-4])
def test_an_offset_that_cancels_stays_within_the_bound(excess):
    """A public part that nearly cancels the private one: the safety term holds what is left."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(1, 1, DIM)).astype(np.float32)
    made, params = gradients(OverTime(), x)
    whole = made.gradient(params, np.arange(1))["dense.weight"]
    offset = (np.float32(0.9) * whole * np.float32(1 + excess)).astype(np.float32)
    bound = Preconditioned(
        multiplier={},
        bound=Normalise(l2_clip_norm=1.0, regulariser=0.0),
        mixture=Mixture(own=0.9, offset={"dense.weight": offset}),
    )
    assert l2_norm(made.bounded_sum(params, np.arange(1), bound)) <= 1.0 + SLACK
