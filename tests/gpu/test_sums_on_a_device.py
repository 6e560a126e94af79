"""Bounding and adding on a device: the integers of the processor."""

import numpy as np
import pytest
import torch

from fedpriv import tree
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.sums import RunningSum
from fedpriv.training.device_sum import DeviceSum, l2_norms
from fedpriv.training.devices import usable_device

GRID = Rounded(bound=Clip(l2_clip_norm=0.3))


@pytest.mark.gpu
def test_the_sum_on_the_device_is_of_the_processors_integers(device):
    rng, where = np.random.default_rng(1), usable_device(device)
    template = {"w": np.zeros((50, 20), np.float32)}
    updates = rng.normal(size=(40, 50, 20)).astype(np.float32)
    stacked = {"w": torch.from_numpy(updates).to(where)}
    expected = RunningSum(template, GRID.granularity)
    scaled = [GRID.scaled({"w": each}) for each in updates]
    for update, factor in scaled:
        expected.add(update, factor)
    zeros = {"w": torch.zeros(50, 20, device=where)}
    found = DeviceSum(zeros, GRID.granularity)
    assert found.add(stacked, [factor for _, factor in scaled]) == []
    np.testing.assert_array_equal(found.result()["w"], expected.result()["w"])
    norms = [tree.l2_norm({"w": each}) for each in updates]
    np.testing.assert_allclose(l2_norms(stacked), norms, rtol=1e-14)
