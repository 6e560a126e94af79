"""Times of a round's steps, as the bundle under measurement prints them.

The bundle is a copy of this checkout whose two apps also print what they do when: one line
"STAMP name seconds" each, in seconds of the system's clock, which all processes of a machine share.
"""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r"STAMP (\S+) (\d+\.\d+)")

_FIRST = """
import os as _os
import sys as _sys
import time as _time


def _stamp(name, at=None):
    print(f"STAMP {name} {_time.time() if at is None else at:.4f}", file=_sys.stderr, flush=True)


def _started():
    ticks = float(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    boot = _time.time() - float(open("/proc/uptime").read().split()[0])
    return boot + ticks / _os.sysconf("SC_CLK_TCK")


"""

_NODE = """

import fedpriv.backends.flower.client as _client

_stamp("imported")
_train = _client.Host.train


def _timed(self, message):
    _stamp("train-begins")
    try:
        return _train(self, message)
    finally:
        _stamp("train-ends")


_client.Host.train = _timed


@app.lifespan()
def _answering(context):
    _stamp("process", _started())
    _stamp("answering")
    yield
"""

_SERVER = """

import fedpriv.backends.flower.exchange as _exchange
import fedpriv.backends.flower.strategy as _strategy

_sum, _push = _strategy.GridBackend.sum, _exchange.Exchange._push
_add = _strategy.BoundedSum.add


def _round(self, *given):
    _stamp("asked")
    try:
        return _sum(self, *given)
    finally:
        _stamp("summed")


def _pushed(self, *given):
    done = _push(self, *given)
    _stamp("pushed")
    return done


def _added(self, *given, **named):
    _stamp("pulled")
    return _add(self, *given, **named)


_strategy.GridBackend.sum = _round
_exchange.Exchange._push = _pushed
_strategy.BoundedSum.add = _added
"""


def stamp_app(app: Path) -> None:
    """Let the two apps of a copied bundle print their times."""
    for name, more in (("client", _NODE), ("server", _SERVER)):
        path = app / name / "app.py"
        path.write_text(f"{path.read_text('utf-8')}{_FIRST}{more}", "utf-8")


def stamps(line: str) -> tuple[str, float] | None:
    """Return the name and time that a line of a log holds, or None."""
    found = _LINE.search(line)
    return None if found is None else (found[1], float(found[2]))
