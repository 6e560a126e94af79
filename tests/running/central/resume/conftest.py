"""Fixtures of resumed centralised runs."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.running.central.resume.synthetic import Seen, World, data, synthetic_experiment


@pytest.fixture(autouse=True)
def world(monkeypatch):
    module = ModuleType("resumed_central")
    module.synthetic_experiment = synthetic_experiment
    monkeypatch.setitem(sys.modules, "resumed_central", module)
    monkeypatch.setattr(World, "data", data())
    monkeypatch.setattr(World, "silent", False)
    monkeypatch.setattr(Seen, "looks", [])
    return monkeypatch
