"""A worker without Ray: where it is; it sums and measures by the oracle that it opens."""

from __future__ import annotations

import os

import pytest

from fedpriv.backends.backend import Worker
from tests.backends import staff


def test_it_says_where_it_is():
    assert Worker().open(staff.open_worker).process == os.getpid()
    assert Worker().open(staff.open_worker).device.startswith("cpu")
    opened = Worker().open(staff.open_worker, device_ids=[3], logical=True)
    assert opened.device.startswith("logical device 3: cpu")


def test_a_gpu_that_torch_does_not_see_is_an_error(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError):
        Worker().open(staff.open_worker, device_ids=[0])
