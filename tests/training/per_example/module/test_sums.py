"""Bounded sums over single examples: every way agrees, and the laws of the bound hold."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import tree
from fedpriv.mechanisms import Clip, Normalise, Unbounded
from fedpriv.training.algorithm import Context
from fedpriv.training.local.module import load_params
from fedpriv.training.per_example.module import WAYS, ModuleGradients
from tests.harness.combinations import each_once
from tests.harness.toys_of_training import KEY, bounded, cross_entropy, example_sum, gap
from tests.training.per_example.module.models import (
    CLASSES,
    EVERYBODY,
    MODELS,
    NUM,
    bounds_of,
    built,
    preconditioned,
)

SLOW = pytest.mark.slow
SOME = EVERYBODY[::3]  # whom to look at alone, where every example costs a pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other"),
    each_once([pytest.param(n, marks=SLOW if n == "resnet" else ()) for n in MODELS], WAYS[1:]),
)
def test_every_way_finds_the_same(name, other):
    quick, params = built(name)
    slow, _ = built(name, way=other)
    index = np.array([8, 2, 10, 3, 0, 7])
    for bound, said in bounds_of(params):
        expected = example_sum(slow, params, index, bound, KEY, context=said)
        found = example_sum(quick, params, index, bound, KEY, context=said)
        assert gap(found, expected) < 1e-5, bound
        assert all(a.dtype == np.float64 and a.shape == params[n].shape for n, a in found.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"), each_once(["mlp", "sequences", "lstm", "convolutions"], WAYS[:2])
)
def test_an_example_alone_is_bounded_as_its_update_is(name, way):
    gradients, params = built(name, way=way)
    for bound, said in bounds_of(params):
        raw = example_sum(gradients, params, np.array([4]), Unbounded(), KEY)
        update = {n: a.astype(np.float32) for n, a in raw.items()}
        found = example_sum(gradients, params, np.array([4]), bound, KEY, context=said)
        assert gap(found, bounded(bound, update, said)) < 1e-5, bound


@pytest.mark.parametrize("way", ["factors", "vmap", "loop"])
def test_the_sum_without_a_bound_is_minus_the_gradient(way):
    gradients, params = built("mlp", way=way)
    total = example_sum(gradients, params, EVERYBODY, Unbounded())
    mean = gradients.gradient(params, EVERYBODY)
    assert all(a.dtype == np.float32 for a in mean.values())
    assert gap({n: -a / NUM for n, a in total.items()}, mean) < 1e-6

    module = load_params(MODELS["mlp"][0](), params)
    x, y = MODELS["mlp"][1](np.random.default_rng(3)), gradients._y
    cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    assert gap(mean, {n: p.grad.numpy() for n, p in module.named_parameters()}) < 1e-6


def test_mean_gradient_does_not_depend_on_chunks():
    whole, params = built("mlp")
    parts, _ = built("mlp", chunk=4)
    left, right = whole.gradient(params, EVERYBODY), parts.gradient(params, EVERYBODY)
    assert gap(left, right) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way", "scale"),
    each_once(
        ["convolutions", "long sequences", "lstm", "mlp"],
        WAYS[:2],
        [1.0, 1e6, 1e-6],
        also=lambda name, way, scale: name == "mlp",
    ),
)
def test_no_example_leaves_the_bound(name, way, scale):
    gradients, params = built(name, way=way)
    steep = {n: p * np.float32(scale) for n, p in params.items()}
    for bound, said in bounds_of(params):
        for position in SOME:
            index = np.array([position])
            one = example_sum(gradients, steep, index, bound, KEY, context=said)
            assert tree.l2_norm(one) <= bound.l2_bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    each_once(
        ["lstm", "sequences", "convolutions", "partly frozen", "mlp"],
        WAYS,
        also=lambda name, way: name == "mlp",
    ),
)
def test_leaving_one_out_moves_the_sum_by_what_it_contributes(name, way):
    gradients, params = built(name, way=way, chunk=5, drops=False)
    bound, said = Clip(l2_clip_norm=0.7), preconditioned(params)

    def summed(index):
        return example_sum(gradients, params, index, bound, KEY, context=said)

    total = summed(EVERYBODY)
    singles = [summed(np.array([i])) for i in EVERYBODY]
    assert gap({n: sum(one[n] for one in singles) for n in params}, total) < 1e-6
    for left_out in SOME:
        others = summed(np.delete(EVERYBODY, left_out))
        moved = {n: total[n] - others[n] for n in params}
        assert tree.l2_norm(moved) <= 0.7 * (1 + 1e-6)
        assert gap(moved, singles[left_out]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [tuple(n for n in MODELS if n != "resnet"), pytest.param(("resnet",), marks=SLOW)],
    ids=["small", "resnet"],
)
def test_ones_are_no_preconditioner_bit_for_bit(names):
    for name in names:
        gradients, params = built(name)
        plain = Clip(l2_clip_norm=0.7)
        ones = {n: np.ones(p.shape, np.float32) for n, p in params.items()}
        left = example_sum(gradients, params, EVERYBODY, plain, KEY)
        right = example_sum(
            gradients, params, EVERYBODY, plain, KEY, context=Context(multiplier=ones)
        )
        assert all(np.array_equal(left[n], right[n]) for n in params)


def test_a_multiplier_broadcasts_as_it_does_for_users():
    gradients, params = built("softmax regression")
    column = np.linspace(0.1, 5, 12, dtype=np.float32)[:, None]
    full = np.broadcast_to(column, params["kernel"].shape).copy()
    found, expected = (
        example_sum(
            gradients,
            params,
            EVERYBODY,
            Clip(l2_clip_norm=1),
            context=Context(multiplier={"kernel": m}),
        )
        for m in (column, full)
    )
    assert all(np.array_equal(found[n], expected[n]) for n in params)


def test_dropout_draws_from_the_key():
    gradients, params = built("partly frozen")
    bound = Clip(l2_clip_norm=0.7)
    one = example_sum(gradients, params, EVERYBODY, bound, KEY.fold(1))
    again = example_sum(gradients, params, EVERYBODY, bound, KEY.fold(1))
    other = example_sum(gradients, params, EVERYBODY, bound, KEY.fold(2))
    assert all(np.array_equal(one[n], again[n]) for n in params)
    assert gap(one, other) > 1e-3
    assert gap(gradients.gradient(params, EVERYBODY), gradients.gradient(params, EVERYBODY)) == 0
    dropped = gradients.gradient(params, EVERYBODY, KEY)
    assert gap(dropped, gradients.gradient(params, EVERYBODY)) > 1e-3


def test_tiny_gradients_are_normalised_and_not_amplified_wrongly():
    gradients, params = built("linear")
    gradients._x[:] *= np.float32(1e-20)
    bound = Normalise(l2_clip_norm=0.7)
    params = {n: p * 0 for n, p in params.items()}
    frozen = ModuleGradients(
        nn.Linear(12, CLASSES, bias=False), cross_entropy, gradients._x, gradients._y
    )
    one = example_sum(frozen, {"weight": params["weight"]}, np.array([1]), bound)
    assert 0.7 * (1 - 1e-6) <= tree.l2_norm(one) <= 0.7
