"""The Ray backend when things go wrong, and on devices: the sum is that of no fault at all."""

from __future__ import annotations

import functools
import logging
import os
import signal
from dataclasses import replace

import pytest

from fedpriv.backends import SerialBackend
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from tests.backends import staff
from tests.backends.frail import Frail
from tests.harness.toys_of_training import asked

pytestmark = pytest.mark.ray
EXACT = Rounded(bound=Clip(l2_clip_norm=0.3))
KEY = Key.simulation(1).fold("users")


@pytest.fixture(scope="module")
def hire(ray):
    """Make backends of so many workers; they are closed with the module."""
    from fedpriv.backends.ray.backend import RayBackend

    backends = []

    def make(num_workers, *, num_gpus=0.0, **context):
        backend = RayBackend(
            share=replace(ray.share, num_workers=num_workers, num_cpus=0.1, num_gpus=num_gpus),
            open_backend=functools.partial(staff.open_worker, **context),
            data=staff.Users(),
            max_examples=staff.SCHEDULE.max_examples_per_user,
        )
        backends.append(backend)
        return backend

    yield make
    for backend in backends:
        backend.close()


@pytest.fixture(scope="module")
def team(hire, tmp_path_factory):
    """Two workers, and what users may do to them."""
    deeds = staff.Deeds(str(tmp_path_factory.mktemp("deeds")))
    deeds.plan({})
    return hire(2, deeds=deeds), deeds


@pytest.fixture
def backend(team):
    """The two workers, unharmed unless a test asks for it."""
    backend, deeds = team
    deeds.plan({})
    return backend


@pytest.fixture
def deeds(backend, team):
    """What users do to the two workers."""
    return team[1]


def total(backend, cohort=None, bound=EXACT, key=KEY):
    cohort = staff.ROSTER[:9] if cohort is None else cohort
    return asked(backend, cohort=cohort, params=staff.params(), bound=bound, key=key)


def oracle(**arguments):
    return total(SerialBackend(trainer=staff.trainer(), data=staff.Users()), **arguments)


@pytest.mark.slow
def test_a_worker_that_dies_in_a_round_changes_nothing(backend, deeds):
    deeds.plan({"user-03": "kill"}, times=1)
    found = total(backend)
    assert deeds.done() == 1
    assert (found.num_users, found.num_failed) == (9, 0)
    assert staff.same(found, oracle())


@pytest.mark.slow
def test_a_user_that_always_kills_its_worker_contributes_zero_alone(
    backend, deeds, caplog, monkeypatch
):
    monkeypatch.setattr("fedpriv.backends.ray.backend._TRIES_OF_A_SHARE", 1)
    deeds.plan({"user-03": "exit"})
    others = [user for user in staff.ROSTER[:9] if user != "user-03"]
    with caplog.at_level(logging.WARNING):
        found = total(backend)
    assert (found.num_users, found.num_failed) == (9, 1)
    assert staff.same(found, oracle(cohort=others))
    assert deeds.done() == 3  # once with others, twice alone
    assert "1 drawn users contribute zero" in caplog.text and "user-03" not in caplog.text


@pytest.mark.slow
def test_a_user_that_raises_costs_no_worker(backend, deeds):
    total(backend)
    before = backend.processes()
    deeds.plan({"user-03": "raise"})
    others = [user for user in staff.ROSTER[:9] if user != "user-03"]
    found = total(backend)
    assert staff.same(found, oracle(cohort=others)) and found.num_failed == 1
    assert backend.processes() == before


@pytest.mark.slow
def test_what_comes_back_is_one_sum_from_each_worker(backend, monkeypatch):
    """Never an individual update: as many results as workers, over all their users."""
    import ray as api

    results, run = [], backend._pool.run
    monkeypatch.setattr(
        backend._pool, "run", lambda *a, **more: results.append(run(*a, **more)) or results[-1]
    )
    total(backend)
    [references] = results
    sums = api.get(references)
    assert len(sums) == 2 and sorted(done.num_users for done in sums) == [4, 5]


@pytest.mark.slow
def test_evaluation_is_shared_and_adds_up(backend, deeds):
    deeds.plan({"evaluate": "kill"}, times=1)
    assert backend.evaluate(staff.params(), public=True) == staff.measure({}, public=True)
    assert deeds.done() == 1
    assert backend.evaluate(staff.params(), public=False) == staff.measure({}, public=False)


@pytest.mark.slow
def test_an_evaluation_that_kills_every_worker_is_none(backend, caplog, monkeypatch, tmp_path):
    """Real workers and real deaths; they import nothing, so that their successors start soon."""
    import ray as api

    from fedpriv.backends.ray.pool import Call, Pool

    actor = api.remote(Frail).options(num_cpus=0.1)
    pool = Pool(actor.remote, Call("open", (str(tmp_path),)), num_actors=2)
    monkeypatch.setattr(backend, "_pool", pool)
    with caplog.at_level(logging.WARNING):
        assert backend.evaluate(staff.params(), public=True) is None
    assert "not measured" in caplog.text
    assert caplog.text.count("a worker died") == len(list(tmp_path.glob("evaluate-*"))) == 3
    pool.close()


@pytest.mark.slow
@pytest.mark.parametrize(("num_devices", "part"), [(1, 0.5), (2, 1.0), (4, 1.0)])
def test_every_logical_device_gives_the_same_sum_also_after_one_died(hire, num_devices, part):
    backend = hire(int(num_devices / part), num_gpus=part)
    before = sorted(backend.describe()["devices"])
    names = [name.split(":")[0] for name in before]
    assert len(set(names)) == num_devices and len(names) == int(num_devices / part)
    assert all(name.startswith("logical device ") for name in names)
    assert staff.same(total(backend), oracle())
    victim = backend.processes()[0]
    os.kill(victim, signal.SIGKILL)
    assert staff.same(total(backend, key=KEY.fold(2)), oracle(key=KEY.fold(2)))
    _replace(backend, victim)
    assert sorted(backend.describe()["devices"]) == before
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [4, 5, 8])
def test_workers_add_large_sums_two_by_two_also_after_one_died(hire, monkeypatch, num_workers):
    from fedpriv.backends.ray import backend as module

    monkeypatch.setattr(module, "_BYTES_OF_A_TREE", 0)
    called, run = [], module.Pool.run

    def noting(self, calls, **options):
        called.extend(call.method for call in calls)
        return run(self, calls, **options)

    monkeypatch.setattr(module.Pool, "run", noting)
    backend = hire(num_workers)
    for number in range(2):
        key = KEY.fold(number)
        assert staff.same(total(backend, key=key), oracle(key=key))
        os.kill(backend.processes()[number], signal.SIGKILL)
    # Nine users: never more than that many sums.
    assert called.count("add") == 2 * {4: 2, 5: 2, 8: 6}[num_workers]
    backend.close()


def _replace(backend, dead):
    while dead in backend.processes():  # until a call of its finds it dead
        backend.evaluate(staff.params(), public=True)
    backend._pool.run([], all_open=True)
