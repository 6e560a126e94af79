"""Fixtures of resumed centralised runs."""

import pytest

from tests.running.central.synthetic import Seen, World, data


@pytest.fixture(autouse=True)
def world(monkeypatch):
    monkeypatch.setattr(World, "data", data())
    monkeypatch.setattr(World, "silent", False)
    monkeypatch.setattr(Seen, "looks", [])
    return monkeypatch
