"""A worker in this process: where it is; it sums and measures by the oracle that it opens."""

from __future__ import annotations

import os

import pytest

from fedpriv.backends.ray.backend import Worker
from tests.backends import staff


def test_it_says_where_it_is(monkeypatch):
    monkeypatch.setattr("ray.get_gpu_ids", list)
    opened = Worker().open(staff.open_worker)
    assert opened.process == os.getpid() and opened.device.startswith("cpu")
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [3])
    assert Worker().open(staff.open_worker, True).device.startswith("logical device 3: cpu")


def test_a_gpu_that_torch_does_not_see_is_an_error(monkeypatch):
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [0])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError):
        Worker().open(staff.open_worker)
