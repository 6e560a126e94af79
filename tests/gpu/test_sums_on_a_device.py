"""Bounding and adding on a device: the integers of the processor."""

import numpy as np
import pytest
import torch

from fedpriv import tree
from fedpriv.mechanisms import AdaptiveClip, Clip, Rounded
from fedpriv.sums import RunningSum
from fedpriv.training.bounded_sum import RowStack, template_with
from fedpriv.training.device_sum import DeviceStack, DeviceSum
from fedpriv.training.devices import usable_device

BOUNDS = {
    "clip": Rounded(bound=Clip(l2_clip_norm=0.3)),
    "adaptive": Rounded(bound=AdaptiveClip(l2_clip_norm=30.0, least=1.0, most=100.0)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_the_sum_on_the_device_is_of_the_processors_integers(device, bound):
    rng, where = np.random.default_rng(1), usable_device(device)
    updates = rng.normal(size=(40, 50, 20)).astype(np.float32)
    norms = np.array([tree.l2_norm({"w": each}) for each in updates])
    clip_norm = float(np.median(norms))
    template = template_with({"w": np.zeros((50, 20), np.float32)}, bound, clip_norm)
    # With room for rounding. One user is left out.
    factors = 0.999 * bound.factors(norms, clip_norm)
    factors[7] = 0.0
    besides = {name: 0.999 * rows for name, rows in bound.besides(norms, clip_norm).items()}
    expected = RunningSum(template, bound.granularity)
    assert RowStack({"w": updates}).add_to(expected, factors, besides).size == 0
    stack = DeviceStack({"w": torch.from_numpy(updates).to(where)})
    zeros = {name: torch.from_numpy(array).to(where) for name, array in template.items()}
    found = DeviceSum(zeros, bound.granularity)
    assert stack.add_to(found, factors, besides).size == 0
    sums, wanted = found.result(), expected.result()
    assert set(sums) == set(wanted) == set(template)
    for name, array in wanted.items():
        np.testing.assert_array_equal(sums[name], array)
        assert array.any() or name != "w"
    np.testing.assert_allclose(stack.norms(), norms, rtol=1e-14)
