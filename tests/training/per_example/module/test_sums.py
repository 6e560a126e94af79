"""Bounded sums over single examples: every backend agrees, and the laws of the bound hold."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv import tree
from fedpriv.mechanisms.bounds import Clip, Normalise, Preconditioned, Unbounded
from fedpriv.training.local.module import load_params
from fedpriv.training.per_example.ghost import ExampleMasks
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.combinations import each_once
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import KEY, assert_same, cross_entropy, gap
from tests.training.per_example.module.models import (
    CLASSES,
    EVERYBODY,
    MODELS,
    NUM,
    bounds_of,
    built,
    contributions,
    preconditioned,
)

WAYS, SLOW = ("ghost", "vmap", "loop"), pytest.mark.slow
SOME = EVERYBODY[::3]  # whom to look at alone, where every example costs a pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other"),
    each_once([pytest.param(n, marks=SLOW if n == "resnet" else ()) for n in MODELS], WAYS[1:]),
)
def test_every_way_finds_the_same(name, other):
    quick, params = built(name, backend="ghost")
    slow, _ = built(name, backend=other)
    index = np.array([8, 2, 10, 3, 0, 7])
    for bound in bounds_of(params):
        expected = slow.bounded_sum(params, index, bound, KEY)
        found = quick.bounded_sum(params, index, bound, KEY)
        assert gap(found, expected) < 1e-5, bound
        assert all(a.dtype == np.float64 and a.shape == params[n].shape for n, a in found.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"), each_once(["mlp", "sequences", "lstm", "convolutions"], WAYS[:2])
)
def test_an_example_alone_is_bounded_as_its_update_is(name, backend):
    gradients, params = built(name, backend=backend)
    for bound in bounds_of(params):
        raw = gradients.bounded_sum(params, np.array([4]), Unbounded(), KEY)
        update = {n: a.astype(np.float32) for n, a in raw.items()}
        found = gradients.bounded_sum(params, np.array([4]), bound, KEY)
        assert gap(found, bound.apply(update)) < 1e-5, bound


@pytest.mark.parametrize("backend", ["ghost", "vmap", "loop"])
def test_the_sum_without_a_bound_is_minus_the_gradient(backend):
    gradients, params = built("mlp", backend=backend)
    total = gradients.bounded_sum(params, EVERYBODY, Unbounded())
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
    ("name", "backend", "scale"),
    each_once(
        ["convolutions", "long sequences", "lstm", "mlp"],
        WAYS[:2],
        [1.0, 1e6, 1e-6],
        also=lambda name, backend, scale: name == "mlp",
    ),
)
def test_no_example_leaves_the_bound(name, backend, scale):
    gradients, params = built(name, backend=backend)
    steep = {n: p * np.float32(scale) for n, p in params.items()}
    for bound in bounds_of(params):
        for position in SOME:
            one = gradients.bounded_sum(steep, np.array([position]), bound, KEY)
            assert tree.l2_norm(one) <= bound.l2_bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    each_once(
        ["lstm", "sequences", "convolutions", "partly frozen", "mlp"],
        WAYS,
        also=lambda name, backend: name == "mlp",
    ),
)
def test_leaving_one_out_moves_the_sum_by_what_it_contributes(name, backend):
    gradients, params = built(name, backend=backend, chunk=5)
    bound = preconditioned(params, Clip(l2_clip_norm=0.7))
    total, singles = contributions(gradients, params, bound, KEY)
    assert gap({n: sum(one[n] for one in singles) for n in params}, total) < 1e-6
    for left_out in SOME:
        others = gradients.bounded_sum(params, np.delete(EVERYBODY, left_out), bound, KEY)
        moved = {n: total[n] - others[n] for n in params}
        assert tree.l2_norm(moved) <= 0.7 * (1 + 1e-6)
        assert gap(moved, singles[left_out]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_ones_are_no_preconditioner_bit_for_bit(name):
    gradients, params = built(name)
    plain = Clip(l2_clip_norm=0.7)
    ones = {n: np.ones(p.shape, np.float32) for n, p in params.items()}
    same = Preconditioned(multiplier=ones, bound=plain)
    left, right = (gradients.bounded_sum(params, EVERYBODY, b, KEY) for b in (plain, same))
    assert_same(left, right)


def test_a_multiplier_broadcasts_as_it_does_for_users():
    gradients, params = built("softmax regression")
    column = np.linspace(0.1, 5, 12, dtype=np.float32)[:, None]
    full = np.broadcast_to(column, params["kernel"].shape).copy()
    bounds = (
        Preconditioned(multiplier={"kernel": m}, bound=Clip(l2_clip_norm=1.0))
        for m in (column, full)
    )
    assert_same(*(gradients.bounded_sum(params, EVERYBODY, bound) for bound in bounds))


def test_dropout_needs_a_key_and_every_example_has_its_own():
    gradients, params = built("partly frozen")
    bound = Clip(l2_clip_norm=0.7)
    with refuses(ValueError, "key"):
        gradients.bounded_sum(params, EVERYBODY, bound)
    one = gradients.bounded_sum(params, EVERYBODY, bound, KEY.fold(1))
    again = gradients.bounded_sum(params, EVERYBODY, bound, KEY.fold(1))
    other = gradients.bounded_sum(params, EVERYBODY, bound, KEY.fold(2))
    assert_same(one, again)
    assert gap(one, other) > 1e-3
    assert gap(gradients.gradient(params, EVERYBODY), gradients.gradient(params, EVERYBODY)) == 0
    dropped = gradients.gradient(params, EVERYBODY, KEY)
    total = gradients.bounded_sum(params, EVERYBODY, Unbounded(), KEY)
    assert gap({n: -a / NUM for n, a in total.items()}, dropped) < 1e-6


def test_masks_keep_the_mean_and_are_an_examples_own():
    layer = nn.Dropout(0.3)
    masks, keys = ExampleMasks(layer), [KEY.fold(n) for n in range(3)]
    with masks.drawn(keys):
        together = layer(torch.ones(3, 4000))
    assert set(together.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert together.mean().item() == pytest.approx(1.0, abs=0.02)
    with masks.drawn(keys[1:2]):
        assert torch.equal(layer(torch.ones(1, 4000)), together[1:2])
    with masks.drawn(keys), refuses(ValueError, 5, 3):
        layer(torch.ones(5, 2))
    with masks.drawn(None):
        assert torch.equal(layer(torch.ones(2, 7)), torch.ones(2, 7))


def test_tiny_gradients_are_normalised_and_not_amplified_wrongly():
    gradients, params = built("linear")
    gradients._x[:] *= np.float32(1e-20)
    bound = Normalise(l2_clip_norm=0.7)
    params = {n: p * 0 for n, p in params.items()}
    frozen = ModuleGradients(
        nn.Linear(12, CLASSES, bias=False), cross_entropy, gradients._x, gradients._y
    )
    one = frozen.bounded_sum({"weight": params["weight"]}, np.array([1]), bound)
    assert 0.7 * (1 - 1e-6) <= tree.l2_norm(one) <= 0.7
