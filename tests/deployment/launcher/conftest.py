"""Fixtures of the launcher's tests: real Flower processes on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.flower.real import processes as real
from tests.deployment.launcher.federation import Launched


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """A SuperLink whose nodes are the launcher's; whatever is started is stopped with the test."""
    started = Launched(real.Flower(tmp_path / "flower-home"))
    try:
        yield started
    finally:
        started.flower.stop()
        assert not started.flower.left()
