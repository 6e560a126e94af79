"""One user of a node neither stops the node's other users nor makes the node silent."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from fedpriv.backends.flower.settings import read_guard
from fedpriv.backends.guard import Guard
from tests.backends.flower.silent.threaded_grid import Hundred
from tests.harness.refusals import refuses
from tests.harness.toy_users import Tampered


def poisoned(kind, released, guard, *, deadline):
    """A hundred users on ten nodes; the first user of the first node is poison."""
    hundred = Hundred(deadline=deadline, num_nodes=10)
    hosts = dict(hundred.grid.hosts)
    data = hundred.task.data

    def examples(user_id):
        if user_id == hundred.task.roster[0]:
            if kind == "exits":
                os._exit(9)
            released.wait()
            raise ValueError("released")
        return data.examples(user_id)

    hosts[101] = replace(hosts[101], data=Tampered(data, examples), guard=guard)
    hundred.grid.hosts = hosts
    return hundred


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no child can be forked here")
@pytest.mark.parametrize("kind", ["hangs", "exits"])
def test_a_poison_user_contributes_zero_alone(released, kind, monkeypatch):
    monkeypatch.setattr("fedpriv.backends.guard.can_fork", lambda: True)
    hundred = poisoned(kind, released, Guard(user_seconds=2.0), deadline=60.0)
    assert hundred.is_sum_without(hundred.sum(), users=hundred.task.roster[:1])
    assert not hundred.counts


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_a_guard_the_whole_node_is_silent(released):
    """What the guard is for: ten users are lost for one."""
    hundred = poisoned("hangs", released, None, deadline=2.0)
    assert hundred.sum().num_failed == 10
    assert hundred.counts == {"missing": 1}


def test_a_nodes_own_config_comes_before_the_runs():
    assert read_guard({}) == Guard()
    assert read_guard({"guard-users": False}) is None
    found = read_guard({"user-seconds": 3, "user-memory-mb": 500})
    assert found == Guard(user_seconds=3.0, user_memory_mb=500)
    with refuses(ValueError, "user-seconds", -1.0, 0):
        read_guard({"user-seconds": -1.0})
