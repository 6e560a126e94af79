"""Writes down each cohort and noise that a Python process with this folder on its path draws.

One line before a draw, with its key's digest, and one after it, with that of what was drawn: who is
killed in between has used nothing of it. FEDPRIV_DRAWS names the file. Workers are written down as
well, by their process ids. A broken twin may be named too.
"""

import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import sys
from pathlib import Path


def _write(**line):
    line["pid"] = os.getpid()
    log = os.open(os.environ["FEDPRIV_DRAWS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(log, (json.dumps(line) + "\n").encode())
    finally:
        os.close(log)


def _noise(gaussian):
    right = gaussian.gaussian

    def drawn(key, template, stddev):
        name = hashlib.sha256(key.to_bytes()).hexdigest()
        _write(kind="noise", key=name)
        found = right(key, template, stddev)
        digest = hashlib.sha256()
        for array in found.values():
            digest.update(array.tobytes())
        _write(kind="noise", key=name, drawn=digest.hexdigest())
        return found

    gaussian.gaussian = drawn


def _cohort(sampling):
    right = sampling.PoissonSampler.cohort

    def drawn(self, key, roster):
        name = hashlib.sha256(key.to_bytes()).hexdigest()
        _write(kind="cohort", key=name)
        found = right(self, key, roster)
        _write(kind="cohort", key=name, drawn=hashlib.sha256(repr(found).encode()).hexdigest())
        return found

    sampling.PoissonSampler.cohort = drawn


def _worker(worker):
    right = worker.Worker.__init__

    def made(self, *given, **named):
        right(self, *given, **named)
        _write(kind="worker")

    worker.Worker.__init__ = made


_CHANGES = {
    "fedpriv.mechanisms.gaussian": _noise,
    "fedpriv.privacy.sampling": _cohort,
    "fedpriv.backends.worker": _worker,
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in _CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            _CHANGES[name](module)

        spec.loader.exec_module = executed
        return spec


if os.environ.get("FEDPRIV_TWIN"):
    _twins = Path(__file__).resolve().parents[2] / "twins" / "sitecustomize.py"
    # Its own finder is found first: a twin that breaks what is watched here is not seen.
    runpy.run_path(str(_twins))
if os.environ.get("FEDPRIV_DRAWS"):
    sys.meta_path.insert(0, _Finder())
