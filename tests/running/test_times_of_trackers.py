"""How long rounds took depends on who was drawn: a secure run's values have one time."""

import itertools

from fedpriv.runs import callbacks
from fedpriv.runs.callbacks import Timer


def stamps(mode, monkeypatch):
    ticks = itertools.count(100.0)
    monkeypatch.setattr(callbacks.time, "time", lambda: next(ticks))
    timer = Timer(mode)
    return [timer() for _ in range(3)]


def test_a_secure_run_has_one_time(monkeypatch):
    assert stamps("secure", monkeypatch) == [100.0] * 3


def test_a_simulation_has_the_time_of_each(monkeypatch):
    assert len(set(stamps("simulation", monkeypatch))) == 3
