"""The backends' oracle for next words: serial, threads, Ray, Flower find the very same integers."""

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
from fedpriv.backends.in_process import ThreadBackend
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key

HERE = Path(__file__).parent


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stub = _load(HERE.parents[1] / "backends" / "flower" / "stub_grid.py")
words = _load(HERE / "word_task.py")

KEY = Key.simulation(1).fold("users").fold(4).fold(2)
BOUND = Rounded(bound=Clip(l2_clip_norm=0.05))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return words.corpus(tmp_path_factory.mktemp("corpora") / "phrases")


def total(backend, task):
    done = backend.partial_sum(
        params=task.init_params(Key.simulation(9)),
        bound=BOUND,
        cohort=task.roster,
        key=KEY,
        round_num=4,
        attempt=2,
    )
    assert (done.num_users, done.num_failed) == (len(task.roster), 0)
    return tree.to_dense(done.total)


def serial(task):
    trainer = task.trainer(words.SCHEDULE, {})
    return total(SerialBackend(trainer=trainer, data=task.data), task)


def assert_very_same(found, expected):
    for name, tensor in expected.items():
        assert tensor.dtype.kind == found[name].dtype.kind == "i" and tensor.any()
        np.testing.assert_array_equal(found[name], tensor)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_threads(workers, corpus):
    task = words.task(corpus)
    backend = ThreadBackend(
        trainer=task.trainer(words.SCHEDULE, {}),
        data=task.data,
        measure=task.evaluate,
        num_workers=workers,
        max_examples=words.SCHEDULE.max_examples,
    )
    with contextlib.closing(backend):
        assert_very_same(total(backend, task), serial(task))
        params = task.init_params(Key.simulation(9))
        found, expected = backend.evaluate(params, public=True), task.evaluate(params, public=True)
        assert found.totals["accuracy"] == expected.totals["accuracy"]


@pytest.mark.parametrize(
    ("num_nodes", "num_shards"), [(1, 0), pytest.param(14, 0, marks=pytest.mark.slow), (7, 2)]
)
def test_flower(num_nodes, num_shards, corpus):
    task = words.task(corpus)
    trainer = task.trainer(words.SCHEDULE, {})
    grid = stub.StubGrid(stub.nodes(task, trainer, num_nodes, num_shards))
    assert_very_same(total(connect(grid, task.roster), task), serial(task))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 1])
def test_ray(ray, workers, corpus):
    from fedpriv.backends.ray.backend import RayBackend

    task = words.task(corpus)
    backend = RayBackend(
        share=replace(ray.share, num_workers=workers, num_cpus=0.1),
        open_backend=functools.partial(words.open_worker, folder=str(corpus.directory)),
        data=task.data,
        max_examples=words.SCHEDULE.max_examples,
    )
    with contextlib.closing(backend):
        assert_very_same(total(backend, task), serial(task))
