"""Flower's own folder; whatever is started from it is stopped with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.flower.real.processes import Flower


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    started = Flower(tmp_path / "flower-home")
    try:
        yield started
    finally:
        started.stop()
        assert not started.left()
