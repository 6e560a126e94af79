"""Breaks one thing in every Python process that has this folder on its path.

FEDPRIV_TWIN names a fault of `breaks`: the module is changed as soon as it has been executed,
before another has imported a name of it. FEDPRIV_SOURCE is "MODULE=FILE": the module is executed
from that file's text. Processes that tests start inherit both, however they are started.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path


def _breaks():
    place = Path(__file__).parent / "breaks.py"
    spec = importlib.util.spec_from_file_location("breaks_of_twins", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BREAKS


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, target, change):
        self.target, self.change = target, change

    def find_spec(self, name, path=None, target=None):
        if name != self.target:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute, change = spec.loader.exec_module, self.change

        def changed(module):
            execute(module)
            change(module)

        spec.loader.exec_module = changed
        return spec


if os.environ.get("FEDPRIV_TWIN"):
    _target, _change = _breaks()[os.environ["FEDPRIV_TWIN"]]
    sys.meta_path.insert(0, _Finder(_target, _change))


class _Source(importlib.abc.MetaPathFinder):
    def __init__(self, target, file):
        self.target, self.file = target, Path(file)

    def find_spec(self, name, path=None, target=None):
        if name != self.target:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader.get_code = lambda name: compile(self.file.read_bytes(), spec.origin, "exec")
        return spec


if os.environ.get("FEDPRIV_SOURCE"):
    sys.meta_path.insert(0, _Source(*os.environ["FEDPRIV_SOURCE"].split("=", 1)))
