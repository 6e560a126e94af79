"""One oracle for every backend: a table of synthetic users, and the in-process sum over them."""

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
from fedpriv.backends.flower.strategy import GridSettings, connect
from fedpriv.backends.in_process import ThreadBackend
from fedpriv.mechanisms import Capped, Clip, Normalise, Preconditioned, Rounded, Unbounded
from fedpriv.mechanisms.bounds import Checked
from fedpriv.rng import Key
from fedpriv.training.local.schedule import Schedule
from tests.combinations import each_once

_SPEC = importlib.util.spec_from_file_location(
    "stub_grid", Path(__file__).parents[1] / "backends" / "flower" / "stub_grid.py"
)
stub = sys.modules["stub_grid"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(stub)

TASK = stub.TinyTags()
SCHEDULE = Schedule(learning_rate=2.0, batch_size=3, epochs=2, max_examples=6)
STEPS = {"kernel": np.linspace(1, 5, 30, dtype=np.float32).reshape(-1, 1)}
KEY = Key.simulation(1).fold("users").fold(4).fold(2)
BOUNDS = {
    "clip": Clip(l2_clip_norm=0.3),
    "normalise": Normalise(l2_clip_norm=0.7, regulariser=0.1),
    "unbounded": Unbounded(),
    "preconditioned": Preconditioned(multiplier=STEPS, bound=Clip(l2_clip_norm=0.5)),
    "rounded": Rounded(bound=Clip(l2_clip_norm=0.3)),
}
#: Of methods with plans of their own: capped losses, and updates of which none is shortened.
OWN = {"capped": Capped(cap=0.01, num_coordinates=124), "checked": Checked(l2_bound=150.0)}


def serial(multiplier):
    return SerialBackend(trainer=TASK.trainer(SCHEDULE, multiplier), data=TASK.data)


def on_grid(multiplier, num_nodes, num_shards=0, **settings):
    grid = stub.StubGrid(
        stub.nodes(TASK, TASK.trainer(SCHEDULE, multiplier), num_nodes, num_shards)
    )
    return connect(grid, TASK.roster, GridSettings(**settings))


def on_threads(multiplier, num_workers):
    return ThreadBackend(
        trainer=TASK.trainer(SCHEDULE, multiplier),
        data=TASK.data,
        measure=lambda params, **_: None,
        num_workers=num_workers,
        max_examples=SCHEDULE.max_examples,
    )


BACKENDS = {
    "threads, one": lambda multiplier: on_threads(multiplier, 1),
    "threads, two": lambda multiplier: on_threads(multiplier, 2),
    "threads, four": lambda multiplier: on_threads(multiplier, 4),
    "flower, one user a node": lambda multiplier: on_grid(multiplier, 12),
    "flower, one at a time": lambda multiplier: on_grid(multiplier, 12, max_in_flight=1),
    "flower, several users a node": lambda multiplier: on_grid(multiplier, 5),
    "flower, one node": lambda multiplier: on_grid(multiplier, 1),
    "flower, two shards on seven nodes": lambda multiplier: on_grid(multiplier, 7, 2),
}
# A node makes a trainer of its own, and twelve of them differ from five in nothing but number.
_TWELVE = ("flower, one user a node", "flower, one at a time")
EVERY = [
    pytest.param(make, id=name, marks=pytest.mark.slow if name in _TWELVE else ())
    for name, make in BACKENDS.items()
]

#: What is the same of few and many nodes, asked of few by default.
_FEW = ("threads, two", "threads, four", "flower, two shards on seven nodes")
FEW = [
    pytest.param(make, id=name, marks=() if name in _FEW else pytest.mark.slow)
    for name, make in BACKENDS.items()
]


@pytest.fixture(scope="module")
def on_ray(ray):
    """From a number of workers to a backend, which is kept for the module."""
    from fedpriv.backends.ray.backend import RayBackend

    with contextlib.ExitStack() as stack:

        @functools.cache
        def make(workers):
            backend = RayBackend(
                share=replace(ray.share, num_workers=workers, num_cpus=0.1),
                open_backend=functools.partial(stub.open_worker, schedule=SCHEDULE),
                data=TASK.data,
                max_examples=SCHEDULE.max_examples,
            )
            return stack.enter_context(contextlib.closing(backend))

        yield make


WORKERS = [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 4))]


def total(backend, bound, cohort, key=KEY):
    done = backend.partial_sum(
        params=TASK.params(), bound=bound, cohort=cohort, key=key, round_num=4, attempt=2
    )
    assert done.num_users == len(cohort)
    return done


def difference(left, right):
    return {name: left[name] - right[name] for name in left}


def relative_error(found, expected):
    found, expected = tree.to_dense(found), tree.to_dense(expected)
    return tree.l2_norm(difference(found, expected)) / tree.l2_norm(expected)


# By default each backend with some bound, and each bound over Flower's wire.
@pytest.mark.parametrize(
    ("make", "bound", "multiplier"),
    each_once(
        EVERY,
        BOUNDS,
        {"plain": {}, "local": STEPS},
        also=lambda make, bound, steps: (make, steps) == ("flower, one node", "local"),
    ),
)
def test_every_backend_gives_the_sum_of_the_oracle(make, bound, multiplier):
    cohort = TASK.roster[1:9]
    expected = total(serial(multiplier), bound, cohort)
    found = total(make(multiplier), bound, cohort)
    assert found.num_failed == expected.num_failed == 0
    assert relative_error(found.real(), expected.real()) < 1e-6


