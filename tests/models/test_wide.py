"""The wide residual network, and several views of an image as one bounded contribution."""

import numpy as np
import pytest
import torch

from fedpriv.mechanisms import Clip
from fedpriv.models.wide import Views, WideResNet, views, views_loss
from fedpriv.training.local.module import module_params
from fedpriv.training.per_example.module import ModuleGradients
from tests.harness.refusals import refuses
from tests.harness.toys_of_training import example_sum


def test_wrn_16_4_has_its_size():
    assert sum(p.numel() for p in WideResNet().parameters()) == 2_751_146
    assert sum(p.numel() for p in WideResNet(depth=10, width=1).parameters()) == 78_186


def test_views_are_the_image_its_mirror_and_shifts():
    images = torch.arange(2 * 3 * 8 * 8.0).reshape(2, 3, 8, 8)
    first, mirrored, shifted = views(images, 3)
    assert torch.equal(first, images) and torch.equal(mirrored, images.flip(3))
    assert torch.equal(shifted[:, :, :4, :4], images[:, :, 4:, 4:])
    assert len({v.numpy().tobytes() for v in views(images, 16)}) == 16
    with refuses(ValueError, 17):
        Views(torch.nn.Identity(), 17)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.head = torch.nn.Linear(4, 10)

    def forward(self, images):
        return self.head(torch.tanh(self.conv(images)).mean((2, 3)))


def data(n=5):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3, 8, 8)).astype(np.float32), rng.integers(0, 10, n)


def test_an_examples_gradient_is_the_mean_over_its_views_before_the_bound():
    torch.manual_seed(0)
    inside, (x, y), bound = Small(), data(), Clip(l2_clip_norm=0.05)
    module = Views(inside, 6)
    params = module_params(module)
    summed = example_sum(
        ModuleGradients(module, views_loss, x, y), params, np.arange(len(x)), bound
    )
    expected = {name: np.zeros_like(array, np.float64) for name, array in params.items()}
    for image, label in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
        seen = torch.cat(list(views(image[None], 6)))  # their mean, and then the bound
        loss = torch.nn.functional.cross_entropy(inside(seen), label.repeat(6))
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        norm = float(sum(g.double().square().sum() for g in gradients)) ** 0.5
        assert norm > 0.05  # the bound binds
        for (name, _), gradient in zip(module.named_parameters(), gradients, strict=True):
            expected[name] -= gradient.double().numpy() * 0.05 / norm
    for name, array in expected.items():
        np.testing.assert_allclose(summed[name], array, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("multiplicity", [1, 16])
def test_one_example_moves_the_sum_by_the_bound_whatever_the_multiplicity(multiplicity):
    torch.manual_seed(0)
    x, y = data(1)
    module = Views(Small(), multiplicity)
    params = module_params(module)
    found = example_sum(
        ModuleGradients(module, views_loss, x, y), params, np.arange(1), Clip(l2_clip_norm=0.05)
    )
    norm = np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in found.values()))
    assert norm == pytest.approx(0.05, rel=1e-5)


@pytest.mark.slow
def test_the_network_has_a_way_that_is_no_loop():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 3, 32, 32)).astype(np.float32)
    made = ModuleGradients(
        Views(WideResNet(depth=10, width=1), 2), views_loss, x, np.array([0, 1, 2])
    )
    assert made.way == "vmap"
