"""What modules and losses keep between examples moves no other example, or is refused."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.training.failures import KeepsStateError
from fedpriv.training.per_example.module import WAYS
from tests.harness.toys_of_training import example_sum
from tests.training.per_example.module.layers import (
    BOUND,
    EVERYBODY,
    WIDTH,
    Layer,
    floats,
    furthest,
    gap,
    made,
)


def running_mean(module, h):
    module.mean = 0.5 * getattr(module, "mean", 0.0) + 0.5 * h.detach().mean(0)
    return h + module.mean


def counted(module, h):
    module.calls = getattr(module, "calls", 0) + 1
    return h * module.calls


def listed(module, h):
    module.seen = [*getattr(module, "seen", []), h.detach()]
    return h


def largest(module, h):
    """Stays as it is as soon as the larger of two examples went through."""
    module.largest = max(getattr(module, "largest", 0.0), float(h.detach().abs().max()))
    return h


def in_an_object(module, h):
    kept = module.between.__dict__.setdefault("mean", torch.zeros(()))
    module.between.__dict__["mean"] = kept + h.detach().mean()
    return h + kept


def closed_over():
    seen = []

    def between(_, h):
        seen.append(h.detach().mean())
        return h + sum(seen)

    return between


def counter_of_the_class(_, h):
    Counted.calls += 1
    return h * Counted.calls


class Counted:
    calls = 0


def test_an_example_that_freezes_a_parameter_contributes_zero_alone():
    def freezes(module, h):
        if float(h.abs().max()) > 0.9999:
            module.above.weight.requires_grad_(False)
        return h

    x = floats(WIDTH)
    x[7] *= 1000
    gradients, params = made(Layer(freezes), x, way="loop")
    found = example_sum(gradients, params, EVERYBODY, BOUND)
    expected = example_sum(gradients, params, np.delete(EVERYBODY, 7), BOUND)
    assert gap(found, expected) < 1e-6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("between", [running_mean, counted, listed, largest])
def test_what_the_module_keeps_does_not_reach_the_next_example(between, way):
    """Each is given a copy of its own: the sum is that of each alone."""
    if way != "loop" and between is largest:
        pytest.skip("looks at values")
    gradients, params = made(Layer(between), way=way)
    total = example_sum(gradients, params, EVERYBODY, BOUND)
    singles = [example_sum(gradients, params, np.array([i]), BOUND) for i in EVERYBODY]
    assert gap({n: sum(one[n] for one in singles) for n in params}, total) < 1e-6
    assert furthest(gradients, params, EVERYBODY) <= BOUND.l2_bound * (1 + 1e-5)


def into_weights(module, h):
    """As an embedding with a `max_norm` does."""
    with torch.no_grad():
        module.above.weight.mul_(1.0 + float(h.detach().abs().mean()))
    return h


def test_what_a_forward_pass_writes_into_weights_does_not_reach_the_next_example():
    gradients, params = made(Layer(into_weights), way="loop")
    total = example_sum(gradients, params, EVERYBODY, BOUND)
    singles = [example_sum(gradients, params, np.array([i]), BOUND) for i in EVERYBODY]
    assert gap({n: sum(one[n] for one in singles) for n in params}, total) < 1e-6
    assert furthest(gradients, params, EVERYBODY) <= BOUND.l2_bound * (1 + 1e-5)


@pytest.mark.parametrize("way", [None, *WAYS])
@pytest.mark.parametrize("between", [in_an_object, closed_over(), counter_of_the_class])
def test_what_is_kept_where_no_copy_reaches_is_refused(between, way):
    gradients, params = made(Layer(between), way=way)
    with pytest.raises(KeepsStateError):
        example_sum(gradients, params, EVERYBODY, BOUND)


def test_a_loss_that_keeps_something_is_refused():
    kept = []

    def loss(outputs, targets):
        kept.append(outputs.detach().mean())
        return functional.cross_entropy(outputs, targets) * (1 + kept[0] * len(kept))

    with pytest.raises(KeepsStateError):
        assert made(Layer(), loss=loss, way="loop")[0].way


def test_a_generator_of_its_own_is_refused():
    stream = torch.Generator().manual_seed(0)

    def noisy(_, h):
        return h + torch.randn(h.shape, generator=stream)

    with pytest.raises(KeepsStateError):
        assert made(Layer(noisy))[0].way


def test_a_constant_made_at_the_first_call_is_fine():
    def scaled(module, h):
        if getattr(module, "scale", None) is None:
            module.scale = torch.linspace(0.5, 2.0, h.shape[1], dtype=h.dtype)
        return h * module.scale

    gradients, params = made(Layer(scaled))
    assert gradients.way == "factors"
    assert not hasattr(gradients._module, "scale")
    assert furthest(gradients, params, EVERYBODY) <= BOUND.l2_bound * (1 + 1e-5)


@pytest.mark.parametrize("between", [lambda _, h: h, running_mean])
def test_a_trial_leaves_the_module_as_it_was(between):
    module = nn.Sequential(Layer(between), nn.Dropout(0.5).eval())
    module.register_buffer("factor", torch.full((3,), 2.0))
    module[0].constant = constant = torch.ones(2)
    params, buffer = list(module.parameters()), module.get_buffer("factor")
    places = [p.data_ptr() for p in params]
    values = [p.detach().clone() for p in params]
    names = set(vars(module[0]))
    assert made(module)[0].way
    assert all(a is b for a, b in zip(params, module.parameters(), strict=True))
    assert [p.data_ptr() for p in params] == places
    assert all(map(torch.equal, params, values))
    assert module.get_buffer("factor") is buffer and torch.equal(buffer, torch.full((3,), 2.0))
    assert module[0].constant is constant and set(vars(module[0])) == names
    assert module.training and module[0].training and not module[1].training
