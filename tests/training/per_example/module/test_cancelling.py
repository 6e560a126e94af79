"""Gradients that are sums of parts which nearly cancel stay within the bound, and are right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.mechanisms import Clip, Normalise
from fedpriv.mechanisms.preconditioners import Mixture
from fedpriv.training.algorithm import NO_CONTEXT, Context
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.toys_of_training import example_sum

DIM = 48
#: What float32 may leave beyond the bound: a few roundings of a weight and a coordinate.
SLACK = 2e-6
BOUNDS = (
    Clip(l2_clip_norm=0.1),
    Normalise(l2_clip_norm=0.1, regulariser=0.0),
    Normalise(l2_clip_norm=0.1, regulariser=1e-3),
)


class OverTime(nn.Module):
    """One dense layer over a time axis, summed."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        return self.dense(x).sum(1)


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


def gradients(module, x, way=None):
    made = ModuleGradients(module, nn.functional.cross_entropy, x, np.zeros(len(x), int), way=way)
    zeros = {name: np.zeros_like(array) for name, array in module_params(module).items()}
    return made, zeros


def length(total):
    return float(np.sqrt(sum(np.sum(array.astype(np.float64) ** 2) for array in total.values())))


_POWERS = np.logspace(0, 3, DIM * DIM).reshape(DIM, DIM)
MULTIPLIED = Context(multiplier={"dense.weight": _POWERS.astype(np.float32)})
"""With a preconditioner from 1 to 1,000."""


SIZES = [(1.0, 1.0), (1e4, 1.0), (1e8, 1.0), (1e10, 1.0), (1.0, 1e-5), (1.0, 1e-9)]


@pytest.mark.slow
def test_one_example_over_time_stays_within_the_bound(subtests):
    for bound in BOUNDS:
        for large, small in SIZES:
            for said in (NO_CONTEXT, MULTIPLIED):
                with subtests.test(bound=bound, large=large, small=small, said=said):
                    made, params = gradients(OverTime(), cancelling(large, small, number=1))
                    assert made.way == "vmap"
                    total = example_sum(made, params, np.arange(1), bound, context=said)
                    assert length(total) <= 0.1 * (1 + SLACK)


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS, ids=lambda b: f"{type(b).__name__} {b.l2_bound}")
@pytest.mark.parametrize(("large", "small"), SIZES)
@pytest.mark.parametrize("said", [NO_CONTEXT, MULTIPLIED], ids=["plain", "multiplied"])
def test_a_micro_batch_stays_within_the_bound(bound, large, small, said):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(DIM, DIM, bias=False)

        def forward(self, x):
            return self.dense(x)

    made, params = gradients(Plain(), cancelling(large, small, number=1)[0])
    assert made.way == "factors"
    total = example_sum(made, params, [np.arange(4)], bound, context=said)
    assert length(total) <= 0.1 * (1 + SLACK)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda b: f"{type(b).__name__} {b.l2_bound}")
def test_a_word_named_thrice_stays_within_the_bound(bound):
    made, params = gradients(Words(), np.array([[5, 5, 5, 6]]))
    assert length(example_sum(made, params, np.arange(1), bound)) <= 0.1 * (1 + SLACK)


def test_the_sum_is_that_of_the_gradients_themselves():
    """Some cancel, some do not; against one example at a time in float64."""
    x = np.concatenate([cancelling(1.0, 1.0), cancelling(1.0, 1.0, seed=1)[:, ::-1] * 0.3])
    x[4:, 0] += np.float32(1.0)
    made, params = gradients(OverTime(), x)
    exact = sum_of_float64(x)
    index, bound = np.arange(len(x)), Clip(l2_clip_norm=0.1)
    found = example_sum(made, params, index, bound, context=MULTIPLIED)["dense.weight"]
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-6 * np.abs(exact).max())