@pytest.mark.parametrize(
    ("order", "num_nodes", "num_shards", "bound"),
    each_once(
        ["as asked", "backwards", "one by one"],
        [
            *(pytest.param(*nodes, id=str(nodes)) for nodes in ((5, 0), (1, 0), (2, 2))),
            *(pytest.param(12, n, marks=pytest.mark.slow) for n in (0, 3)),
        ],
        ["clip", "normalise", "preconditioned"],
    ),
)
def test_on_a_grid_flower_gives_the_very_integers(num_nodes, num_shards, order, bound):
    """Exact, whoever hosts whom and in whatever order the answers come."""
    exact, cohort = Rounded(bound=BOUNDS[bound]), TASK.roster[1:11]
    expected = total(serial(STEPS), exact, cohort)
    window = 1 if order == "one by one" else 16
    backend = on_grid(STEPS, num_nodes, num_shards, max_in_flight=window)
    if order == "backwards":
        grid = backend.exchange.grid
        grid.slow.update({node: max(grid.hosts) - node for node in grid.hosts})
    found = total(backend, exact, cohort)
    assert (
        (found.granularity, found.num_failed)
        == (exact.granularity, expected.num_failed)
        == (exact.granularity, 0)
    )
    for name, tensor in tree.to_dense(expected.total).items():
        assert tensor.dtype.kind == tree.to_dense(found.total)[name].dtype.kind == "i"
        assert tensor.any() and np.array_equal(tree.to_dense(found.total)[name], tensor)


def assert_the_very_sum(found, expected):
    assert (found.granularity, found.num_failed) == (expected.granularity, 0)
    assert expected.num_failed == 0
    found, expected = tree.to_dense(found.total), tree.to_dense(expected.total)
    for name, tensor in expected.items():
        assert tensor.any() and np.array_equal(found[name], tensor)


@pytest.mark.parametrize(("make", "bound"), each_once(EVERY, OWN))
def test_sums_of_other_methods_are_the_same_to_the_last_bit(make, bound):
    """Whole numbers, or floats that float64 adds without rounding, whatever their order."""
    cohort = TASK.roster[1:11]
    assert_the_very_sum(total(make({}), bound, cohort), total(serial({}), bound, cohort))


@pytest.mark.ray
@pytest.mark.parametrize("bound", OWN.values(), ids=OWN)
@pytest.mark.parametrize("workers", WORKERS)
def test_ray_gives_the_very_sum_of_other_methods(on_ray, workers, bound):
    cohort = TASK.roster[1:11]
    assert_the_very_sum(total(on_ray(workers), bound, cohort), total(serial({}), bound, cohort))


@pytest.mark.ray
@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("workers", WORKERS)
def test_ray_gives_the_sum_of_the_oracle(on_ray, workers, bound):
    cohort = TASK.roster[1:9]
    expected, found = total(serial({}), bound, cohort), total(on_ray(workers), bound, cohort)
    assert found.num_failed == expected.num_failed == 0
    assert relative_error(found.real(), expected.real()) < 1e-6


@pytest.mark.ray
@pytest.mark.parametrize("bound", ["clip", "normalise", "preconditioned"])
@pytest.mark.parametrize("workers", WORKERS)
def test_on_a_grid_ray_gives_the_very_sum(on_ray, workers, bound):
    """Exact, whoever trains whom: 8 users dealt to 1, 2 and 4 workers."""
    exact, cohort = Rounded(bound=BOUNDS[bound]), TASK.roster[1:9]
    expected = tree.to_dense(total(serial({}), exact, cohort).real())
    found = tree.to_dense(total(on_ray(workers), exact, cohort).real())
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert tree.l2_norm(expected) > 0


@pytest.mark.parametrize("make", EVERY)
def test_an_empty_cohort_is_a_sum_of_zeros(make):
    found = total(make({}), BOUNDS["clip"], ())
    assert tree.l2_norm(found.real()) == 0.0
    assert {name: t.shape for name, t in found.real().items()} == {"bias": (4,), "kernel": (30, 4)}
    assert found.num_failed == 0


@pytest.mark.parametrize("make", FEW)
def test_a_backend_follows_the_key_and_leaves_the_params_alone(make):
    backend, cohort = make({}), TASK.roster[:6]
    params = TASK.params()
    before = {name: array.copy() for name, array in params.items()}
    ask = {"params": params, "bound": BOUNDS["clip"], "cohort": cohort, "attempt": 1}
    first = backend.partial_sum(**ask, key=KEY, round_num=1)
    again = backend.partial_sum(**ask, key=KEY, round_num=1)
    other = backend.partial_sum(**ask, key=KEY.fold("other"), round_num=2)
    assert relative_error(again.real(), first.real()) < 1e-12
    assert relative_error(other.real(), first.real()) > 1e-6
    assert all(np.array_equal(before[name], params[name]) for name in before)


@pytest.mark.parametrize("make", [pytest.param(serial, id="serial"), *FEW])
def test_a_poisoned_user_changes_only_its_own_contribution(make, monkeypatch):
    bound, cohort = BOUNDS["clip"], TASK.roster[:10]
    poisoned = cohort[3]
    clean = total(make({}), bound, [user for user in cohort if user != poisoned])
    bad = TASK.data.users[poisoned]
    monkeypatch.setitem(TASK.data.users, poisoned, _with_counts(bad, np.nan))
    broken = total(make({}), bound, cohort)
    assert broken.num_failed == 1
    assert relative_error(broken.real(), clean.real()) < 1e-6
    monkeypatch.setitem(TASK.data.users, poisoned, _with_counts(bad, 1e30))
    huge = total(make({}), bound, cohort)
    moved = difference(tree.to_dense(huge.real()), tree.to_dense(clean.real()))
    assert tree.l2_norm(moved) <= bound.l2_bound * (1 + 1e-6)


def _with_counts(examples, value):
    return replace(examples, counts=np.full_like(examples.counts, value))
