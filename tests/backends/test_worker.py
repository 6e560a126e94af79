"""A worker without Ray: what it opens, sums and measures."""

from __future__ import annotations

import os

import pytest

from fedpriv.backends import SerialBackend
from fedpriv.backends.backend import Order
from fedpriv.backends.worker import Worker
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.training.evaluate import combined

BOUND, KEY = Rounded(bound=Clip(l2_clip_norm=0.3)), Key.simulation(1)


@pytest.fixture
def worker(staff):
    made = Worker()
    made.open(staff.open_worker)
    return made


def read_only(params):
    for array in params.values():
        array.flags.writeable = False
    return params


def test_its_sum_is_that_of_the_oracle_from_params_it_cannot_change(staff, worker):
    cohort = staff.ROSTER[:7]
    order = Order(params=read_only(staff.params()), bound=BOUND, key=KEY)
    found = worker.partial_sum(order, cohort)
    oracle = SerialBackend(trainer=staff.trainer(), data=staff.Users()).sum_over(cohort, order)
    assert found.num_users == 7 and found.num_failed == 0
    assert staff.same(found, oracle)


@pytest.mark.parametrize("of", [1, 2, 3, 7, 40])
def test_parts_are_measured_to_the_whole(staff, worker, of):
    whole = worker.evaluate(staff.params(), True, (0, 1))
    parts = [worker.evaluate(staff.params(), True, (part, of)) for part in range(of)]
    assert combined(parts) == whole


def test_it_says_where_it_is(staff):
    assert Worker().open(staff.open_worker).process == os.getpid()
    assert Worker().open(staff.open_worker).device.startswith("cpu")
    opened = Worker().open(staff.open_worker, device_ids=[3], logical=True)
    assert opened.device.startswith("logical device 3: cpu")


def test_a_gpu_that_torch_does_not_see_is_an_error(staff, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="sees no GPU"):
        Worker().open(staff.open_worker, device_ids=[0])
