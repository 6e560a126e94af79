"""Writes down each cohort, noise and sum that a Python process with this folder on its path draws.

One line for a cohort or a noise that was drawn, with the last charge that the ledger had before it,
and one for a sum that a noise is added to: who is killed before a line has used nothing of it.
FEDPRIV_DRAWS names the file, FEDPRIV_LEDGER the ledger. Workers are written down as well, by their
process ids. A broken twin may be named too.
"""

import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import sys
from pathlib import Path

_trials = []  # a task is tried on a made-up user first: nothing of that is a user's, or released


def _write(kind, **line):
    if _trials:
        return
    line |= {"kind": kind, "pid": os.getpid()}
    log = os.open(os.environ["FEDPRIV_DRAWS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(log, (json.dumps(line) + "\n").encode())
    finally:
        os.close(log)


def _last_charge():
    """Return the digest of the ledger's last whole line that is a charge; None without one."""
    ledger = Path(os.environ["FEDPRIV_LEDGER"])
    lines = ledger.read_bytes().split(b"\n")[:-1] if ledger.exists() else []
    charges = [line for line in lines if b'"kind":"charge"' in line]
    return hashlib.sha256(charges[-1]).hexdigest() if charges else None


def _digest(arrays):
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + arrays[name].tobytes())
    return found.hexdigest()


_exact = {}  # draws that are made while they are used, by identity, with the digest of their key


def _of_noise(drawn, key=None):
    if hasattr(drawn, "items"):
        return _digest(drawn)
    if key is not None:
        _exact[id(drawn)] = drawn, hashlib.sha256(key.to_bytes()).hexdigest()
    return _exact[id(drawn)][1]


def _mechanism(mechanism):
    right = mechanism.Mechanism.draws

    def drawn(self, template, key):
        rows = right(self, template, key)
        while True:
            charge = _last_charge()
            found = next(rows)
            _write("noise", charge=charge, drawn=_of_noise(found._held[0], key))
            yield found

    mechanism.Mechanism.draws = drawn


def _privatizer(privatizer):
    right = privatizer.Draw.take

    def taken(self, total, owner):
        from fedpriv.tree import to_dense

        drawn = right(self, total, owner)
        _write("sum", noise=_of_noise(drawn), drawn=_digest(to_dense(total.total)))
        return drawn

    privatizer.Draw.take = taken


def _sampling(sampling):
    for sampler in vars(sampling).values():
        if isinstance(sampler, type) and "next" in vars(sampler):
            sampler.next = _next(sampler.next)


def _next(right):
    def drawn(self, memory, key, roster):
        charge, name = _last_charge(), hashlib.sha256(key.to_bytes()).hexdigest()
        found = right(self, memory, key, roster)
        _write("cohort", charge=charge, key=name, drawn=list(found[0]))
        return found

    return drawn


def _prepared(prepared):
    right = prepared._try

    def tried(*given, **named):
        _trials.append(True)
        try:
            return right(*given, **named)
        finally:
            _trials.pop()

    prepared._try = tried


def _worker(worker):
    right = worker.Worker.__init__

    def made(self, *given, **named):
        right(self, *given, **named)
        _write("worker")

    worker.Worker.__init__ = made


_CHANGES = {
    "fedpriv.privacy.mechanism": _mechanism,
    "fedpriv.mechanisms.privatizer": _privatizer,
    "fedpriv.privacy.sampling": _sampling,
    "fedpriv.runs.prepared": _prepared,
    "fedpriv.backends.ray.backend": _worker,
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
