"""What one hostile node may send, and that it costs nobody but itself."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedpriv import tree
from fedpriv.backends.flower.client import Host
from fedpriv.sums import BITS
from tests.backends.flower import stub_grid as stub
from tests.backends.flower.hostile.messages import MESSAGES
from tests.backends.flower.hostile.payloads import (
    BOUND,
    EXACT,
    HOSTILE,
    SCHEDULE,
    TAGS,
    WORDS,
    arrays,
    report,
    run,
    sends,
    summed,
)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "bound", "reasons"), MESSAGES.values(), ids=MESSAGES)
def test_a_hostile_message_contributes_nothing_alone(make, bound, reasons):
    os.environ.pop("FEDPRIV_UNPICKLED", None)
    found, moved, counts = run(sends(**make()), bound=bound)
    assert moved == 0.0 if bound is EXACT else moved < 1e-7
    assert found.num_failed == 1 and found.granularity == bound.granularity
    assert sum(counts.values()) == 1 and counts.keys() <= reasons
    assert "FEDPRIV_UNPICKLED" not in os.environ


def test_a_node_whose_code_rounds_on_another_grid_is_refused(caplog, monkeypatch):
    """Its own bound is honest; only a constant of its version differs from the server's."""
    version = threading.local()

    class Bits(int):
        """16 in the node of another version; other threads read answers meanwhile."""

        def __neg__(self):
            return -16 if getattr(version, "other", False) else -int(self)

    monkeypatch.setattr("fedpriv.mechanisms.bounds.BITS", Bits(BITS))

    def rounded_by_another_version(request, reply):
        task = stub.TinyTags()
        again = Message(RecordDict(dict(request.content)), HOSTILE, "train")
        host = Host.of(task, task.trainer(SCHEDULE, {}), partition=HOSTILE - 101, num_partitions=12)
        version.other = True
        try:
            theirs = host.train(again)
        finally:
            version.other = False
        assert theirs.content["report"]["granularity"] == EXACT.granularity * 256
        return [Message(theirs.content, reply_to=request)]

    found, moved, counts = run(rounded_by_another_version, bound=EXACT)
    assert moved == 0.0 and found.num_failed == 1
    assert counts == {"other-grid": 1}
    assert caplog.text.count(repr(EXACT.granularity * 256)) == 1


@pytest.mark.parametrize(
    ("longer", "reason"),
    [(1.0, None), (1 + 2**-21, "rebounded"), (1 + 2**-19, "too-long")],
    ids=["as long as it may be", "by rounding", "by more"],
)
def test_a_single_users_update_is_scaled_for_rounding_alone(longer, reason):
    payload = np.zeros((WORDS, TAGS))
    payload[7, 2] = BOUND.l2_bound * longer
    total = arrays(**{"dense/kernel": payload, "dense/bias": np.zeros(TAGS)})
    _, moved, counts = run(sends(total=total, report=report()))
    assert counts == ({} if reason is None else {reason: 1})
    if reason == "too-long":
        assert moved < 1e-7
    else:  # the other nodes of one user send float32
        assert abs(moved - BOUND.l2_bound) < 2e-8


def test_an_honest_sum_is_not_bounded_again():
    found, moved, counts = run(lambda request, reply: [reply])
    assert found.num_failed == 0
    assert 0 < moved <= BOUND.l2_bound
    assert not counts


@pytest.mark.parametrize("longer", [1.0, 1 + 2**-30, 1e9])
def test_a_node_of_k_users_is_held_to_k_bounds(longer):
    """Its sum is of float64 numbers: nothing lengthens it on its way."""
    payload = np.zeros((WORDS, TAGS))
    payload[7, 2] = 3 * BOUND.l2_bound * longer
    total = arrays(**{"dense/kernel": payload, "dense/bias": np.zeros(TAGS)})
    three = stub.TinyTags().roster[0:6:2]  # all on the first of two nodes
    tamper = {101: sends(total=total, report=report())}
    found, counts = summed(tamper, num_nodes=2, cohort=three)
    length = tree.l2_norm(found.real())
    assert length == (3 * BOUND.l2_bound if longer == 1.0 else 0.0)
    assert counts == ({} if longer == 1.0 else {"too-long": 1})
