"""What a run keeps in memory of each round, where users raise in every one."""

import gc
import logging
from collections import Counter, deque
from itertools import islice, pairwise

import pytest

from fedpriv.runs.loop import rounds
from tests.harness.tag_runs import start

RAISING = {"u00", "u10", "u20"}


def objects():
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects())


@pytest.mark.slow
def test_a_round_leaves_its_charge_and_its_release(tiny_corpus, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.CRITICAL, logger="fedpriv")  # pytest keeps every record
    made = start(tiny_corpus, tmp_path / "run", rounds=60, eval_every=5, cohort=20.0)
    data = type(made.components.task.data)
    read = data.examples

    def examples(self, user_id):
        """Raise at length whenever some are drawn."""
        if user_id in RAISING:
            raise RuntimeError("x" * 5_000)
        return read(self, user_id)

    monkeypatch.setattr(data, "examples", examples)
    used = made.make_backend(made.experiment, made.components)
    loop = rounds(
        made.components, used, made.root, folder=made.folder, state=made.state, eval_every=5
    )
    deque(islice(loop, 10), maxlen=0)
    looks = [objects()]
    for _ in range(2):
        deque(islice(loop, 20), maxlen=0)
        looks.append(objects())
    first, second = (after - before for before, after in pairwise(looks))
    kept = first & second  # a cache that fills once grows in one of them
    # Whatever grew by one in every round; caches that fill slowly grow by less.
    assert {name: n for name, n in kept.items() if n >= 20} == {"Charge": 20, "Release": 20}