def sum_of_float64(x):
    back = np.full(DIM, 1 / DIM)
    back[0] -= 1
    multiplier = MULTIPLIED.multiplier["dense.weight"].astype(np.float64)
    total = np.zeros((DIM, DIM))
    for example in x.astype(np.float64):
        update = -np.outer(back, example.sum(0)) * multiplier
        total += update * min(1.0, 0.1 / np.linalg.norm(update))
    return total


@pytest.mark.parametrize("excess", [2e-7, 1e-6, 1e-4])
def test_an_offset_that_cancels_stays_within_the_bound(excess):
    """A public part that nearly cancels the private one."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(1, 1, DIM)).astype(np.float32)
    made, params = gradients(OverTime(), x)
    whole = made.gradient(params, np.arange(1))["dense.weight"]
    offset = (np.float32(0.9) * whole * np.float32(1 + excess)).astype(np.float32)
    bound = Normalise(l2_clip_norm=1.0, regulariser=0.0)
    said = Context(mixture=Mixture(own=0.9, offset={"dense.weight": offset}))
    assert length(example_sum(made, params, np.arange(1), bound, context=said)) <= 1.0 + SLACK


def one_output(x, y, way):
    made = ModuleGradients(nn.Linear(x.shape[1], 1), nn.functional.mse_loss, x, y, way=way)
    return made, {"weight": np.zeros((1, x.shape[1]), "f4"), "bias": np.zeros(1, "f4")}


@pytest.mark.parametrize("way", ["factors", "vmap"])
def test_a_thousand_examples_that_cancel_an_offset_leave_nothing_to_one(way):
    """Summed in float32 their rounding moved the sum by 17 bounds when one left."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(1, 20)), 1025, axis=0).astype(np.float32)
    x[0], y = rng.normal(size=20), np.full((1025, 1), -1, np.float32)
    y[0] = 5.0
    made, params = one_output(x, y, way)
    said = Context(mixture=Mixture(own=1.0, offset=made.gradient(params, np.array([1]))))
    bound = Normalise(l2_clip_norm=1.0)
    sums = [example_sum(made, params, np.arange(n, 1025), bound, context=said) for n in (0, 1)]
    assert 0.9 < length({name: sums[0][name] - sums[1][name] for name in params}) <= 1.0 + 1e-5


@pytest.mark.parametrize("way", ["factors", "vmap"])
@pytest.mark.parametrize("bound", [Clip(l2_clip_norm=1.0), Normalise(l2_clip_norm=1.0)])
def test_what_float32_cannot_scale_stays_within_the_bound(way, bound):
    """Weights below float32's least, and products that only the multiplier makes finite."""
    made, params = one_output(np.array([[1e19]], "f4"), np.array([[1e18]], "f4"), way)
    assert length(example_sum(made, params, np.arange(1), bound)) <= 1.0 + 1e-9
    made, params = one_output(np.array([[1e15, 1e-30]], "f4"), np.array([[1e15]], "f4"), way)
    said = Context(multiplier={"weight": np.array([[0.0, 1.0]], "f4"), "bias": np.zeros(1, "f4")})
    total = example_sum(made, params, np.arange(1), bound, context=said)
    assert length(total) <= 1.0 + 1e-9 and total["weight"][0, 0] == 0.0


@pytest.mark.parametrize("excess", [0.0, 2e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("way", ["factors", "vmap"])
def test_an_offset_that_cancels_many_outputs_stays_within_the_bound(way, excess):
    """Two factors are never multiplied out: their norm is a difference of squares."""
    x = np.random.default_rng(3).normal(size=(1, DIM)).astype(np.float32)
    module = nn.Linear(DIM, 10)
    made = ModuleGradients(module, nn.functional.cross_entropy, x, np.zeros(1, int), way=way)
    params = {name: np.zeros_like(array) for name, array in module_params(module).items()}
    whole = made.gradient(params, np.arange(1))
    offset = {name: np.float32(0.9 * (1 + excess)) * array for name, array in whole.items()}
    said = Context(mixture=Mixture(own=0.9, offset=offset))
    total = example_sum(made, params, np.arange(1), Normalise(l2_clip_norm=1.0), context=said)
    assert length(total) <= 1.0 + 1e-9
