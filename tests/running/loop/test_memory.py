"""What a run keeps in memory of each round, where users raise in every one."""

from __future__ import annotations

import gc
import logging
from collections import Counter, deque
from itertools import islice

import pytest

from fedpriv.backends import SerialBackend
from fedpriv.runs.loop import rounds
from tests.harness.tag_runs import start

RAISING = {"u00", "u10", "u20"}


class Broken:
    """A population of which some raise at length whenever they are drawn."""

    def __init__(self, data):
        self._data = data

    def num_examples(self, user_id):
        return self._data.num_examples(user_id)

    def examples(self, user_id):
        if user_id in RAISING:
            raise RuntimeError("x" * 5_000)
        return self._data.examples(user_id)


def backend(experiment, made):
    return SerialBackend(
        trainer=made.trainer, data=Broken(made.task.data), measure=made.task.evaluate
    )


def objects():
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects())


@pytest.mark.slow
def test_a_round_leaves_its_charge_and_its_release(tiny_corpus, tmp_path, caplog):
    caplog.set_level(logging.CRITICAL, logger="fedpriv")  # pytest keeps every record
    made = start(
        tiny_corpus, tmp_path / "run", make_backend=backend, rounds=60, eval_every=5, cohort=20.0
    )
    used = made.make_backend(made.experiment, made.components)
    loop = rounds(
        made.components, used, made.root, folder=made.folder, state=made.state, eval_every=5
    )
    deque(islice(loop, 10), maxlen=0)
    before = objects()
    deque(islice(loop, 40), maxlen=0)
    kept = objects() - before
    # Whatever grew by one in every round; caches that fill once grow by less.
    assert {name: n for name, n in kept.items() if n >= 40} == {"Charge": 40, "Release": 40}
