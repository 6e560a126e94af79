"""Actors that die, and calls that are done all the same, each counted once."""

from __future__ import annotations

import os

import psutil
import pytest

from tests.backends.frail import Frail
from tests.harness.refusals import refuses

pytestmark = pytest.mark.ray


@pytest.fixture
def hire(ray, tmp_path):
    """Make a pool of frail actors; it is closed with the test."""
    import ray as api

    from fedpriv.backends.ray.pool import Call, Pool

    pools = []

    def make(num_actors=1, **opening):
        actor = api.remote(Frail).options(num_cpus=0.25)
        pool = Pool(
            actor.remote, Call("open", (str(tmp_path), *opening.values())), num_actors=num_actors
        )
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


def count(folder, what):
    return len(list(folder.glob(f"{what}-*")))


def call(method, *arguments):
    from fedpriv.backends.ray.pool import Call

    return Call(method, arguments)


@pytest.mark.slow
def test_results_come_in_the_order_of_the_calls(hire, tmp_path):
    calls = [call("wait", 0.2), *(call("double", n) for n in range(7))]
    assert hire(2).run(calls) == [0.2, 0, 2, 4, 6, 8, 10, 12]
    assert all(count(tmp_path, f"double{n}") == 1 for n in range(7))


@pytest.mark.slow
def test_workers_are_as_urgent_as_their_run(hire):
    assert hire(2).run([call("double", 1)]) == [2]
    own = psutil.Process()
    workers = [p for p in own.children(recursive=True) if p.name().startswith("ray::")]
    assert workers and {worker.nice() for worker in workers} == {own.nice()}


@pytest.mark.slow
def test_actors_that_never_start_are_an_error_that_tells_why(hire, tmp_path):
    with refuses(ChildProcessError, 3) as caught:
        hire(1, deaths=99)
    assert "died" in str(caught.value).split("The last one:")[1]
    assert count(tmp_path, "open") == 3


@pytest.mark.slow
def test_a_slow_start_is_said_and_waited_for(hire, monkeypatch, caplog):
    monkeypatch.setattr("fedpriv.backends.ray.pool._SAID_AFTER_SECONDS", 0.0)
    pool = hire(1)
    assert "no worker has started within 0 s" in caplog.text
    assert pool.run([call("double", 3)]) == [6]


@pytest.mark.slow
def test_what_opening_raises_is_raised_and_not_tried_again(hire, tmp_path):
    with pytest.raises(ValueError):
        hire(1, deaths=0, refuse=ValueError("no such corpus"))
    assert count(tmp_path, "open") == 1


@pytest.mark.slow
def test_what_a_call_raises_is_raised_and_the_pool_goes_on(hire):
    pool = hire(2)
    with pytest.raises(ZeroDivisionError):
        pool.run([call("wait", 0.3), call("refuse", ZeroDivisionError("by nothing"))])
    # The result of what was under way is not taken for that of the next call.
    assert pool.run([call("double", 3), call("double", 4)]) == [6, 8]


@pytest.mark.slow
def test_closing_ends_every_process(hire, monkeypatch):
    monkeypatch.setattr("fedpriv.backends.ray.pool._CLOSE_SECONDS", 900.0)
    pool = hire(2)
    processes = [opened.process for opened in pool.opened]
    pool.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    pool.close()  # nothing is left to do
