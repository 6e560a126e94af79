"""Fixtures of the rooms whose commands are tested here."""

import importlib.util
from pathlib import Path


def _room(name):
    path = Path(__file__).parents[1] / name / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"{name}_fixtures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_run = _room("report").make_run
