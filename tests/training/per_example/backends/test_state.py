"""Modules and losses that keep something between examples are refused."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.training.per_example.backends import PER_EXAMPLE_BACKENDS, choose
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import cross_entropy
from tests.training.per_example.backends.layers import BOUND, EVERYBODY, Layer, X, Y, furthest, made


def mean(module, h):
    """A running one."""
    module.mean = 0.5 * getattr(module, "mean", 0.0) + 0.5 * h.detach().mean(0)
    return h + module.mean


def calls(module, h):
    module.calls = getattr(module, "calls", 0) + 1
    return h * module.calls


def seen(module, h):
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


class TestState:
    def test_attributes_that_change_are_refused(self, subtests):
        for between in (mean, calls, seen, largest):
            for backend in (None, *PER_EXAMPLE_BACKENDS):
                with subtests.test(between=between, backend=backend):
                    gradients, params = made(Layer(between), backend=backend)
                    with refuses(ValueError, f"Layer.{between.__name__}"):
                        gradients.bounded_sum(params, EVERYBODY, BOUND)

    @pytest.mark.parametrize("backend", [None, "loop"])
    def test_attributes_of_children_too(self, backend):
        gradients, _ = made(nn.Sequential(Layer(mean), nn.Tanh()), backend=backend)
        with refuses(ValueError, "Sequential.0.mean"):
            assert gradients.backend

    @pytest.mark.parametrize("backend", [None, *PER_EXAMPLE_BACKENDS])
    def test_what_is_kept_elsewhere_is_seen_by_what_it_does(self, backend):
        def of_its_own(module, h):
            return in_an_object(module, h)

        gradients, params = made(Layer(of_its_own), backend=backend)
        with pytest.raises(ValueError):
            gradients.bounded_sum(params, EVERYBODY, BOUND)

    def test_a_loss_that_keeps_something_is_refused(self):
        kept = []

        def loss(outputs, targets):
            kept.append(outputs.detach().mean())
            return functional.cross_entropy(outputs, targets) * (1 + kept[0] * len(kept))

        with pytest.raises(ValueError):
            assert made(Layer(), loss=loss, backend="loop")[0].backend

    def test_a_generator_of_its_own_is_refused(self):
        stream = torch.Generator().manual_seed(0)

        def noisy(_, h):
            return h + torch.randn(h.shape, generator=stream)

        with refuses(ValueError, "stream"):
            assert made(Layer(noisy))[0].backend

    def test_what_the_trial_did_not_meet_stops_the_loop(self):
        class OnLarge(Layer):
            def forward(self, x):
                if float(x.abs().max()) > 50:
                    self.mean = x.mean(0)
                return super().forward(x)

        x = X.copy()
        x[7] *= 1000
        gradients, params = made(OnLarge(), x, backend="loop")
        gradients.bounded_sum(params, EVERYBODY[:7], BOUND)
        with refuses(ValueError, "OnLarge.mean"):
            gradients.bounded_sum(params, EVERYBODY, BOUND)

    def test_a_constant_made_at_the_first_call_is_fine(self):
        def scaled(module, h):
            if getattr(module, "scale", None) is None:
                module.scale = torch.linspace(0.5, 2.0, h.shape[1], dtype=h.dtype)
            return h * module.scale

        gradients, params = made(Layer(scaled))
        assert gradients.backend == "ghost"
        assert not hasattr(gradients._module, "scale")  # that of the trial has another precision
        assert furthest(gradients, params, EVERYBODY) <= BOUND.l2_bound * (1 + 1e-5)

    @pytest.mark.parametrize("between", [lambda _, h: h, mean])
    def test_a_trial_leaves_the_module_as_it_was(self, between):
        module = nn.Sequential(Layer(between), nn.Dropout(0.5).eval())
        module.register_buffer("factor", torch.full((3,), 2.0))
        module[0].constant = constant = torch.ones(2)
        params, buffer = list(module.parameters()), module.get_buffer("factor")
        places = [p.data_ptr() for p in params]
        values = [p.detach().clone() for p in params]
        names = set(vars(module[0]))
        with refuses(ValueError, "mean") if between is mean else nullcontext():
            choose(module, cross_entropy, X, Y)
        assert all(a is b for a, b in zip(params, module.parameters(), strict=True))
        assert [p.data_ptr() for p in params] == places
        assert all(map(torch.equal, params, values))
        assert module.get_buffer("factor") is buffer and torch.equal(buffer, torch.full((3,), 2.0))
        assert torch.equal(module[0].constant, constant) and set(vars(module[0])) == names
        assert module.training and module[0].training and not module[1].training
