"""A reply whose upload never ends costs its own node's users, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedpriv.backends.flower import pulls
from tests.backends.flower.silent.threaded_grid import Hundred
from tests.harness.waiting import wait_until


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "num_endless", [16, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 60))]
)
def test_everybody_elses_answers_are_in_the_sum(released, num_endless):
    hundred = Hundred(deadline=3.0, released=released)
    endless = hundred.nodes[:num_endless]
    hundred.grid.endless.update(endless)
    assert hundred.is_sum_without(hundred.sum(), *endless)
    assert hundred.counts == {"missing": num_endless}
    assert hundred.grid.blocked == num_endless  # each was begun, and left


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_an_abandoned_pull_brings_counts_for_no_later_round(released):
    hundred = Hundred(deadline=1.5, num_users=20, released=released)
    node = hundred.nodes[3]
    hundred.grid.endless.add(node)
    assert hundred.is_sum_without(hundred.sum(), node)
    # While that pull waits, the node is not asked again, or threads would pile up.
    assert hundred.is_sum_without(hundred.sum(round_num=2), node)
    assert hundred.grid.blocked == 1
    hundred.grid.endless.clear()
    released.set()
    wait_until(lambda: pulls.num_alive() == 0)
    assert hundred.is_sum_without(hundred.sum(round_num=3))
    # The first round's answer came too late, and so did the second's, which nobody had begun.
    assert hundred.counts == {"missing": 2, "late": 2}
    assert hundred.grid.in_flight == 0


_PROGRAM = """
import threading
from concurrent.futures import ThreadPoolExecutor
from fedpriv.backends.flower.pulls import Pull, Pulls, num_alive

def pull(ids):  # as Flower does: the parts of a message, in a pool of its own
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda _: threading.Event().wait(600), ids))

pulls = Pulls(pull)
pulls.start(Pull(message_id="a", node_id=1, since=0.0))
assert pulls.ended(0.5) is None
(look,) = pulls.close()
assert num_alive() == 1 and not look.done
print("over", flush=True)
"""


@pytest.mark.slow
def test_a_process_ends_while_pulls_are_waiting():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        timeout=300, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "over\n"
