"""However many nodes are silent, the others' answers count, and the round ends on time."""

from __future__ import annotations

import time

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


def rounds(num_rounds, *, deadline, seed=0, num_users=40):
    """Return how long rounds took, over the deadline, with 30 % of nodes crashed and 10 % hung.

    Of those that hang, one in two begins an upload that never ends.
    """
    rng = np.random.default_rng(seed)
    hundred, took = Hundred(deadline=deadline, num_users=num_users), []
    for number in range(1, num_rounds + 1):
        kinds = rng.permutation(hundred.nodes)
        lost = [int(node) for node in kinds[: int(0.4 * num_users)]]
        hung = lost[: int(0.1 * num_users)]
        hundred.grid.crashed = set(lost) - set(hung)
        hundred.grid.silent = set(hung[::2])
        hundred.grid.endless = set(hung[1::2])
        start = time.monotonic()
        found = hundred.sum(round_num=number)
        took.append((time.monotonic() - start) / hundred.deadline)
        # A node whose upload of an earlier round has not ended is not asked for another.
        assert hundred.is_sum_without(found, *lost)
        hundred.grid.released.set()
        hundred.grid.released.clear()
    assert hundred.counts["error"] == num_rounds * (int(0.4 * num_users) - len(hung))
    assert hundred.counts["missing"] == num_rounds * len(hung)
    return took


@pytest.mark.slow
def test_fifty_rounds_with_crashes_and_hangs_end_within_their_deadline():
    """R6: the deadline and a tenth of it, of which a loaded machine leaves enough at 4 s."""
    took = rounds(50, deadline=4.0)
    assert len(took) == 50 and max(took) <= 1.1
