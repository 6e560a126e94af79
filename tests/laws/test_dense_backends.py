"""The backends' oracle for dense modules: the very integers, one by one and many at once."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpriv import tree
from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.strategy import connect
from fedpriv.mechanisms import Clip, Normalise, Rounded
from fedpriv.rng import Key
from fedpriv.training.local.module import ModuleTrainer
from fedpriv.training.local.vectorised import VectorisedTrainer
from tests.combinations import each_once

HERE = Path(__file__).parent


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stub = _load(HERE.parent / "backends" / "flower" / "stub_grid.py")
dense = _load(HERE / "dense_task.py")

KEY = Key.simulation(1).fold("users").fold(4).fold(2)
BOUNDS = {
    "clip": Rounded(bound=Clip(l2_clip_norm=0.3)),
    "normalise": Rounded(bound=Normalise(l2_clip_norm=0.7, regulariser=0.1)),
}
ONE_BY_ONE, MANY_AT_ONCE = dense.task(1), dense.task(32)
TASKS = {"one by one": ONE_BY_ONE, "many at once": MANY_AT_ONCE}


def total(backend, task, bound):
    done = backend.partial_sum(
        params=task.init_params(Key.simulation(9)),
        bound=bound,
        cohort=task.roster,
        key=KEY,
        round_num=4,
        attempt=2,
    )
    assert (done.num_users, done.num_failed) == (len(task.roster), 0)
    return done


def serial(task):
    trainer = task.trainer(dense.SCHEDULE, {})
    assert isinstance(trainer, ModuleTrainer if task is ONE_BY_ONE else VectorisedTrainer)
    return SerialBackend(trainer=trainer, data=task.data)


def assert_very_same(found, expected):
    found, expected = tree.to_dense(found.total), tree.to_dense(expected.total)
    for name, tensor in expected.items():
        assert tensor.dtype.kind == found[name].dtype.kind == "i" and tensor.any()
        np.testing.assert_array_equal(found[name], tensor)


@pytest.mark.parametrize(
    ("num_nodes", "num_shards", "task", "bound"),
    each_once(
        [pytest.param(1, 0), pytest.param(12, 0, marks=pytest.mark.slow), pytest.param(7, 2)],
        TASKS,
        BOUNDS,
    ),
)
def test_flower(num_nodes, num_shards, task, bound):
    trainer = task.trainer(dense.SCHEDULE, {})
    grid = stub.StubGrid(stub.nodes(task, trainer, num_nodes, num_shards))
    backend = connect(grid, task.roster)
    assert_very_same(total(backend, task, bound), total(serial(task), task, bound))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("task", [ONE_BY_ONE, MANY_AT_ONCE], ids=TASKS)
@pytest.mark.parametrize("workers", [2, 1, 4])
def test_ray(ray, workers, task):
    from fedpriv.backends.ray.backend import RayBackend

    users_at_once = 1 if task is ONE_BY_ONE else 32
    backend = RayBackend(
        share=replace(ray.share, num_workers=workers, num_cpus=0.1),
        open_backend=functools.partial(dense.open_worker, users_at_once=users_at_once),
        data=task.data,
        max_examples=dense.SCHEDULE.max_examples,
    )
    with contextlib.closing(backend):
        for bound in BOUNDS.values():
            assert_very_same(total(backend, task, bound), total(serial(task), task, bound))
