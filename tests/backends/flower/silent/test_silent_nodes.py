"""However many nodes are silent, the others' answers count, and the round ends on time."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from tests.backends.flower.silent.threaded_grid import Hundred


@pytest.mark.parametrize(
    "num_silent", [16, *(pytest.param(n, marks=pytest.mark.slow) for n in (15, 50, 99))]
)
def test_the_sum_is_of_all_nodes_that_are_not_silent(num_silent):
    hundred = Hundred(deadline=1.5)
    silent = hundred.nodes[:num_silent]
    hundred.grid.silent.update(silent)
    assert hundred.is_sum_without(hundred.sum(), *silent)
    assert hundred.counts == {"missing": num_silent}


@contextmanager
def longest_stall():
    """Yield a list of one number: the longest time in which this process stood still, in s."""
    stop, found = threading.Event(), [0.0]

    def watch():
        before = time.monotonic()
        while not stop.wait(0.05):
            found[0], before = max(found[0], time.monotonic() - before), time.monotonic()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        stop.set()
        watcher.join()


def rounds(num_rounds, *, deadline, seed=0, num_users=40):
    """Return how long rounds took, over the deadline, with 30 % of nodes crashed and 10 % hung.

    Of those that hang, one in two begins an upload that never ends. A round in which the machine
    stood still for a tenth of the deadline, and every node with it, is played again.
    """
    rng = np.random.default_rng(seed)
    hundred, took = Hundred(deadline=deadline, num_users=num_users), []
    num_lost, num_hung = int(0.4 * num_users), int(0.1 * num_users)
    for number in range(1, 2 * num_rounds):
        kinds = rng.permutation(hundred.nodes)
        lost = [int(node) for node in kinds[:num_lost]]
        hung = lost[:num_hung]
        hundred.grid.crashed = set(lost) - set(hung)
        hundred.grid.silent = set(hung[::2])
        hundred.grid.endless = set(hung[1::2])
        hundred.counts.clear()
        with longest_stall() as stood:
            start = time.monotonic()
            found = hundred.sum(round_num=number)
            share = (time.monotonic() - start) / hundred.deadline
        hundred.grid.released.set()
        hundred.grid.released.clear()
        if stood[0] > hundred.deadline / 10:
            continue
        took.append(share)
        # A node whose upload of an earlier round has not ended is not asked for another.
        assert hundred.is_sum_without(found, *lost)
        assert hundred.counts["error"] == num_lost - num_hung
        assert hundred.counts["missing"] == num_hung
        if len(took) == num_rounds:
            return took
    raise AssertionError(f"the machine stood still in all but {len(took)} rounds")


@pytest.mark.slow
def test_fifty_rounds_with_crashes_and_hangs_end_within_their_deadline():
    """R6: the deadline and a tenth of it, of which a loaded machine leaves enough at 4 s."""
    took = rounds(50, deadline=4.0)
    assert len(took) == 50 and max(took) <= 1.1
