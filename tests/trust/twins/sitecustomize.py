"""Breaks one thing in every Python process that has this folder on its path.

Which one, FEDPRIV_TWIN names; the module is changed as soon as it has been executed, before anybody
else has imported a name of it. Processes that tests start inherit it, however they are started.
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
