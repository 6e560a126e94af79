"""What a secure federation logs says nothing of who came to a round: it bounds the cohort."""

from __future__ import annotations

import logging

import pytest
from flwr.app import Error, Message

from fedpriv.backends import SerialBackend
from fedpriv.backends.flower.strategy import GridSettings
from fedpriv.mechanisms import Clip, Rounded
from fedpriv.rng import Key
from fedpriv.training.algorithm import SumRequest
from fedpriv.training.local.schedule import LocalSgd
from fedpriv.training.work import Attempt
from tests.backends.flower import stub_grid as stub
from tests.harness.threads import Shared
from tests.harness.toy_users import Tampered

BOUND, SCHEDULE = Rounded(bound=Clip(l2_clip_norm=0.3)), LocalSgd(learning_rate=2.0)
LOOPBACK = GridSettings(allow_unauthenticated_nodes=True)
KEYS = {"simulation": Key.simulation(1), "secure": Key.secure()}


def lost(request, reply):
    return [Message(Error(2, "lost"), reply_to=request)]


def broken(request, reply):
    del reply.content["sum"]
    return [reply]


def frail(data):
    """Users of whom every second has no examples that can be read."""

    def examples(user_id):
        if int(user_id[-1]) % 2:
            raise OSError("the text of an error may hold a user's data")
        return data.examples(user_id)

    return Tampered(data, examples)


def asked(backend, task, mode, caplog):
    """Return what is logged of one round with everybody in it."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "fedpriv"):
        attempt = Attempt(bound=BOUND, key=KEYS[mode])
        backend.sum(SumRequest(params=task.params()), attempt, task.roster[:8])
    return [record.getMessage() for record in caplog.records if record.name.startswith("fedpriv")]


@pytest.mark.parametrize("tamper", [lost, broken, lambda request, reply: [reply, reply]])
def test_answers_that_were_dropped_are_counted_in_a_simulation_alone(caplog, tamper):
    task = stub.TinyTags()
    backend = stub.started(task, 12, settings=LOOPBACK, tamper={102: tamper, 104: tamper})
    assert any("round 1" in line for line in asked(backend, task, "simulation", caplog))
    assert backend.exchange.dropped
    assert asked(backend, task, "secure", caplog) == []


def in_process(task, data):
    return SerialBackend(trainer=task.trainer(SCHEDULE, {}), data=data, threads=1)


def on_threads(task, data):
    return Shared(trainer=task.trainer(SCHEDULE, {}), data=data)


def on_a_node(task, data):
    task.data = data
    return stub.started(task, 2, settings=LOOPBACK)


@pytest.mark.parametrize("place", [in_process, on_threads, on_a_node])
def test_a_user_that_fails_is_said_in_a_simulation_alone(caplog, place):
    task = stub.TinyTags()
    backend = place(task, frail(task.data))
    try:
        said = asked(backend, task, "simulation", caplog)
        assert sum("contributes zero: OSError" in line for line in said) == 4
        assert asked(backend, task, "secure", caplog) == []
    finally:
        backend.close()
