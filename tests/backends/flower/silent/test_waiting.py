"""That a round or a start waits is said in time; of a secure run, not for whom."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest

from fedpriv.backends.flower.exchange import Exchange
from fedpriv.backends.flower.registry import register
from fedpriv.backends.flower.strategy import GridSettings
from fedpriv.rng import Key
from tests.backends.flower import stub_grid as stub
from tests.backends.flower.stub_grid import Federation
from tests.harness.refusals import refuses
from tests.harness.waiting import Clock

SETTINGS = GridSettings(round_deadline=150.0, allow_unauthenticated_nodes=True)


@pytest.fixture
def waits(caplog):
    """A federation of four nodes whose time passes only when somebody sleeps; what it logs."""
    caplog.set_level(logging.INFO, "fedpriv")

    def made():
        clock = Clock()
        federation = Federation(12, 4, settings=SETTINGS)
        exchange = Exchange(
            grid=federation.grid, clock=clock, sleep=clock.sleep, dropped=federation.counts
        )
        federation.backend = replace(federation.backend, exchange=exchange)
        federation.clock = clock
        return federation

    def lines():
        found = [r.getMessage() for r in caplog.records if "round 1 " in r.getMessage()]
        caplog.clear()
        return found

    return made, lines


def ages(lines):
    return [int(re.search(r"(\d+) s,", line)[1]) for line in lines]


def test_whom_a_simulation_waits_for_is_said_within_ten_seconds_and_each_minute(waits):
    made, lines = waits
    federation = made()
    federation.grid.silent.add(102)
    federation.sum()
    said = lines()
    first, second, third = ages(said)
    assert first < 10 and second - first <= 60 and third - second <= 60
    for line in said:
        assert "node 102" in line and "user-01" in line
        assert not any(f"node {other}" in line for other in (101, 103, 104))


def test_of_a_secure_run_it_is_said_for_how_long_and_not_for_whom(waits):
    """The lines of two cohorts, and of two nodes that are silent, are the same."""
    made, lines = waits
    found = []
    for silent, cohort in (({102}, None), ({101, 104}, None), ({102}, ["user-01", "user-02"])):
        federation = made()
        federation.grid.silent.update(silent)
        federation.sum(cohort, key=Key.secure())
        found.append(lines())
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3 and ages(found[0])[0] < 10
    assert not any("node" in line or "user" in line for line in found[0])


def test_who_answers_at_once_is_not_waited_for_with_a_word(waits):
    made, lines = waits
    made().sum()
    assert lines() == []


def test_a_node_that_goes_in_a_round_is_named_before_its_end(waits, caplog):
    made, _ = waits
    federation = made()
    counted, hosts = [], dict(federation.grid.hosts)
    federation.backend = replace(federation.backend, on_online=counted.append)
    federation.grid.silent.add(103)
    federation.grid.get_node_ids = lambda: [
        node for node in hosts if node != 103 or federation.clock.now < 20
    ]
    noticed = []
    look = type(federation.backend).look_at_nodes

    def looked(backend):
        number = look(backend)
        if number == 3 and not noticed:
            noticed.append(federation.clock.now)
        return number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(federation.backend), "look_at_nodes", looked)
        federation.sum()
    assert counted == [3] and noticed[0] <= 20 + 15
    assert any("3 of 4" in line and "node 103" in line for line in caplog.messages)


def test_that_users_are_waited_for_at_the_start_is_said_and_how_many_are_found_is_not(caplog):
    caplog.set_level(logging.INFO, "fedpriv")
    task, clock = stub.TinyTags(), Clock()
    hosts = stub.shards(task, 3)
    del hosts[102]
    grid = stub.StubGrid(hosts, silent={103})
    exchange = stub.timed(grid, clock)
    with refuses(ValueError, 8, 12):
        register(exchange, task.roster, seconds=150.0)
    said = [line for line in caplog.messages if "waiting" in line]
    first, second, third = ages(said)
    assert first < 10 and second - first <= 60 and third - second <= 60
    assert all("node 103" in line and "node 101" not in line for line in said)
    assert not any("user-" in line or re.search(r"\d+ (users|rostered)", line) for line in said)
